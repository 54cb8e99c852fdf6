from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from elastrec.platform.master.machine.shards import Failures, ShardQueue
from elastrec.platform.specs.row_ranges import RowRanges, shard_seed
from elastrec.platform.specs.splits import Begun, StreamPositions
from elastrec.platform.transport.messages.job import Shard
from tests.splits import length_of, progress_of


def rows_of(shard: Shard, begin: int, end: int) -> set[tuple[int, int]]:
    """(epoch, row) of the rows between two offsets."""
    return {(shard.split.range.epoch, shard.split.range.start + row) for row in range(begin, end)}


PODS = st.sampled_from(["a", "b", "c"])


def queue(rows: int = 95, shard_rows: int = 10, **order: Any) -> ShardQueue:
    splits = RowRanges(rows=rows, split_rows=shard_rows, **order)
    return ShardQueue(stream="training", kind="train", splits=splits, lease_seconds=10.0)


class Queue(RuleBasedStateMachine):
    """A queue against a model that counts every row."""

    @initialize(
        rows=st.integers(1, 120), shard_rows=st.integers(1, 40), epochs=st.integers(1, 3), shuffle=st.booleans()
    )
    def begin(self, rows: int, shard_rows: int, epochs: int, shuffle: bool) -> None:
        self.queue = queue(rows, shard_rows, epochs=epochs, shuffle=shuffle, seed=7)
        self.model: set[tuple[int, int]] = set()
        self.held: dict[int, tuple[str, Shard, int]] = {}
        self.saved: tuple[StreamPositions | None, set[tuple[int, int]]] = (None, set())
        self.requests = 0
        self.trained = 0
        self.time = 0.0

    @rule(pod=PODS, count=st.integers(1, 4))
    def lease(self, pod: str, count: int) -> None:
        self.requests += 1
        would = self.queue.would_change(pod, str(self.requests))
        shards = self.queue.lease(pod, str(self.requests), count, self.time)
        assert would == bool(shards)
        for shard in shards:
            assert shard.split.number not in self.held
            assert 0 <= shard.offset < length_of(shard)
            self.held[shard.split.number] = (pod, shard, shard.offset)
        again = self.queue.lease(pod, str(self.requests), count, self.time)
        assert not shards or again == shards

    @precondition(lambda self: self.held)
    @rule(data=st.data(), whole=st.booleans())
    def train(self, data: st.DataObject, whole: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.held)))
        pod, shard, offset = self.held[key]
        end = length_of(shard) if whole else data.draw(st.integers(offset + 1, length_of(shard)))
        accepted = self.queue.advance(pod, progress_of(shard, end), self.time)
        assert accepted.rows == end - offset
        assert (accepted.completed is not None) == (end == length_of(shard))
        assert self.queue.advance(pod, progress_of(shard, end), self.time).rows == 0
        self.trained += end - offset
        self.model |= rows_of(shard, offset, end)
        if end == length_of(shard):
            del self.held[key]
        else:
            self.held[key] = (pod, shard, end)

    @rule(pod=PODS)
    def lose(self, pod: str) -> None:
        lost = [shard for owner, shard, _ in self.held.values() if owner == pod]
        ended = self.queue.lose(pod, blame=True)
        assert len(ended) == len(lost)
        self.held = {key: entry for key, entry in self.held.items() if entry[0] != pod}
        for shard in lost:
            assert self.queue.advance(pod, progress_of(shard, length_of(shard)), self.time).rows == 0

    @rule(seconds=st.floats(0, 12))
    def expire(self, seconds: float) -> None:
        self.time += seconds
        for pod in self.queue.late(self.time):
            self.queue.lose(pod, blame=True)
            self.held = {key: entry for key, entry in self.held.items() if entry[0] != pod}
        assert all(deadline > self.time for deadline in self.queue.deadlines.values())

    @rule()
    def save(self) -> None:
        self.saved = (self.queue.positions(), set(self.model))

    @rule()
    def roll_back(self) -> None:
        self.queue.restore(self.saved[0])
        self.model = set(self.saved[1])
        self.held = {}

    @invariant()
    def nothing_is_lost(self) -> None:
        q = self.queue
        assert not q.doing.keys() & q.returned.keys()
        assert q.done >= 0 and q.done + len(q.doing) + len(q.returned) == q.cursor <= q.total
        assert q.covered_rows() == len(self.model)
        assert q.samples == self.trained
        assert sum(q.held.values()) == len(q.doing) and q.deadlines.keys() == q.held.keys()
        assert q.is_done == (len(self.model) == q.splits.total_rows)

    @invariant()
    def a_queue_is_a_plain_value(self) -> None:
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(self.queue), type=ShardQueue) == self.queue

    def teardown(self) -> None:
        if not hasattr(self, "queue"):
            return
        for pod in "abc":
            self.queue.lose(pod, blame=False)
        while shards := self.queue.lease("a", f"end {self.queue.leases}", 3, self.time):
            for shard in shards:
                self.queue.advance("a", progress_of(shard, length_of(shard)), self.time)
                self.model |= rows_of(shard, shard.offset, length_of(shard))
        assert self.queue.is_done and len(self.model) == self.queue.splits.total_rows


Queue.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_no_row_is_ever_lost_or_counted_twice = Queue.TestCase


def drain(q: ShardQueue) -> list[Shard]:
    shards = q.lease("a", "1", 1000, 0.0)
    for shard in shards:
        q.advance("a", progress_of(shard, length_of(shard)), 0.0)
    return shards


def test_the_order_of_shards_depends_on_the_seed_and_the_epoch_alone():
    first, again = drain(queue(shuffle=True, seed=3, epochs=2)), drain(queue(shuffle=True, seed=3, epochs=2))
    assert first == again
    indexes = [shard.split.number for shard in first]
    assert sorted(indexes) == list(range(20)) and sorted(indexes[:10]) == list(range(10))
    assert indexes[:10] != [number - 10 for number in indexes[10:]]
    assert [s.split.number for s in drain(queue(shuffle=True, seed=4))] != indexes[:10]
    assert len({shard.split.range.seed for shard in first}) == 20
    assert first[0].split.range.seed == shard_seed(3, 0, first[0].split.number)


def test_shards_cover_the_rows_with_a_shorter_last_one():
    shards = drain(queue())
    assert [(s.split.range.start, length_of(s)) for s in shards][-2:] == [(80, 10), (90, 5)] and len(shards) == 10


def test_a_dead_workers_shards_return_behind_the_fresh_ones_with_their_offset():
    q = queue()
    first, second = q.lease("a", "1", 2, 0.0)
    q.advance("a", progress_of(first, 4), 0.0)
    q.lose("a", blame=True)
    rest = q.lease("b", "1", 100, 0.0)
    assert [s.split.number for s in rest] == [2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert (rest[-2].offset, rest[-2].attempt) == (4, 2) and rest[-1].offset == 0
    assert second.split.number == 1


def test_only_the_shard_being_worked_on_is_blamed():
    q = queue()
    for attempt in range(3):
        q.lease("a", str(attempt), 3, 0.0)
        q.lose("a", blame=True, culprit=1 if attempt else None)
    assert q.failures[0] == Failures(1, 0)
    assert q.poison(4) is None


def test_a_shard_that_fails_often_is_poison():
    q = queue(rows=10)
    for attempt in range(4):
        assert q.poison(4) is None
        q.lease("a", str(attempt), 1, 0.0)
        q.lose("a", blame=True)
    assert q.poison(4) == 0


def test_a_shard_that_gets_further_after_a_rollback_is_not_poison():
    q = queue(rows=10)
    (shard,) = q.lease("a", "0", 1, 0.0)
    q.advance("a", progress_of(shard, 9), 0.0)
    q.lose("a", blame=True)
    assert q.failures[0] == Failures(1, 9)
    q.restore(StreamPositions(1, [Begun(0, 2, 1)]))
    for offset in (3, 4, 5):
        (shard,) = q.lease("a", str(offset), 1, 0.0)
        q.advance("a", progress_of(shard, offset), 0.0)
        q.lose("a", blame=True)
    assert q.failures[0] == Failures(1, 5)


def test_progress_extends_all_leases_of_a_pod():
    q = queue()
    shard, _ = q.lease("a", "1", 2, 0.0)
    q.lease("b", "1", 1, 0.0)
    q.advance("a", progress_of(shard, 1), 9.0)
    assert q.late(10.0) == ["b"]
    q.lose("b", blame=True)
    assert q.late(19.0) == ["a"]


def test_a_lost_evaluation_shard_begins_again():
    q = ShardQueue(
        stream="evaluation",
        kind="evaluate",
        splits=RowRanges(rows=20, split_rows=10),
        lease_seconds=10.0,
        keep_rows=10,
    )
    first, second = q.lease("a", "1", 2, 0.0)
    assert first.keep_predictions and not second.keep_predictions
    q.advance("a", progress_of(first, 9), 0.0)
    q.lose("a", blame=True)
    assert {shard.offset for shard in q.lease("b", "1", 2, 0.0)} == {0}


def test_a_bad_row_counts_once_whatever_happens_to_its_shard():
    q = queue(rows=20, epochs=2)
    (shard,) = q.lease("a", "1", 1, 0.0)
    half = msgspec.structs.replace(progress_of(shard, 5), bad_rows=2)
    for _ in range(2):
        q.advance("a", half, 0.0)
    assert q.bad_rows == 2
    saved = q.positions()
    q.lose("a", blame=True)
    second, again = q.lease("b", "1", 2, 0.0)
    q.advance("b", msgspec.structs.replace(progress_of(again, 10), bad_rows=1), 0.0)
    q.advance("b", msgspec.structs.replace(progress_of(second, 10), bad_rows=4), 0.0)
    assert again.split.number == shard.split.number and q.bad_rows == 7
    (next_epoch,) = q.lease("b", "2", 1, 0.0)
    q.advance("b", msgspec.structs.replace(progress_of(next_epoch, 10), bad_rows=3), 0.0)
    assert next_epoch.split.range.epoch == 1 and q.bad_rows == 7
    q.restore(saved)
    assert q.bad_rows == 2
    q.restore(None)
    assert q.bad_rows == 0


def test_bad_rows_of_a_lost_evaluation_shard_are_read_and_counted_again():
    splits = RowRanges(rows=10, split_rows=10)
    q = ShardQueue(stream="evaluation", kind="evaluate", splits=splits, lease_seconds=10.0)
    for pod in "ab":
        (shard,) = q.lease(pod, "1", 1, 0.0)
        q.advance(pod, msgspec.structs.replace(progress_of(shard, 9), bad_rows=2), 0.0)
        assert q.bad_rows == 2
        q.lose(pod, blame=True)


def test_memory_does_not_grow_with_finished_shards():
    small, large = queue(rows=1000, shard_rows=1), queue(rows=50_000, shard_rows=1)
    for q in (small, large):
        while shards := q.lease("a", str(q.cursor), 64, 0.0):
            for shard in shards:
                q.advance("a", progress_of(shard, 1), 0.0)
        q.lose("a", blame=False)
    assert abs(len(msgspec.msgpack.encode(large)) - len(msgspec.msgpack.encode(small))) < 64


def test_wrong_offsets_and_foreign_leases_are_void():
    q = queue()
    (shard,) = q.lease("a", "1", 1, 0.0)
    assert q.advance("b", progress_of(shard, 5), 0.0).rows == 0
    assert q.advance("a", progress_of(shard, 11), 0.0).rows == 0
    assert q.advance("a", msgspec.structs.replace(progress_of(shard, 5), number=99), 0.0).rows == 0
    assert q.advance("a", msgspec.structs.replace(progress_of(shard, 5), attempt=2), 0.0).rows == 0
