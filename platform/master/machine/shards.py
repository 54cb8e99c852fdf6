"""The shard queue: the splits of a stream that are to do, leased, or done (AntDT §V-C, stateful dynamic sharding).

Splits are handed out in their stream's order; TODO → DOING → DONE. DONE is not stored: a split before the cursor that
is neither leased nor returned is done, so memory does not grow with finished splits. Pure: time is an argument, in
seconds of the job's own clock.
"""

from __future__ import annotations

import msgspec

from elastrec.platform.specs.row_ranges import RowRanges
from elastrec.platform.specs.splits import Begun, Split, StreamPositions
from elastrec.platform.transport.messages.job import Shard, ShardProgress


class Lease(msgspec.Struct):
    """A split that is leased to a worker.

    Attributes:
        begin: the offset at which this attempt began; `offset` is the acknowledged one, `position` the same in the form
            of the source.
        bad_rows: bad rows between these two offsets.
    """

    pod: str
    attempt: int
    begin: int
    offset: int
    granted: float = 0.0
    position: bytes = b""
    bad_rows: int = 0


class Returned(msgspec.Struct, array_like=True):
    """A returned split: rows before `offset` are trained; `attempt` is that of the last lease."""

    offset: int
    attempt: int
    position: bytes = b""


class Failures(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive failures of one split, none of which got beyond `offset`."""

    count: int
    offset: int


class Ended(msgspec.Struct, frozen=True):
    """How one attempt ended, for the ledger. Rows `begin` to `end` of the split were trained by it.

    `granted` is when the attempt began, on the job's clock.
    """

    stream: str
    number: int
    attempt: int
    pod: str
    begin: int
    end: int
    outcome: str  # done | lost | given back | rolled back
    granted: float = 0.0


class Accepted(msgspec.Struct, frozen=True):
    """The result of a progress report: newly trained rows, and the attempt if it completed the shard."""

    rows: int
    completed: Ended | None = None


class Grant(msgspec.Struct):
    """The last request of a pod and the (shard number, attempt) pairs that it got."""

    request_id: str
    shards: list[tuple[int, int]]


class ShardQueue(msgspec.Struct, kw_only=True):
    """All splits of one stream, by their numbers.

    Attributes:
        kind: `train` or `evaluate`; an evaluation split begins at offset 0 again when it is lost.
        splits: the splits in their order.
        lease_seconds: a pod without progress for this long loses its leases.
        keep_rows: splits that begin below this row are marked `keep_predictions`.
        samples: rows trained, including repeats; not reset by rollbacks.
        bad_rows: different bad rows among the acknowledged ones: later epochs have the rows of the first one again.
        failures: of splits that failed and are not done.
        deadlines: until when each pod with leases must show progress.
    """

    stream: str
    kind: str
    splits: RowRanges
    lease_seconds: float
    keep_rows: int = 0
    cursor: int = 0
    doing: dict[int, Lease] = {}
    returned: dict[int, Returned] = {}
    failures: dict[int, Failures] = {}
    deadlines: dict[str, float] = {}
    held: dict[str, int] = {}
    grants: dict[str, Grant] = {}
    samples: int = 0
    bad_rows: int = 0
    leases: int = 0
    repeats: int = 0

    @property
    def total(self) -> int:
        return self.splits.total

    @property
    def done(self) -> int:
        return self.cursor - len(self.doing) - len(self.returned)

    @property
    def is_done(self) -> bool:
        return not self.doing and not self.returned and self.cursor == self.total

    def lease(self, pod: str, request_id: str, count: int, time: float) -> list[Shard]:
        """Leases up to `count` shards to a pod; a repeated request id gets those of the same shards that are still
        leased.

        Empty if nothing is left to hand out (`is_done` tells whether some may be returned).
        """
        if self.is_repeated(pod, request_id):
            return [
                self._shard(number, lease)
                for number, attempt in self.grants[pod].shards
                if (lease := self.doing.get(number)) is not None and lease.pod == pod and lease.attempt == attempt
            ]
        granted: list[Shard] = []
        pairs: list[tuple[int, int]] = []
        while len(granted) < count and (number := self._next()) is not None:
            back = self.returned.pop(number, None)
            self.repeats += back is not None
            back = back or Returned(0, 0)
            lease = Lease(pod, back.attempt + 1, back.offset, back.offset, time, back.position)
            self.doing[number] = lease
            granted.append(self._shard(number, lease))
            pairs.append((number, lease.attempt))
        if granted:
            self.leases += len(granted)
            self.held[pod] = self.held.get(pod, 0) + len(granted)
            self.deadlines[pod] = time + self.lease_seconds
            self.grants[pod] = Grant(request_id, pairs)
        return granted

    def is_repeated(self, pod: str, request_id: str) -> bool:
        """Whether a request repeats the pod's last request that got shards."""
        last = self.grants.get(pod)
        return last is not None and last.request_id == request_id

    def would_change(self, pod: str, request_id: str) -> bool:
        """Whether `lease` would hand out new shards."""
        return not self.is_repeated(pod, request_id) and (bool(self.returned) or self.cursor < self.total)

    def changes_state(self, pod: str, progress: ShardProgress) -> bool:
        """Whether a report would be accepted; reports of attempts that ended, and repeated ones, are void."""
        lease = self.doing.get(progress.number)
        return (
            lease is not None
            and lease.pod == pod
            and lease.attempt == progress.attempt
            and self._gets_further(lease, progress)
        )

    def _gets_further(self, lease: Lease, progress: ShardProgress) -> bool:
        rows = self.splits.rows_of(progress.number)
        if progress.ended:
            return lease.offset <= progress.offset if rows is None else progress.offset == rows
        return lease.offset < progress.offset and (rows is None or progress.offset < rows)

    def advance(self, pod: str, progress: ShardProgress, time: float) -> Accepted:
        """Takes a progress report; extends all leases of the pod. A void report changes nothing."""
        if not self.changes_state(pod, progress):
            return Accepted(0)
        lease = self.doing[progress.number]
        rows = progress.offset - lease.offset
        lease.offset, lease.position = progress.offset, progress.position
        self.samples += rows
        if progress.bad_rows and self.splits.range(progress.number).epoch == 0:
            self.bad_rows += progress.bad_rows - lease.bad_rows
            lease.bad_rows = progress.bad_rows
        self.deadlines[pod] = time + self.lease_seconds
        if not progress.ended:
            return Accepted(rows)
        ended = self._end(progress.number, "done")
        self.failures.pop(progress.number, None)
        return Accepted(rows, ended)

    def lose(self, pod: str, *, blame: bool, culprit: int | None = None, outcome: str = "lost") -> list[Ended]:
        """Takes all shards of a pod back, to the end of the queue, with their acknowledged offsets.

        Args:
            blame: whether to count a failure of the shard on which the pod was working. Failures before the last
                progress in that shard do not count any more.
            culprit: number of that shard, if the pod named it; otherwise the oldest of its leases.
        """
        numbers = [number for number, lease in self.doing.items() if lease.pod == pod] if pod in self.held else []
        if blame and numbers:
            guilty = culprit if culprit in numbers else numbers[0]
            offset = self.doing[guilty].offset
            before = self.failures.get(guilty)
            if before is None or offset > before.offset:
                self.failures[guilty] = Failures(1, offset)
            else:
                self.failures[guilty] = Failures(before.count + 1, before.offset)
        ended = []
        for number in numbers:
            lease = self.doing[number]
            ended.append(self._end(number, outcome))
            if self.kind == "evaluate":  # it begins anew
                self.returned[number] = Returned(0, lease.attempt)
                self.bad_rows -= lease.bad_rows
            else:
                self.returned[number] = Returned(lease.offset, lease.attempt, lease.position)
        self.grants.pop(pod, None)
        return ended

    def late(self, time: float) -> list[str]:
        """Pods with leases that showed no progress before their deadline."""
        return [pod for pod, deadline in self.deadlines.items() if deadline <= time]

    def rearm(self, time: float) -> None:
        """Restarts the time of every lease, after a time in which training was not possible."""
        self.deadlines = dict.fromkeys(self.deadlines, time + self.lease_seconds)

    def resume(self, time: float, paused_seconds: float) -> None:
        """Excludes a pause from the time of every lease.

        If pauses restarted the whole time, leases without progress would not end while there are frequent pauses.
        """
        latest = time + self.lease_seconds
        self.deadlines = {pod: min(deadline + paused_seconds, latest) for pod, deadline in self.deadlines.items()}

    def poison(self, attempts: int) -> int | None:
        """The number of a shard that failed `attempts` times or more in a row without progress."""
        return next((number for number, failures in self.failures.items() if failures.count >= attempts), None)

    def positions(self) -> StreamPositions:
        """The positions for a checkpoint record; leased splits count as returned at their acknowledged offset."""
        begun = [Begun(number, lease.offset, lease.attempt, lease.position) for number, lease in self.doing.items()]
        begun += [Begun(number, back.offset, back.attempt, back.position) for number, back in self.returned.items()]
        return StreamPositions(self.cursor, begun, self.bad_rows)

    def restore(self, positions: StreamPositions | None) -> list[Ended]:
        """Returns to a record's positions, or to the beginning; all leases become void, failures still count."""
        ended = [self._end(number, "rolled back") for number in list(self.doing)]
        self.cursor = positions.cursor if positions else 0
        self.bad_rows = positions.bad_rows if positions else 0
        begun = positions.begun if positions else []
        self.returned = {shard.number: Returned(shard.offset, shard.attempt, shard.position) for shard in begun}
        # Rows up to the old offset are trained again, which counts as progress.
        self.failures = {
            number: Failures(failures.count, self.returned[number].offset if number in self.returned else 0)
            for number, failures in self.failures.items()
        }
        self.grants.clear()
        return ended

    def covered_rows(self) -> int:
        """Rows that were trained at least once, all epochs, without those that were rolled back."""
        return self.splits.covered_rows(self.positions())

    def split(self, number: int) -> Split:
        return Split(
            stream=self.stream, number=number, rows=self.splits.rows_of(number), range=self.splits.range(number)
        )

    def _next(self) -> int | None:
        # A new epoch begins when all returned splits have been handed out again.
        if self.cursor == self.total or (self.returned and self.splits.begins_epoch(self.cursor)):
            return next(iter(self.returned), None)
        self.cursor += 1
        return self.splits.number_at(self.cursor - 1)

    def _end(self, number: int, outcome: str) -> Ended:
        lease = self.doing.pop(number)
        left = self.held[lease.pod] - 1
        if left:
            self.held[lease.pod] = left
        else:
            del self.held[lease.pod]
            self.deadlines.pop(lease.pod, None)
        return Ended(self.stream, number, lease.attempt, lease.pod, lease.begin, lease.offset, outcome, lease.granted)

    def _shard(self, number: int, lease: Lease) -> Shard:
        split = self.split(number)
        return Shard(
            kind=self.kind,
            split=split,
            offset=lease.offset,
            position=lease.position,
            attempt=lease.attempt,
            keep_predictions=split.range.start < self.keep_rows,
        )
