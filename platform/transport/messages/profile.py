"""What a planner asks a master about the speed of its job: what was measured in which configuration."""

from __future__ import annotations

import msgspec

from elastrec.platform.specs.shape import Shape
from elastrec.platform.transport.messages.job import Message, TableUsage


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over the steps that workers made while the job had one configuration and nothing was changing.

    The older a step is, the less it counts in all of these sums but `steps_ever` (see `specs.metrics.share_kept`).

    Attributes:
        steps_ever: all that were made, each counted once.
        steps: of single workers: a round of four workers counts four times.
        worker_seconds: of every worker, from heartbeat to heartbeat: all that went by while the steps were made.
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
    """Rows of one table on all servers together after so many samples; lists of one length, rising samples."""

    table: str
    samples: list[int]
    rows: list[int]
    bytes_per_row: float


class ServerUse(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one parameter server now.

    Attributes:
        used_bytes: of the pod, everything.
        table_bytes: of its rows, as it counts them itself.
    """

    pod: str
    used_bytes: int
    limit_bytes: int
    table_bytes: int


class ShapeChanged(msgspec.Struct, frozen=True, kw_only=True):
    """One change of the shape that is wanted for the job.

    Attributes:
        asked_by: who asked for it, as in ChangeShape; empty: nobody said, or the cluster refused what was wanted.
        seconds_ago: on the job's clock.
    """

    before: Shape
    after: Shape
    seconds_ago: float
    asked_by: str = ""


class GetProfile(Message, frozen=True):
    """What is known of the job's speed.

    Attributes:
        next_round_seconds: of a round of scaling: the next one comes after so long; 0: it is not said.
    """

    next_round_seconds: float = 0.0


class Profile(Message, frozen=True):
    """Answer to GetProfile.

    Attributes:
        configuration: what the job has now, or is on its way to.
        is_settled: every pod of it is up and nothing is being changed.
        measured: one entry per configuration that the job has had, the oldest first.
        remaining_samples: rows still to be trained, all epochs.
        dense_bytes: of the dense parameters, all servers together; 0 before the first worker has sent them.
        tables: rows and bytes on all servers.
        trained_samples: until now, repeats counted.
        tables_growth: how every table came to its present size.
        servers: those that have reported what they use.
        run_id: of the job's MLflow run; empty while it has none.
        shape_version: of the shape that is wanted for the job (see ChangeShape).
        shape_changes: the latest changes of it, the oldest first.
        worker_used_bytes: memory in use by the fullest worker; 0: none has reported it.
        are_servers_settled: every server is up with the size that it is to have, whatever else is being changed.
        servers_move: whether the number of parameter servers can change now.
        samples_per_second: of its last windows together, whatever its configuration was; 0: not known yet.
        speed_deviation: of single windows from it, one standard deviation in samples/s.
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
