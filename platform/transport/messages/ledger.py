"""Requests of observers about the past of a job: the ledger of trained rows, and where the time went.

A job may have millions of attempts, so they are sent in pages. Times are seconds on the job's own clock, which does not
advance while no master runs; `unix_seconds` is the wall clock.
"""

from __future__ import annotations

import msgspec

from elastrec.platform.specs.metrics import FaultCost
from elastrec.platform.specs.row_ranges import RowRanges
from elastrec.platform.specs.shape import MigrationSeen, Shape
from elastrec.platform.specs.splits import StreamPositions
from elastrec.platform.transport.messages.job import Message


class Attempt(msgspec.Struct, frozen=True, array_like=True):
    """One line of the ledger: rows `[row_begin, row_end)` of a split, counted from its start, were trained.

    Rows are counted in reading order, which is the shuffled order if splits are shuffled.

    Attributes:
        stream, number: of the split.
        outcome: `done`, `lost`, `given back` (by a worker that was ordered to be idle), `rolled back`; `running` while
            the pod still has the shard, `unfinished` when the job ended before the attempt did.
        began, ended: on the job's clock; `unix_seconds` is when the end was journalled.
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
    """The present positions of one stream: all rows that are in the model.

    Attributes:
        kind: `train` or `evaluate`.
        splits: of the stream.
    """

    stream: str
    kind: str
    splits: RowRanges
    positions: StreamPositions


class GetLedger(Message, frozen=True):
    """Requests the lines after line `after`, oldest first."""

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
    """An event in words: `seconds` on the job's clock; `cause` is empty if there is none.

    Attributes:
        decision: its name in the journal; empty in explanations of earlier versions.
        is_fault: whether a pod, a process or the master was lost, or the job rolled back.
        cost: of a fault.
    """

    seconds: float
    unix_seconds: float
    what: str
    cause: str = ""
    is_fault: bool = False
    cost: FaultCost | None = None
    decision: str = ""


class GetExplanation(Message, frozen=True):
    """Requests the explanation of the job."""


class OwnPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A decision of the job's master itself, for the job's history; rounds of scaling write their own plans.

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
    """Where the time went, up to now or to the job's end.

    Attributes:
        wall_seconds: since the job began, without the time in which it had no master; the sum of `parts`.
        earlier_seconds: the time in `parts` of masters before the job was resumed, as far as they have left it: of one
            that was killed, until its last record. None: the job was resumed, and the time before is unknown.
        parts: seconds by part, see `platform.master.measuring.time_profile.PARTS`.
        goodput: share of the wall time in which rows were trained that are in the model; 0 to 1.
        omitted: number of older entries of the timeline that are left out.
        earlier_problem: why the events of earlier masters cannot be read; empty if they are there or there are none.
        migrations: of parameter servers, the oldest first.
        own_plans: the latest plans of the master itself, the oldest first.
        shape: the latest shape of the job, without changes that it had not got when it ended; None in explanations of
            earlier versions. shape_changes: how often it changed; a change that is given up counts twice.
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
    shape: Shape | None = None
    shape_changes: int = 0
    earlier_seconds: float | None = 0.0
    earlier_problem: str = ""

    @property
    def coverage(self) -> str:
        """Which part of the job the figures of its time cover, for people; empty if it was not resumed."""
        if self.earlier_seconds is None:
            return "of the time since the job was resumed; the time before is unknown"
        if not self.earlier_seconds:
            return ""
        seconds = f"{self.earlier_seconds:.1f} s of this were before the job was resumed"
        return f"{seconds} (of a master that was killed, the time until its last record)"
