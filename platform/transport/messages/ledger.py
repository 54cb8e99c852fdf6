"""What observers ask a master about the past of a job: the ledger of what was trained, and where the time went.

A job may have millions of attempts, so they come in pages. Times are seconds on the job's own clock, which stands
still while no master runs; `unix_seconds` is the wall clock.
"""

from __future__ import annotations

import msgspec

from elastrec.platform.specs.metrics import FaultCost
from elastrec.platform.specs.row_ranges import RowRanges
from elastrec.platform.specs.shape import MigrationSeen
from elastrec.platform.specs.splits import StreamPositions
from elastrec.platform.transport.messages.job import Message


class Attempt(msgspec.Struct, frozen=True, array_like=True):
    """One line of the ledger: rows `[row_begin, row_end)` of a split, counted from its start, were trained.

    Rows count in the order in which they are read: where splits are shuffled, the shuffled one.

    Attributes:
        stream, number: of the split.
        outcome: `done`, `lost`, `given back` (by a worker that was ordered to be idle), `rolled back`; `running` while
            the pod still has the shard, `unfinished` when the job ended before the attempt did.
        began, ended: on the job's clock; `unix_seconds` is when the end was written down.
    """

    stream: str
    generation: int
    number: int
    attempt: int
    pod: str
    row_begin: int
    row_end: int
    outcome: str
    began: float = 0.0
    ended: float = 0.0
    unix_seconds: float = 0.0


class StreamNow(msgspec.Struct, frozen=True, kw_only=True):
    """What of one stream counts at the moment: the model has seen nothing beyond it.

    Attributes:
        kind: what its shards are for: `train` or `evaluate`.
        splits: what its splits are.
    """

    stream: str
    kind: str
    splits: RowRanges
    positions: StreamPositions


class GetLedger(Message, frozen=True):
    """Ask for the lines behind line `after`, oldest first."""

    after: int = 0


class LedgerPage(Message, frozen=True):
    """Some lines. The last page has the `streams`, and the attempts that have not ended in `running`.

    Attributes:
        next: the `after` of the following page; 0: this is the last one.
    """

    attempts: list[Attempt]
    next: int = 0
    running: list[Attempt] = []
    streams: list[StreamNow] = []


class TimelineEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened: `seconds` on the job's clock, `cause` is empty where there is none to name.

    Attributes:
        is_fault: a pod, a process or the master was lost, or the job went back.
        cost: of a fault.
    """

    seconds: float
    unix_seconds: float
    what: str
    cause: str = ""
    is_fault: bool = False
    cost: FaultCost | None = None


class GetExplanation(Message, frozen=True):
    """Ask where the time went."""


class OwnPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a job's master decided itself, for the job's history; rounds of scaling write their plans themselves.

    Attributes:
        unix_seconds: when; `samples`: trained by then.
        plan_json: a `platform.scaling.types.Plan`.
        outcome: a ShapeOutcome; `reason`: why it is not done.
    """

    unix_seconds: float
    samples: int
    plan_json: bytes
    outcome: str = ""
    reason: str = ""


class Explanation(Message, frozen=True):
    """Where the time went, until now or until the job's end.

    Attributes:
        wall_seconds: since the job began; the sum of `parts`.
        parts: seconds by part, see `platform.master.measuring.time_profile.PARTS`.
        goodput: share of the wall time in which rows were trained that count; 0 to 1.
        omitted: entries of the timeline that are older than those given.
        migrations: of parameter servers, the oldest first.
        own_plans: the latest ones that the master made itself, the oldest first.
    """

    job: str
    phase: str
    wall_seconds: float
    parts: dict[str, float]
    goodput: float
    timeline: list[TimelineEntry]
    omitted: int = 0
    migrations: list[MigrationSeen] = []
    own_plans: list[OwnPlan] = []
