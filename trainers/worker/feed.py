"""Shards in, minibatches out: leases shards and reads ahead on a thread of its own, so that the loop rarely waits.

A feed lives for one kind of shard and one generation. It knows how far each of its shards is *acknowledged*; a
rewound feed begins there again, which is what the loop does when a step was lost.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec
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
        turn: the feed's rewind count when it was read.
    """

    shard: Shard
    batch: pa.RecordBatch
    progress: ShardProgress
    turn: int


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
        self._entries: queue.Queue[tuple[int, Entry]] = queue.Queue(_READ_AHEAD)
        self._held: dict[tuple[str, int], Shard] = {}
        self._lock = threading.Lock()
        self._turn = 0
        self._closed = False
        self._thread: threading.Thread | None = None
        self._start()

    def next(self, timeout_seconds: float) -> Item | Waiting | Finished | None:
        """The next minibatch; None when there is none within the time.

        Raises:
            FeedError: a shard could not be read.
            TransportError: the master refuses this pod.
        """
        try:
            turn, entry = self._entries.get(timeout=timeout_seconds)
        except queue.Empty:
            return None
        if turn != self._turn:
            return None
        if isinstance(entry, BaseException):
            raise entry
        return entry

    def acknowledge(self, progress: ShardProgress) -> None:
        """Rows up to a report's offset need not be read again; a shard that has ended is let go."""
        key = (progress.stream, progress.number)
        with self._lock:
            held = self._held.get(key)
            if held is None:
                return
            if progress.ended:
                del self._held[key]
            else:
                self._held[key] = msgspec.structs.replace(held, offset=progress.offset, position=progress.position)

    def rewind(self) -> None:
        """Drops everything read ahead and begins again at the acknowledged offsets of the shards held."""
        self._stop_thread()
        self._turn += 1
        self._start()

    def close(self) -> None:
        """Ends the thread; the shards held are forgotten."""
        self._closed = True
        self._stop_thread()

    def _start(self) -> None:
        turn = self._turn
        self._cancelled = cancelled = threading.Event()
        with self._lock:
            backlog = list(self._held.values())
        self._thread = threading.Thread(target=self._run, args=(turn, cancelled, backlog), name="feed", daemon=True)
        self._thread.start()

    def _stop_thread(self) -> None:
        self._cancelled.set()
        while self._thread is not None and self._thread.is_alive():
            # The thread may be waiting for room in the queue.
            while not self._entries.empty():
                self._entries.get_nowait()
            self._thread.join(0.02)
        while not self._entries.empty():
            self._entries.get_nowait()

    def _run(self, turn: int, cancelled: threading.Event, backlog: list[Shard]) -> None:
        def put(entry: Entry) -> None:
            while not cancelled.is_set():
                try:
                    self._entries.put((turn, entry), timeout=_TICK_SECONDS)
                    return
                except queue.Full:
                    continue

        try:
            for shard in backlog:
                self._read_shard(shard, turn, put, cancelled)
            while not cancelled.is_set():
                leased = self._lease(1, cancelled.is_set)
                if leased is None:
                    return
                with self._lock:
                    self._held.update({(shard.split.stream, shard.split.number): shard for shard in leased.shards})
                for shard in leased.shards:
                    self._read_shard(shard, turn, put, cancelled)
                if leased.state is LeaseState.DONE:
                    put(Finished())
                    return
                if leased.state in (LeaseState.WAIT, LeaseState.STALE):
                    put(Waiting())
                    cancelled.wait(leased.wait_seconds or _TICK_SECONDS)
        except BaseException as error:  # every failure belongs to the loop, which knows what to do with it
            put(error)

    def _read_shard(self, shard: Shard, turn: int, put: Callable[[Entry], None], cancelled: threading.Event) -> None:
        progress = shard.progress(shard.offset, ended=False, position=shard.position)
        try:
            for found in self._read(shard):
                progress = shard.progress(found.end_offset, ended=found.ends_split, position=found.position)
                put(Item(shard, found.batch, progress, turn))
                if cancelled.is_set():
                    return
        except Exception as error:
            raise FeedError(progress) from error
