"""Requests of planners to a master about the speed of its job: measurements by configuration."""

from __future__ import annotations

import msgspec

from elastrec.platform.specs.shape import Shape
from elastrec.platform.transport.messages.job import Message, TableUsage


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over the steps of workers in one configuration of the job, while nothing was changing.

    In all sums except `steps_ever`, older steps have a lower weight (see `specs.metrics.share_kept`).

    Attributes:
        steps_ever: number of all steps.
        steps: of single workers; a round of four workers counts four times.
        worker_seconds: of every worker, from heartbeat to heartbeat: the whole time of the steps.
        pull_seconds, push_seconds: the part of it in which a worker waited for the servers.
    """

    configuration: Shape
    steps_ever: int = 0
    steps: float = 0.0
    samples: float = 0.0
    worker_seconds: float = 0.0
    pull_seconds: float = 0.0
    push_seconds: float = 0.0


class TableGrowth(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one table on all servers together, by samples; lists of the same length, with increasing samples."""

    table: str
    samples: list[int]
    rows: list[int]
    bytes_per_row: float


class ServerUse(msgspec.Struct, frozen=True, kw_only=True):
    """The present memory of one parameter server.

    Attributes:
        used_bytes: of the whole pod.
        table_bytes: of its rows, as counted by the server.
    """

    pod: str
    used_bytes: int
    limit_bytes: int
    table_bytes: int


class ShapeChanged(msgspec.Struct, frozen=True, kw_only=True):
    """One change of the job's wanted shape.

    Attributes:
        asked_by: the requester, as in ChangeShape; empty: unknown, or the cluster refused the wanted shape.
        seconds_ago: on the job's clock.
    """

    before: Shape
    after: Shape
    seconds_ago: float
    asked_by: str = ""


class GetProfile(Message, frozen=True):
    """Requests the measurements of the job.

    Attributes:
        next_round_seconds: from a round of scaling: the time until the next one; 0: unknown.
    """

    next_round_seconds: float = 0.0


class Profile(Message, frozen=True):
    """Answer to GetProfile.

    Attributes:
        configuration: the present or wanted configuration of the job.
        is_settled: whether every pod of it is running, nothing is being changed, and every server has reported since
            rows last moved.
        measured: one entry per configuration that the job has had, the oldest first.
        remaining_samples: rows still to be trained, all epochs.
        dense_bytes: of the dense parameters, all servers together; 0 before the first worker has sent them.
        tables: rows and bytes on all servers.
        trained_samples: up to now, including repeats.
        tables_growth: growth of every table.
        servers: those that have reported their memory.
        run_id: of the job's MLflow run; empty while it has none.
        shape_version: of the job's wanted shape (see ChangeShape).
        shape_changes: the latest changes of it, the oldest first.
        worker_used_bytes: memory in use by the worker that uses most; 0: none has reported it.
        are_servers_settled: whether every server is running with its wanted size and has reported since rows last
            moved, even if other pods are changing.
        servers_move: whether the number of parameter servers can change now.
        samples_per_second: mean of its last windows, in any configuration; 0: not known yet.
        speed_deviation: standard deviation of single windows, in samples/s.
    """

    job_json: bytes
    phase: str
    configuration: Shape
    is_settled: bool
    measured: list[Measured]
    remaining_samples: int
    dense_bytes: int = 0
    tables: list[TableUsage] = []
    trained_samples: int = 0
    tables_growth: list[TableGrowth] = []
    servers: list[ServerUse] = []
    run_id: str = ""
    shape_version: int = 0
    shape_changes: list[ShapeChanged] = []
    worker_used_bytes: int = 0
    servers_move: bool = False
    are_servers_settled: bool = False
    samples_per_second: float = 0.0
    speed_deviation: float = 0.0
