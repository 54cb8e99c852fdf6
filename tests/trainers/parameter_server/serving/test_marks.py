"""Marks of applied pushes: by bucket, of bounded size, and unchanged by a transfer."""

from __future__ import annotations

from collections.abc import Sequence

import hypothesis.strategies as st
import msgspec
import numpy as np
from hypothesis import given, settings

from elastrec.platform.specs.splits import TRAINING_STREAM
from elastrec.trainers.parameter_server.messages import WHOLE, Origin
from elastrec.trainers.parameter_server.serving.marks import BucketMarks, Marks, least
from tests.splits import origin_of

BUCKETS, DENSE_BUCKETS, PUSHES = 6, 4, 3
ALL = np.ones(BUCKETS, np.bool_), np.ones(DENSE_BUCKETS, np.bool_)


def sent(values: Sequence[BucketMarks]) -> list[BucketMarks]:
    """As they come out of a record, or off the wire."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(list(values)), type=list[BucketMarks])


def owned(buckets: Sequence[int], dense_buckets: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    found = np.zeros(BUCKETS, np.bool_), np.zeros(DENSE_BUCKETS, np.bool_)
    found[0][list(buckets)], found[1][list(dense_buckets)] = True, True
    return found


def test_a_push_is_applied_once_it_is_marked_and_so_is_all_before_it() -> None:
    marks = Marks(*ALL)
    assert marks.offset(origin_of(0).split) == -1
    assert marks.lacking(origin_of(1)) is None
    marks.advance(origin_of(1))
    assert marks.offset(origin_of(1).split) == 40
    assert marks.offset(origin_of(1, number=7).split) == -1
    marks.advance(origin_of(0))
    assert marks.offset(origin_of(1).split) == 40


def test_a_finished_split_keeps_one_bit() -> None:
    marks = Marks(*ALL)
    numbers = np.random.default_rng(1).permutation(4096)
    for number in numbers.tolist():
        for place in range(PUSHES):
            marks.advance(origin_of(place, number=number, is_last=place == PUSHES - 1))
        assert marks.offset((TRAINING_STREAM, number)) == WHOLE
        assert len(msgspec.msgpack.encode(marks.values())) < 4096 // 8 + 100
    assert len(msgspec.msgpack.encode(marks.values())) < 100
    assert marks.offset((TRAINING_STREAM, 4096)) == -1
    assert marks.offset((TRAINING_STREAM, 5)) == WHOLE


def test_a_split_that_ends_without_a_push_is_closed_where_its_last_push_is_applied() -> None:
    marks = Marks(*ALL)
    marks.advance(origin_of(0))
    marks.close(origin_of(0).split, 40)
    assert marks.offset(origin_of(0).split) == 20
    marks.close(origin_of(0).split, 20)
    assert marks.offset(origin_of(0).split) == WHOLE


def test_an_arriving_bucket_keeps_its_marks_until_they_equal_those_of_other_buckets() -> None:
    here, there = Marks(*owned([0, 1], [0])), Marks(*owned([2, 3], [1, 2]))
    here.advance(origin_of(0))
    there.advance(origin_of(1))
    moved = msgspec.structs.replace(sent(there.values())[0], buckets=[2], dense_buckets=[1])
    both = Marks(*owned([0, 1, 2], [0, 1, 3]), sent([*here.values(), moved]))
    assert both.offset(origin_of(0).split) == -1, "nothing is said of dense bucket 3"
    both.advance(origin_of(0))
    lacking = both.lacking(origin_of(1))
    assert lacking is not None
    np.testing.assert_array_equal(np.flatnonzero(lacking), [0, 1, BUCKETS, BUCKETS + 3])
    assert len(both.values()) == 2
    both.advance(origin_of(1))
    assert len(both.values()) == 1
    assert both.lacking(origin_of(2)) is None


def test_rows_that_were_cut_into_other_minibatches_are_counted() -> None:
    marks = Marks(*ALL)
    marks.advance(origin_of(0))
    assert marks.repeated_rows(origin_of(0, rows=50)) == 20
    assert marks.repeated_rows(origin_of(1)) == 0


@settings(max_examples=200, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["push", "push", "push", "move", "restart"]), st.integers(0, 30), st.integers(0, 2)),
        max_size=40,
    )
)
def test_whatever_moves_each_push_is_applied_once_to_each_virtual_and_dense_bucket(
    steps: list[tuple[str, int, int]],
) -> None:
    """Three servers, which take buckets over from each other between pushes that arrive, some of them again."""
    owner = [bucket % 3 for bucket in range(BUCKETS + DENSE_BUCKETS)]  # dense buckets behind the virtual ones
    applied: list[dict[tuple[int, int], int]] = [{} for _ in owner]

    def place_of(server: int) -> tuple[np.ndarray, np.ndarray]:
        mine = np.array(owner) == server
        return mine[:BUCKETS], mine[BUCKETS:]

    servers = [Marks(*place_of(server)) for server in range(3)]
    reached = [dict.fromkeys(range(4), 0) for _ in range(3)]

    def apply(server: int, origin: Origin) -> None:
        offset = servers[server].offset(origin.split)
        if offset >= origin.end or (offset < origin.begin and not origin.is_first):
            return  # repeated, or its predecessor is missing
        lacking = servers[server].lacking(origin)
        for bucket, mine in enumerate(owner):
            if mine == server and (lacking is None or lacking[bucket]):
                key = origin.number, origin.end
                applied[bucket][key] = applied[bucket].get(key, 0) + 1
        servers[server].advance(origin)

    for kind, value, server in steps:
        if kind == "push":
            number = value % 4
            place = reached[server][number] if value % 3 else max(0, reached[server][number] - 1)
            if place < PUSHES:
                apply(server, origin_of(place, number=number, is_last=place == PUSHES - 1))
                reached[server][number] = max(reached[server][number], place + 1)
        elif kind == "move":
            bucket = value % len(owner)
            source = owner[bucket]
            if source == server:
                continue
            owner[bucket] = server
            known = sent([*servers[server].values(), *servers[source].values()])
            servers[server], servers[source] = (Marks(*place_of(each), known) for each in (server, source))
        else:
            servers[server] = Marks(*place_of(server), sent(servers[server].values()))
    for number in range(4):
        for place in range(PUSHES):
            for server in range(3):
                apply(server, origin_of(place, number=number, is_last=place == PUSHES - 1))
    expected = {(number, (place + 1) * 20): 1 for number in range(4) for place in range(PUSHES)}
    assert applied == [expected] * len(applied)
    assert all(len(marks.values()) == 1 for marks in servers)


def test_merged_marks_have_the_pushes_that_all_of_them_have() -> None:
    done = Marks(*ALL)
    for number in range(20):
        done.advance(origin_of(0, number=number, is_last=True))
    begun = Marks(*ALL)
    begun.advance(origin_of(1, number=3))
    begun.advance(origin_of(0, number=5, is_last=True))
    assert least([]) == []
    assert least([done.values()[0].streams]) == done.values()[0].streams
    (found,) = least([done.values()[0].streams, begun.values()[0].streams])
    assert (found.whole_below, found.offsets) == (0, {3: 40})
    assert Marks(*ALL, [BucketMarks([0], [], [found])]).offset((TRAINING_STREAM, 5)) == -1, "of buckets 1 to 5"
    assert Marks(*owned([0], [1]), [BucketMarks([0], [1], [found])]).offset((TRAINING_STREAM, 5)) == WHOLE
    assert least([done.values()[0].streams, []]) == []


@settings(max_examples=100, deadline=None)
@given(
    pushes=st.lists(
        st.lists(st.tuples(st.integers(0, 40), st.integers(0, 2), st.sampled_from(["one", "two"])), max_size=40),
        min_size=1,
        max_size=3,
    )
)
def test_merged_marks_have_the_lowest_offset_of_each_split(
    pushes: list[list[tuple[int, int, str]]],
) -> None:
    several = []
    for origins in pushes:
        marks = Marks(*ALL)
        for number, place, stream in origins:
            origin = origin_of(place, number=number, is_last=place == PUSHES - 1)
            marks.advance(msgspec.structs.replace(origin, stream=stream))
        several.append(marks)
    together = least([marks.values()[0].streams for marks in several])
    found = Marks(*ALL, [BucketMarks(list(range(BUCKETS)), list(range(DENSE_BUCKETS)), together)])
    for split in ((stream, number) for stream in ("one", "two", "three") for number in range(45)):
        assert found.offset(split) == min(marks.offset(split) for marks in several)
