"""The shard queue: which rows are to do, in whose hands, or done (AntDT §V-C, stateful dynamic data sharding).

K = ⌈rows / (batch size · batches per shard)⌉ shards per epoch, handed out in a seeded order; TODO → DOING → DONE.
DONE is never stored: whatever lies before the cursor and is neither leased nor returned is done, so memory does not
grow with finished shards. Pure: time is an argument, in seconds of the job's own clock.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from elastrec.platform.transport.job_messages import Shard, ShardProgress

_MASK = 2**64 - 1


class Lease(msgspec.Struct):
    """A shard in somebody's hands. `begin` is the offset at which this attempt began, `offset` the acknowledged one."""

    pod: str
    attempt: int
    begin: int
    offset: int
    granted: float = 0.0


class Returned(msgspec.Struct, array_like=True):
    """A shard that came back: rows before `offset` are trained; `attempt` of the last lease."""

    offset: int
    attempt: int


class Failures(msgspec.Struct, frozen=True, array_like=True):
    """Failures of one shard in a row, none of which got beyond `offset`."""

    count: int
    offset: int


class Positions(msgspec.Struct, frozen=True):
    """What is to do, as a checkpoint record keeps it: `[shard number, offset, last attempt]` for begun shards."""

    cursor: int
    begun: list[tuple[int, int, int]]


class Ended(msgspec.Struct, frozen=True):
    """How one attempt ended, for the ledger. Rows `begin` to `end` of the shard were trained by it.

    `granted` is when the attempt began, on the job's clock.
    """

    kind: str
    epoch: int
    index: int
    attempt: int
    pod: str
    begin: int
    end: int
    outcome: str  # done | lost | rolled back
    granted: float = 0.0


class Accepted(msgspec.Struct, frozen=True):
    """What one progress report changed: rows newly trained, and the attempt if it completed the shard."""

    rows: int
    completed: Ended | None = None


class Grant(msgspec.Struct):
    """The last request of a pod and the (shard number, attempt) pairs that it got."""

    request_id: str
    shards: list[tuple[int, int]]


class ShardQueue(msgspec.Struct, kw_only=True):
    """All shards of one manifest. A shard's number is epoch · K + index.

    Attributes:
        kind: `train` or `evaluate`; an evaluation shard begins at offset 0 again when it is lost.
        lease_seconds: a pod without any progress for this long loses its leases.
        keep_rows: shards that begin below this row are marked `keep_predictions`.
        samples: rows trained, repeats counted; it survives rollbacks.
        failures: by shard number, for shards that failed and are not done.
        deadlines: when each lease-holding pod must have shown progress.
    """

    kind: str
    rows: int
    shard_rows: int
    lease_seconds: float
    epochs: int = 1
    shuffle: bool = False
    seed: int = 0
    keep_rows: int = 0
    cursor: int = 0
    doing: dict[int, Lease] = {}
    returned: dict[int, Returned] = {}
    failures: dict[int, Failures] = {}
    deadlines: dict[str, float] = {}
    held: dict[str, int] = {}
    grants: dict[str, Grant] = {}
    samples: int = 0
    leases: int = 0
    repeats: int = 0

    @property
    def per_epoch(self) -> int:
        """K of AntDT §V-C."""
        return -(-self.rows // self.shard_rows)

    @property
    def total(self) -> int:
        return self.per_epoch * self.epochs

    @property
    def done(self) -> int:
        return self.cursor - len(self.doing) - len(self.returned)

    @property
    def is_done(self) -> bool:
        return not self.doing and not self.returned and self.cursor == self.total

    def lease(self, pod: str, request_id: str, count: int, time: float) -> list[Shard]:
        """Up to `count` shards for a pod; an equal request id gets what is still held of the same ones again.

        Empty when nothing is left to hand out (see `is_done` for whether some may come back).
        """
        last = self.grants.get(pod)
        if last is not None and last.request_id == request_id:
            return [
                self._shard(number, lease)
                for number, attempt in last.shards
                if (lease := self.doing.get(number)) is not None and lease.pod == pod and lease.attempt == attempt
            ]
        granted: list[Shard] = []
        pairs: list[tuple[int, int]] = []
        while len(granted) < count and (number := self._next()) is not None:
            back = self.returned.pop(number, None)
            self.repeats += back is not None
            back = back or Returned(0, 0)
            lease = Lease(pod, back.attempt + 1, back.offset, back.offset, time)
            self.doing[number] = lease
            granted.append(self._shard(number, lease))
            pairs.append((number, lease.attempt))
        if granted:
            self.leases += len(granted)
            self.held[pod] = self.held.get(pod, 0) + len(granted)
            self.deadlines[pod] = time + self.lease_seconds
            self.grants[pod] = Grant(request_id, pairs)
        return granted

    def would_change(self, pod: str, request_id: str) -> bool:
        """Whether `lease` would hand out anything new."""
        last = self.grants.get(pod)
        repeated = last is not None and last.request_id == request_id
        return not repeated and (bool(self.returned) or self.cursor < self.total)

    def is_news(self, pod: str, progress: ShardProgress) -> bool:
        """Whether a report would be accepted; reports of attempts that ended, and repeated ones, are void."""
        lease = self.doing.get(progress.epoch * self.per_epoch + progress.index)
        return (
            lease is not None
            and progress.index < self.per_epoch
            and lease.pod == pod
            and lease.attempt == progress.attempt
            and lease.offset < progress.offset <= self._length(progress.index)
        )

    def advance(self, pod: str, progress: ShardProgress, time: float) -> Accepted:
        """Takes a progress report over; extends all leases of the pod. A void report changes nothing."""
        if not self.is_news(pod, progress):
            return Accepted(0)
        number = progress.epoch * self.per_epoch + progress.index
        lease = self.doing[number]
        rows = progress.offset - lease.offset
        lease.offset = progress.offset
        self.samples += rows
        self.deadlines[pod] = time + self.lease_seconds
        if lease.offset < self._length(progress.index):
            return Accepted(rows)
        ended = self._end(number, "done")
        self.failures.pop(number, None)
        return Accepted(rows, ended)

    def lose(self, pod: str, *, blame: bool, culprit: int | None = None, outcome: str = "lost") -> list[Ended]:
        """Takes all shards of a pod back, to the end of the queue, with their acknowledged offsets.

        Args:
            blame: count a failure against the shard that the pod was working on. Failures before a worker got
                further with that shard do not count any more.
            culprit: that shard's number where the pod named it; else the oldest of its leases.
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
            offset = 0 if self.kind == "evaluate" else lease.offset
            self.returned[number] = Returned(offset, lease.attempt)
        self.grants.pop(pod, None)
        return ended

    def late(self, time: float) -> list[str]:
        """Pods that hold shards and showed no progress until their deadline."""
        return [pod for pod, deadline in self.deadlines.items() if deadline <= time]

    def rearm(self, time: float) -> None:
        """Gives every lease its full time again, after a pause that was not the workers' fault."""
        self.deadlines = dict.fromkeys(self.deadlines, time + self.lease_seconds)

    def poison(self, attempts: int) -> int | None:
        """The number of a shard that failed `attempts` times or more in a row without getting further."""
        return next((number for number, failures in self.failures.items() if failures.count >= attempts), None)

    def positions(self) -> Positions:
        """What a checkpoint record keeps: leased shards count as to do from their acknowledged offset."""
        begun = [(number, lease.offset, lease.attempt) for number, lease in self.doing.items()]
        begun += [(number, back.offset, back.attempt) for number, back in self.returned.items()]
        return Positions(self.cursor, begun)

    def restore(self, positions: Positions | None) -> list[Ended]:
        """Back to a record's positions, or to the beginning; all leases are void, failures stay counted."""
        ended = [self._end(number, "rolled back") for number in list(self.doing)]
        self.cursor = positions.cursor if positions else 0
        begun = positions.begun if positions else []
        self.returned = {number: Returned(offset, attempt) for number, offset, attempt in begun}
        # Rows up to the old offset are to be trained again: getting through them is progress.
        self.failures = {
            number: Failures(failures.count, self.returned[number].offset if number in self.returned else 0)
            for number, failures in self.failures.items()
        }
        self.grants.clear()
        return ended

    def locate(self, number: int) -> tuple[int, int, int, int]:
        """Epoch, index, first row and length of a shard."""
        epoch, index = divmod(number, self.per_epoch)
        return epoch, index, index * self.shard_rows, self._length(index)

    def covered_rows(self) -> int:
        """Rows that were trained at least once, all epochs; what was rolled back does not count."""
        if not self.rows:
            return 0
        epochs, place = divmod(self.cursor, self.per_epoch)
        covered = epochs * self.rows + (self._rows_before(epochs, place) if place else 0)
        offsets = {number: lease.offset for number, lease in self.doing.items()}
        offsets |= {number: back.offset for number, back in self.returned.items()}
        return covered - sum(self.locate(number)[3] - offset for number, offset in offsets.items())

    def _rows_before(self, epoch: int, place: int) -> int:
        """Rows of the first `place` shards in the order of an epoch; only the last shard is shorter than the others."""
        last = self.per_epoch - 1
        where = int(np.flatnonzero(shard_order(self.seed, epoch, self.per_epoch) == last)[0]) if self.shuffle else last
        return place * self.shard_rows - (self.shard_rows - self._length(last) if where < place else 0)

    def _next(self) -> int | None:
        # A new epoch begins when the shards that came back are out again.
        if self.cursor == self.total or (self.cursor % self.per_epoch == 0 and self.returned):
            return next(iter(self.returned), None)
        epoch, place = divmod(self.cursor, self.per_epoch)
        index = int(shard_order(self.seed, epoch, self.per_epoch)[place]) if self.shuffle else place
        self.cursor += 1
        return epoch * self.per_epoch + index

    def _end(self, number: int, outcome: str) -> Ended:
        lease = self.doing.pop(number)
        left = self.held[lease.pod] - 1
        if left:
            self.held[lease.pod] = left
        else:
            del self.held[lease.pod]
            self.deadlines.pop(lease.pod, None)
        epoch, index = divmod(number, self.per_epoch)
        return Ended(
            self.kind, epoch, index, lease.attempt, lease.pod, lease.begin, lease.offset, outcome, lease.granted
        )

    def _length(self, index: int) -> int:
        return min(self.shard_rows, self.rows - index * self.shard_rows)

    def _shard(self, number: int, lease: Lease) -> Shard:
        epoch, index, start, length = self.locate(number)
        return Shard(
            kind=self.kind,
            epoch=epoch,
            index=index,
            start=start,
            length=length,
            offset=lease.begin,
            attempt=lease.attempt,
            seed=shard_seed(self.seed, epoch, index),
            shuffle=self.shuffle,
            keep_predictions=start < self.keep_rows,
        )


def shard_seed(seed: int, epoch: int, index: int) -> int:
    """A 63-bit seed of the shuffle inside a shard, from job seed, epoch and index alone (splitmix64 finaliser)."""
    z = (seed * 0x9E3779B97F4A7C15 + epoch * 0xBF58476D1CE4E5B9 + index + 1) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return (z ^ (z >> 31)) >> 1


@lru_cache(maxsize=4)
def shard_order(seed: int, epoch: int, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The order in which a shuffled epoch hands its shards out."""
    return np.random.Generator(np.random.PCG64([seed, epoch])).permutation(count)
