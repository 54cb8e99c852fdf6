"""Leases become minibatches in order; what is given back comes again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from elastrec.platform.data.source import Minibatch
from elastrec.platform.specs.errors import DataError
from elastrec.platform.transport.job_messages import Leased, LeaseState, Shard
from elastrec.trainers.worker.feed import Feed, FeedError, Finished, Item, Waiting
from tests.splits import length_of, row_shard


def shard(index: int, length: int = 40) -> Shard:
    return row_shard(index, index * length, length)


def read(found: Shard) -> Iterator[Minibatch]:
    for begin in range(found.offset, length_of(found), 10):
        rows = list(range(found.split.range.start + begin, found.split.range.start + begin + 10))
        yield Minibatch(pa.RecordBatch.from_pydict({"row": rows}), begin + 10, begin + 10 == length_of(found))


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


def test_all_rows_come_in_the_order_of_the_leases() -> None:
    feed = Feed(leases([granted(shard(0)), granted(shard(2), shard(1)), DONE]), read)
    items = items_of(feed, Finished)
    assert rows_of(items) == [*range(40), *range(80, 120), *range(40, 80)]
    feed.close()


def test_what_is_given_back_comes_again_before_all_others_in_its_order() -> None:
    feed = Feed(leases([granted(shard(0), shard(1)), DONE]), read)
    items = [feed.next(10) for _ in range(3)]
    assert all(isinstance(item, Item) for item in items)
    feed.give_back(items[1:])  # type: ignore[arg-type]
    assert feed.next(10) is items[1]
    feed.give_back(items[1:2])  # type: ignore[arg-type]
    assert rows_of(items_of(feed, Finished)) == [*range(10, 80)]
    feed.close()


def test_the_end_of_a_feed_stays_its_end() -> None:
    """A worker that could not rest when it heard of the end asks again."""
    feed = Feed(leases([granted(shard(0)), DONE]), read)
    items = items_of(feed, Finished)
    assert isinstance(feed.next(10), Finished)
    feed.give_back(items[-1:])
    assert feed.next(10) is items[-1]
    assert isinstance(feed.next(10), Finished)
    feed.close()


def test_waiting_is_told_and_shards_may_come_after_it() -> None:
    wait = Leased(state=LeaseState.WAIT, wait_seconds=0.01)
    feed = Feed(leases([wait, granted(shard(3)), DONE]), read)
    assert items_of(feed, Waiting) == []
    assert len(items_of(feed, Finished)) == 4
    feed.close()


def test_a_shard_that_cannot_be_read_is_named_with_its_place() -> None:
    def broken(found: Shard) -> Iterator[Minibatch]:
        yield from list(read(found))[:2]
        raise DataError("part-7.parquet: truncated")

    feed = Feed(leases([granted(shard(5))]), broken)
    with pytest.raises(FeedError) as caught:
        items_of(feed, Finished)
    assert (caught.value.progress.number, caught.value.progress.offset) == (5, 20)
    assert "part-7" in str(caught.value.__cause__)
    with pytest.raises(FeedError):
        feed.next(10)
    feed.close()


def test_a_full_feed_can_be_closed() -> None:
    reading = threading.Event()

    def endless(found: Shard) -> Iterator[Minibatch]:
        while True:
            reading.set()
            yield next(read(found))

    feed = Feed(leases([granted(shard(0))]), endless)
    assert reading.wait(10)
    feed.close()
    assert not any(thread.name == "feed" for thread in threading.enumerate())
