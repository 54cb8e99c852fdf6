"""Leases are turned into minibatches in order; returned shards are leased again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.platform.data.reading.batches import Minibatch
from elastrec.platform.specs.errors import AuthenticationError, DataError
from elastrec.platform.transport.messages.job import Leased, LeaseState, Shard, ShardProgress
from elastrec.trainers.worker.feed import Feed, FeedError, Finished, Item, Waiting
from tests.splits import length_of, row_shard


def shard(index: int, length: int = 40) -> Shard:
    return row_shard(index, index * length, length)


def read(found: Shard, place: ShardProgress, batch_size: int) -> Iterator[Minibatch]:
    start, length = found.split.range.start, length_of(found)
    for begin in range(place.offset, length, batch_size):
        end = min(begin + batch_size, length)
        rows = list(range(start + begin, start + end))
        yield Minibatch(pa.RecordBatch.from_pydict({"row": rows}), end, end == length)


def leases(answers: list[Leased]) -> Callable[[int, Callable[[], bool]], Leased | None]:
    def lease(count: int, cancelled: Callable[[], bool]) -> Leased | None:
        return answers.pop(0) if len(answers) > 1 else answers[0]

    return lease


def granted(*shards: Shard) -> Leased:
    return Leased(state=LeaseState.GRANTED, shards=list(shards))


DONE = Leased(state=LeaseState.DONE)


def items_of(feed: Feed, until: type) -> list[Item]:
    found = []
    while True:
        entry = feed.next(10)
        if isinstance(entry, until):
            return found
        if isinstance(entry, Item):
            found.append(entry)


def rows_of(items: list[Item]) -> list[int]:
    return [row for item in items for row in item.batch.column("row").to_pylist()]


def test_all_rows_are_read_in_the_order_of_the_leases() -> None:
    feed = Feed(leases([granted(shard(0)), granted(shard(2), shard(1)), DONE]), read, 10)
    items = items_of(feed, Finished)
    assert rows_of(items) == [*range(40), *range(80, 120), *range(40, 80)]
    feed.close()


def test_returned_minibatches_are_the_next_ones_in_their_order() -> None:
    feed = Feed(leases([granted(shard(0), shard(1)), DONE]), read, 10)
    items = [feed.next(10) for _ in range(3)]
    assert all(isinstance(item, Item) for item in items)
    feed.give_back(items[1:])  # type: ignore[arg-type]
    assert feed.next(10) is items[1]
    feed.give_back(items[1:2])  # type: ignore[arg-type]
    assert rows_of(items_of(feed, Finished)) == [*range(10, 80)]
    feed.close()


def test_bad_rows_are_reported_since_the_begin_of_the_attempt() -> None:
    def without_odd_tens(found: Shard, place: ShardProgress, batch_size: int) -> Iterator[Minibatch]:
        for minibatch in read(found, place, batch_size):
            keep = [row for row in minibatch.batch.column("row").to_pylist() if row // 10 % 2 == 0]
            yield Minibatch(pa.RecordBatch.from_pydict({"row": keep}), minibatch.end_offset, minibatch.ends_split)

    begun = row_shard(0, 0, 40, offset=5)
    feed = Feed(leases([granted(begun, shard(1)), DONE]), without_odd_tens, 10)
    first = feed.next(10)
    assert isinstance(first, Item) and first.progress.bad_rows == 5
    feed.resize(20)
    rest = items_of(feed, Finished)
    assert [(item.progress.offset, item.progress.bad_rows) for item in rest] == [(35, 15), (40, 20), (20, 10), (40, 20)]
    feed.close()


def test_the_end_of_a_feed_stays_its_end() -> None:
    """A worker that could not rest when it heard of the end asks again."""
    feed = Feed(leases([granted(shard(0)), DONE]), read, 10)
    items = items_of(feed, Finished)
    assert isinstance(feed.next(10), Finished)
    feed.give_back(items[-1:])
    assert feed.next(10) is items[-1]
    assert isinstance(feed.next(10), Finished)
    feed.close()


def test_waiting_is_reported_and_shards_may_be_added_later() -> None:
    wait = Leased(state=LeaseState.WAIT, wait_seconds=0.01)
    feed = Feed(leases([wait, granted(shard(3)), DONE]), read, 10)
    assert items_of(feed, Waiting) == []
    assert len(items_of(feed, Finished)) == 4
    feed.close()


def test_an_unreadable_shard_is_reported_with_its_position() -> None:
    def broken(found: Shard, *how: Any) -> Iterator[Minibatch]:
        yield from list(read(found, *how))[:2]
        raise DataError("part-7.parquet: truncated")

    feed = Feed(leases([granted(shard(5))]), broken, 10)
    with pytest.raises(FeedError) as caught:
        items_of(feed, Finished)
    assert (caught.value.progress.number, caught.value.progress.offset) == (5, 20)
    assert "part-7" in str(caught.value.__cause__)
    with pytest.raises(FeedError):
        feed.next(10)
    feed.close()


def test_a_full_feed_can_be_closed() -> None:
    reading = threading.Event()

    def endless(found: Shard, *how: Any) -> Iterator[Minibatch]:
        while True:
            reading.set()
            yield next(read(found, *how))

    feed = Feed(leases([granted(shard(0))]), endless, 10)
    assert reading.wait(60)
    feed.close()
    assert not any(thread.name == "feed" for thread in threading.enumerate())


def sizes_of(items: list[Item]) -> list[int]:
    return [item.batch.num_rows for item in items]


def test_another_batch_size_applies_from_the_next_minibatch_without_repeated_rows() -> None:
    feed = Feed(leases([granted(shard(0), shard(1)), DONE]), read, 10)
    before = [feed.next(10) for _ in range(3)]
    feed.resize(4)
    after = items_of(feed, Finished)
    assert rows_of([*before, *after]) == [*range(80)]  # type: ignore[list-item]
    assert sizes_of(after) == [4, 4, 2, *[4] * 10]
    # Reports go on where the last one ended.
    assert [item.progress.offset for item in after[:3]] == [34, 38, 40] and after[2].progress.ended
    feed.close()


def test_returned_rows_have_the_new_batch_size() -> None:
    feed = Feed(leases([granted(shard(0), shard(1)), DONE]), read, 10)
    items = [feed.next(10) for _ in range(5)]
    feed.give_back(items[3:])  # type: ignore[arg-type]
    feed.resize(20)
    after = items_of(feed, Finished)
    assert rows_of(after) == [*range(30, 80)] and sizes_of(after) == [10, 20, 20]
    feed.close()


def test_an_ended_feed_reads_returned_rows_with_the_new_batch_size() -> None:
    feed = Feed(leases([granted(shard(0)), DONE]), read, 10)
    items = items_of(feed, Finished)
    feed.give_back(items[2:])
    feed.resize(5)
    assert sizes_of(items_of(feed, Finished)) == [5] * 4
    assert isinstance(feed.next(10), Finished)
    feed.close()


def test_an_error_that_another_batch_size_discards_is_reported_again() -> None:
    def broken(found: Shard, place: ShardProgress, batch_size: int) -> Iterator[Minibatch]:
        yield from list(read(found, place, batch_size))[: (20 - place.offset) // batch_size]
        raise DataError("part-7.parquet: truncated")

    feed = Feed(leases([granted(shard(5))]), broken, 10)
    items = [feed.next(10) for _ in range(2)]
    assert isinstance(feed.peek(10), FeedError)
    feed.give_back(items[1:])  # type: ignore[arg-type]
    feed.resize(5)
    assert sizes_of([feed.next(10), feed.next(10)]) == [5, 5]  # type: ignore[list-item]
    with pytest.raises(FeedError) as caught:
        feed.next(10)
    assert caught.value.progress.offset == 20
    feed.close()


def test_a_refusal_that_another_batch_size_discards_is_reported_again() -> None:
    answers = iter([granted(shard(0))])

    def refusing(count: int, cancelled: Callable[[], bool]) -> Leased | None:
        if leased := next(answers, None):
            return leased
        raise AuthenticationError("the token is not this job's")

    feed = Feed(refusing, read, 20)
    items = [feed.next(10) for _ in range(2)]
    assert isinstance(feed.peek(10), AuthenticationError)
    feed.give_back(items[1:])  # type: ignore[arg-type]
    feed.resize(10)
    assert sizes_of([feed.next(10), feed.next(10)]) == [10, 10]  # type: ignore[list-item]
    with pytest.raises(AuthenticationError):
        feed.next(10)
    feed.close()


def test_peek_takes_nothing() -> None:
    feed = Feed(leases([granted(shard(0)), DONE]), read, 10)
    assert feed.peek(10) is feed.peek(10)
    assert len(items_of(feed, Finished)) == 4
    assert isinstance(feed.peek(0), Finished)
    feed.close()


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    calls=st.lists(st.one_of(st.integers(1, 12), st.sampled_from(["next", "give back"])), max_size=30),
)
def test_every_row_is_read_once_in_order_for_all_sizes(lengths: list[int], calls: list[int | str]) -> None:
    shards = [row_shard(number, 100 * number, length) for number, length in enumerate(lengths)]
    feed, taken, kept = Feed(leases([granted(*shards), DONE]), read, 10), [], 0
    try:
        for call in calls:
            if call == "next":
                entry = feed.next(10)
                if isinstance(entry, Finished):
                    break
                assert isinstance(entry, Item) and entry.batch.num_rows <= feed.batch_size
                taken.append(entry)
            elif call == "give back":
                # Minibatches before the last size were started and trained.
                feed.give_back(taken[kept:])
                del taken[kept:]
            else:
                kept = len(taken)
                feed.resize(int(call))
        taken += items_of(feed, Finished)
    finally:
        feed.close()
    assert rows_of(taken) == [100 * number + row for number, length in enumerate(lengths) for row in range(length)]
    for before, after in pairwise(taken):
        assert after.before == before.progress or before.progress.ended
