"""What observers ask a master about the past of a job: the ledger of what was trained, and where the time went.

A job may have millions of attempts, so they come in pages. Times are seconds on the job's own clock, which stands
still while no master runs; `unix_seconds` is the wall clock.
"""

from __future__ import annotations

import msgspec

from elastrec.platform.transport.job_messages import Message


class Attempt(msgspec.Struct, frozen=True, array_like=True):
    """One line of the ledger: rows `[row_begin, row_end)` of a shard, counted from its start, were trained.

    Where shards are shuffled, the numbers count in the shard's shuffled order.

    Attributes:
        kind: `train` or `evaluate`.
        outcome: `done`, `lost`, `rolled back`; `running` while the pod still has the shard, `unfinished`
            when the job ended before the attempt did.
        began, ended: on the job's clock; `unix_seconds` is when the end was written down.
    """

    kind: str
    generation: int
    epoch: int
    shard: int
    attempt: int
    pod: str
    row_begin: int
    row_end: int
    outcome: str
    began: float = 0.0
    ended: float = 0.0
    unix_seconds: float = 0.0


class QueueNow(msgspec.Struct, frozen=True, kw_only=True):
    """What of one kind of shards counts at the moment: the model has seen nothing beyond it.

    Attributes:
        rows, shard_rows: of the manifest, and of every shard but the last.
        shuffle, seed: of the order of shards and of the rows inside them.
        cursor: shards that were handed out and never taken back, in the seeded order, all epochs.
        begun: `(epoch · shards per epoch + shard, rows that count)` for those among them that are not done.
    """

    kind: str
    rows: int
    shard_rows: int
    shuffle: bool
    seed: int
    cursor: int
    begun: list[tuple[int, int]]


class GetLedger(Message, frozen=True):
    """Ask for the lines behind line `after`, oldest first."""

    after: int = 0


class LedgerPage(Message, frozen=True):
    """Some lines. The last page has the `queues`, and the attempts that have not ended in `running`.

    Attributes:
        next: the `after` of the following page; 0: this is the last one.
    """

    attempts: list[Attempt]
    next: int = 0
    running: list[Attempt] = []
    queues: list[QueueNow] = []


class TimelineEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened: `seconds` on the job's clock, `cause` is empty where there is none to name."""

    seconds: float
    unix_seconds: float
    what: str
    cause: str = ""


class GetExplanation(Message, frozen=True):
    """Ask where the time went."""


class Explanation(Message, frozen=True):
    """Where the time went, until now or until the job's end.

    Attributes:
        wall_seconds: since the job began; the sum of `parts`.
        parts: seconds by part, see `platform.master.time_book.PARTS`.
        goodput: share of the wall time in which rows were trained that count; 0 to 1.
        omitted: entries of the timeline that are older than those told.
    """

    job: str
    phase: str
    wall_seconds: float
    parts: dict[str, float]
    goodput: float
    timeline: list[TimelineEntry]
    omitted: int = 0
