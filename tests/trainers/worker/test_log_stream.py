"""A stream whose positions are not row counts: a log of variable length, read from byte offsets.

The product has no such stream yet. This scripted one shows that worker, queue and positions support it: the number of
rows of its splits is unknown, and only its source can interpret its positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis.strategies as st
import msgspec
import pyarrow as pa
from hypothesis import HealthCheck, given, settings

from elastrec.platform.data.reading.batches import Minibatch
from elastrec.platform.master.machine.shards import ShardQueue
from elastrec.platform.specs.row_ranges import RowRanges
from elastrec.platform.specs.splits import Positions, Split
from elastrec.platform.transport.messages.job import Leased, LeaseState, Shard, ShardProgress
from elastrec.trainers.worker.feed import Feed, Finished, Item

BATCH = 3
STREAM = "clicks-live"


class LogRanges(RowRanges, frozen=True, kw_only=True):
    """A log in segments, each a split: how many lines one has is not known before it was read."""

    def rows_of(self, number: int) -> int | None:
        return None


class LogSource:
    """Lines of segment files. A position is the byte at which the next line begins."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.opened_at: list[tuple[int, int]] = []

    def read(self, split: Split, offset: int, position: bytes, batch_size: int) -> Iterator[Minibatch]:
        place = int(position) if position else 0
        assert position or not offset, "rows of a log cannot be skipped by counting them"
        self.opened_at.append((split.number, place))
        with (self._folder / f"{split.number}.log").open("rb") as file:
            file.seek(place)
            while True:
                lines = [line.decode().strip() for line in (file.readline() for _ in range(batch_size)) if line]
                offset += len(lines)
                rows = pa.RecordBatch.from_pydict({"line": pa.array(lines, pa.string())})
                ends = file.tell() == file.seek(0, 2)
                place += sum(len(line) + 1 for line in lines)
                file.seek(place)
                yield Minibatch(rows, offset, ends, str(place).encode())
                if ends:
                    return

    def close(self) -> None:
        pass


def write_log(folder: Path, segments: list[int]) -> list[str]:
    """Segment files with so many lines of different lengths; returns all lines."""
    lines = []
    for number, count in enumerate(segments):
        mine = [f"{number}/{line}" + "x" * (line % 7) for line in range(count)]
        (folder / f"{number}.log").write_text("".join(f"{line}\n" for line in mine))
        lines += mine
    return lines


class Job:
    """A queue, and one worker after the other on it."""

    def __init__(self, source: LogSource, segments: int) -> None:
        self.source = source
        self.queue = new_queue(segments)
        self.trained: list[str] = []

    def work(self, pod: str, minibatches: int) -> bool:
        """A worker trains so many minibatches, and is lost; whether it got to the end of the stream."""
        feed = Feed(self._lease(pod), self._read, BATCH)
        try:
            while minibatches:
                entry = feed.next(10)
                if isinstance(entry, Finished):
                    return True
                if not isinstance(entry, Item):
                    continue
                # What crosses the wire.
                report = msgspec.msgpack.decode(msgspec.msgpack.encode(entry.progress), type=type(entry.progress))
                accepted = self.queue.advance(pod, report, 0.0)
                assert accepted.rows == entry.batch.num_rows
                self.trained += entry.batch.column("line").to_pylist()
                minibatches -= 1
            return False
        finally:
            feed.close()
            self.queue.lose(pod, blame=False)

    def _lease(self, pod: str) -> Callable[[int, Callable[[], bool]], Leased | None]:
        def lease(count: int, cancelled: Callable[[], bool]) -> Leased | None:
            shards = self.queue.lease(pod, str(self.queue.leases), count, 0.0)
            return Leased(state=LeaseState.GRANTED if shards else LeaseState.DONE, shards=shards)

        return lease

    def _read(self, shard: Shard, place: ShardProgress, batch_size: int) -> Iterator[Minibatch]:
        return self.source.read(shard.split, place.offset, place.position, batch_size)

    def restart(self) -> None:
        """Another master goes on from the positions that a record has kept."""
        record = Positions({STREAM: self.queue.positions()}).encode()
        self.queue = new_queue(self.queue.total)
        self.queue.restore(Positions.decode(record).of(STREAM))


def new_queue(segments: int) -> ShardQueue:
    return ShardQueue(stream=STREAM, kind="train", splits=LogRanges(rows=segments, split_rows=1), lease_seconds=60.0)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    segments=st.lists(st.integers(0, 11), min_size=1, max_size=4),
    lives=st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=8),
)
def test_every_line_of_a_log_is_trained_once_by_any_reader(
    segments: list[int], lives: list[tuple[int, bool]], tmp_path: Path
) -> None:
    lines = write_log(tmp_path, segments)
    job = Job(LogSource(tmp_path), len(segments))
    for life, (minibatches, restarts) in enumerate(lives):
        job.work(f"worker-{life}", minibatches)
        if restarts:
            job.restart()
    assert job.work("last", 1_000)
    assert sorted(job.trained) == sorted(lines)
    assert job.queue.is_done


def test_a_split_continues_at_the_position_of_its_source_not_at_a_row_count(tmp_path: Path) -> None:
    write_log(tmp_path, [8])
    job = Job(LogSource(tmp_path), 1)
    job.work("first", 1)
    job.restart()
    job.work("second", 1)
    (first, second) = job.source.opened_at[:2]
    assert first == (0, 0) and second == (0, sum(len(line) + 1 for line in job.trained[:BATCH]))


def test_a_split_without_a_known_end_is_done_when_its_reader_reports_the_end() -> None:
    queue = new_queue(1)
    (shard,) = queue.lease("a", "1", 1, 0.0)
    assert shard.split.rows is None
    assert queue.advance("a", shard.progress(5, ended=False, position=b"50"), 0.0).completed is None
    # Nothing more came: no row is new, and the end is.
    accepted = queue.advance("a", shard.progress(5, ended=True, position=b"50"), 0.0)
    assert accepted.rows == 0 and accepted.completed is not None and queue.is_done


def test_a_report_of_fewer_rows_than_were_acknowledged_does_not_end_a_split() -> None:
    queue = new_queue(1)
    (shard,) = queue.lease("a", "1", 1, 0.0)
    queue.advance("a", shard.progress(5, ended=False, position=b"50"), 0.0)
    assert queue.advance("a", shard.progress(3, ended=True, position=b"30"), 0.0).completed is None
