"""Converts shards to minibatches: leases shards and reads ahead in a separate thread, so that the loop rarely waits.

A feed is for one kind of shard and one generation. Minibatches whose steps were lost are given back, and are returned
again before all others. Another size applies from the next minibatch on: minibatches that were read ahead are read
again after the last one that was taken, so that each row is returned once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from elastrec.platform.data.reading.batches import JaggedIds, Minibatch
from elastrec.platform.transport.messages.job import Leased, LeaseState, Shard, ShardProgress

_READ_AHEAD = 4
_TICK_SECONDS = 0.1

Read = Callable[[Shard, ShardProgress, int], Iterator[Minibatch]]
"""Reads the minibatches of a shard after a position, with a given number of rows."""


@dataclass(frozen=True)
class Item:
    """One minibatch of one shard.

    Attributes:
        progress: the report about the shard after these rows are trained.
        before: the same for the minibatch before.
        ids: `ids_of(batch)`, if the reader already has them.
    """

    shard: Shard
    batch: pa.RecordBatch
    progress: ShardProgress
    before: ShardProgress
    ids: JaggedIds | None = None


class Waiting:
    """The master has no shard at present; other workers may still return some."""


class Finished:
    """There are no more shards of this kind."""


class FeedError(Exception):
    """Reading a shard failed; the cause is the error, and `progress` the position."""

    def __init__(self, progress: ShardProgress) -> None:
        super().__init__(f"{progress.stream} shard {progress.number} failed after row {progress.offset}")
        self.progress = progress


Entry = Item | Waiting | Finished | BaseException


@dataclass
class _Lease:
    """A shard whose minibatches were not all taken.

    Attributes:
        taken: the position up to which minibatches were taken.
        is_read: whether the thread has read it, or is reading it.
    """

    shard: Shard
    taken: ShardProgress
    is_read: bool = False


class Feed:
    """Minibatches of leased shards, in the order of the leases.

    Args:
        lease: requests `count` shards from the master; None if it was cancelled meanwhile (see Session.lease).
        batch_size: rows of a minibatch, until `resize`.
    """

    def __init__(self, lease: Callable[[int, Callable[[], bool]], Leased | None], read: Read, batch_size: int) -> None:
        self._lease = lease
        self._read = read
        self._batch_size = batch_size
        self._changed = threading.Condition()
        self._entries: deque[Entry] = deque()
        self._leases: deque[_Lease] = deque()
        self._given_back: deque[Item] = deque()
        self._end: Finished | BaseException | None = None
        self._reading = 0  # increases with every change of size: minibatches that were read before are discarded
        self._is_cancelled = False
        self._is_done = False  # whether the master has no more shards
        self._announced = -1  # the reading whose end is among the entries
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)
        self._thread.start()

    @property
    def batch_size(self) -> int:
        """Rows of the next minibatches; those at the end of a shard may have fewer."""
        return self._batch_size

    def peek(self, timeout_seconds: float) -> Entry | None:
        """What `next` would return or raise now; None if there is nothing within the given time."""
        with self._changed:
            if self._given_back:
                return self._given_back[0]
            if self._end is not None:
                return self._end
            self._changed.wait_for(lambda: self._entries, timeout_seconds)
            return self._entries[0] if self._entries else None

    def next(self, timeout_seconds: float) -> Item | Waiting | Finished | None:
        """The next minibatch; None if there is none within the given time. Finished and errors are repeated.

        Raises:
            FeedError: a shard could not be read.
            TransportError: the master refuses this pod.
        """
        with self._changed:
            entry = self.peek(timeout_seconds)
            if isinstance(entry, Finished | BaseException):
                self._end = entry
            if isinstance(entry, BaseException):
                raise entry
            if self._given_back:
                self._given_back.popleft()
            elif self._entries:
                self._entries.popleft()
                self._changed.notify_all()
            if isinstance(entry, Item):
                self._take(entry)
            return entry

    def _take(self, item: Item) -> None:
        lease = self._leases[0]
        lease.taken = item.progress
        if item.progress.ended:
            self._leases.popleft()

    def give_back(self, items: Sequence[Item]) -> None:
        """Gives back the last minibatches from `next`, in their order; they are returned again."""
        with self._changed:
            for item in reversed(items):
                self._given_back.appendleft(item)
                if not self._leases or self._leases[0].shard is not item.shard:
                    self._leases.appendleft(_Lease(item.shard, item.progress, is_read=True))
                self._leases[0].taken = item.before
            self._changed.notify_all()

    def resize(self, batch_size: int) -> None:
        """Sets the number of rows from the next minibatch on."""
        with self._changed:
            if batch_size == self._batch_size:
                return
            self._batch_size = batch_size
            self._reading += 1
            self._entries.clear()
            self._given_back.clear()
            for lease in self._leases:
                lease.is_read = False
            if isinstance(self._end, Finished) and self._leases:
                self._end = None
            self._changed.notify_all()

    def close(self) -> None:
        """Ends the thread."""
        with self._changed:
            self._is_cancelled = True
            self._changed.notify_all()
        self._thread.join()

    def _cancelled(self) -> bool:
        return self._is_cancelled

    def _put(self, entry: Entry, reading: int) -> bool:
        """Waits for room; returns False if the entry does not count any more."""

        def is_void() -> bool:
            return self._is_cancelled or reading != self._reading

        with self._changed:
            self._changed.wait_for(lambda: is_void() or len(self._entries) < _READ_AHEAD)
            if not is_void():
                self._entries.append(entry)
                self._changed.notify_all()
            return not is_void()

    def _run(self) -> None:
        while not self._is_cancelled:
            try:
                self._go_on()
            except BaseException as error:  # every failure is passed to the loop, which handles it
                reading = self._reading
                if self._put(error, reading):
                    # Another size discards the error together with the minibatches before it: it must happen again.
                    self._wait_for_work(reading, None)

    def _go_on(self) -> None:
        """Reads leases that are not read yet, then leases another shard or puts the end."""
        reading = self._read_leases()
        if not self._is_done:
            leased = self._lease(1, self._cancelled)
            if leased is None:
                return
            with self._changed:
                self._leases.extend(_Lease(shard, _begin_of(shard)) for shard in leased.shards)
            reading = self._read_leases()
            self._is_done = leased.state is LeaseState.DONE
            if leased.state in (LeaseState.WAIT, LeaseState.STALE):
                self._put(Waiting(), reading)
                self._wait_for_work(reading, leased.wait_seconds or _TICK_SECONDS)
        elif self._announced == reading:
            self._wait_for_work(reading, None)
        elif self._put(Finished(), reading):
            self._announced = reading

    def _wait_for_work(self, reading: int, timeout_seconds: float | None) -> None:
        """Returns early if leases must be read again, or the feed is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_cancelled or reading != self._reading, timeout_seconds)

    def _read_leases(self) -> int:
        """Reads leases that are not read yet; returns the number of the reading."""
        while True:
            with self._changed:
                reading = self._reading
                lease = next((lease for lease in self._leases if not lease.is_read), None)
                if lease is None or self._is_cancelled:
                    return reading
                lease.is_read = True
                taken, batch_size = lease.taken, self._batch_size
            self._read_shard(lease.shard, taken, batch_size, reading)

    def _read_shard(self, shard: Shard, progress: ShardProgress, batch_size: int, reading: int) -> None:
        try:
            for found in self._read(shard, progress, batch_size):
                before = progress
                left_out = found.end_offset - before.offset - found.batch.num_rows
                progress = shard.progress(
                    found.end_offset,
                    ended=found.ends_split,
                    position=found.position,
                    bad_rows=before.bad_rows + left_out,
                )
                if not self._put(Item(shard, found.batch, progress, before, found.ids), reading):
                    return
        except Exception as error:
            if reading == self._reading:  # else it is read again
                raise FeedError(progress) from error


def _begin_of(shard: Shard) -> ShardProgress:
    return shard.progress(shard.offset, ended=False, position=shard.position)
