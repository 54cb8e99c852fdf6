"""Shards in, minibatches out: leases shards and reads ahead on a thread of its own, so that the loop rarely waits.

A feed lives for one kind of shard and one generation. Minibatches whose steps were lost are given back to it, and come
again before all others.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from elastrec.platform.data.source import Minibatch
from elastrec.platform.transport.job_messages import Leased, LeaseState, Shard, ShardProgress

_READ_AHEAD = 4
_TICK_SECONDS = 0.1


@dataclass(frozen=True)
class Item:
    """One minibatch of one shard.

    Attributes:
        progress: what to report of the shard once these rows are trained.
    """

    shard: Shard
    batch: pa.RecordBatch
    progress: ShardProgress


class Waiting:
    """The master has no shard for now; some may come back from others."""


class Finished:
    """No shard of this kind will come any more."""


class FeedError(Exception):
    """Reading a shard failed; the cause is the error, `progress` tells where."""

    def __init__(self, progress: ShardProgress) -> None:
        super().__init__(f"{progress.stream} shard {progress.number} failed after row {progress.offset}")
        self.progress = progress


Entry = Item | Waiting | Finished | BaseException


class Feed:
    """Minibatches of leased shards, in the order of the leases.

    Args:
        lease: asks the master for `count` shards; None when cancelled meanwhile (see Session.lease).
        read: minibatches of a shard from its offset on.
    """

    def __init__(
        self,
        lease: Callable[[int, Callable[[], bool]], Leased | None],
        read: Callable[[Shard], Iterator[Minibatch]],
    ) -> None:
        self._lease = lease
        self._read = read
        self._entries: queue.Queue[Entry] = queue.Queue(_READ_AHEAD)
        self._given_back: deque[Item] = deque()
        self._end: Finished | BaseException | None = None
        self._cancelled = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)
        self._thread.start()

    def next(self, timeout_seconds: float) -> Item | Waiting | Finished | None:
        """The next minibatch; None when there is none within the time. After Finished, or an error, come more of it.

        Raises:
            FeedError: a shard could not be read.
            TransportError: the master refuses this pod.
        """
        if self._given_back:
            return self._given_back.popleft()
        try:
            entry = self._end or self._entries.get(timeout=timeout_seconds)
        except queue.Empty:
            return None
        if isinstance(entry, Finished | BaseException):
            self._end = entry
        if isinstance(entry, BaseException):
            raise entry
        return entry

    def give_back(self, items: Sequence[Item]) -> None:
        """Minibatches that came from `next`, in their order: they come again."""
        self._given_back.extendleft(reversed(items))

    def close(self) -> None:
        """Ends the thread."""
        self._cancelled.set()
        while self._thread.is_alive():
            # The thread may be waiting for room in the queue.
            while not self._entries.empty():
                self._entries.get_nowait()
            self._thread.join(0.02)

    def _put(self, entry: Entry) -> None:
        while not self._cancelled.is_set():
            try:
                self._entries.put(entry, timeout=_TICK_SECONDS)
                return
            except queue.Full:
                continue

    def _run(self) -> None:
        cancelled = self._cancelled
        try:
            while not cancelled.is_set():
                leased = self._lease(1, cancelled.is_set)
                if leased is None:
                    return
                for shard in leased.shards:
                    self._read_shard(shard)
                if leased.state is LeaseState.DONE:
                    self._put(Finished())
                    return
                if leased.state in (LeaseState.WAIT, LeaseState.STALE):
                    self._put(Waiting())
                    cancelled.wait(leased.wait_seconds or _TICK_SECONDS)
        except BaseException as error:  # every failure belongs to the loop, which knows what to do with it
            self._put(error)

    def _read_shard(self, shard: Shard) -> None:
        progress = shard.progress(shard.offset, ended=False, position=shard.position)
        try:
            for found in self._read(shard):
                progress = shard.progress(found.end_offset, ended=found.ends_split, position=found.position)
                self._put(Item(shard, found.batch, progress))
                if self._cancelled.is_set():
                    return
        except Exception as error:
            raise FeedError(progress) from error
