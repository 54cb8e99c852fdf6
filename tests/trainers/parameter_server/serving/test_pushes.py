"""Answers to pushes that are repeated, too early, from another process, or already applied to some buckets."""

from __future__ import annotations

import gc
import weakref

import msgspec
import numpy as np
import pytest

from elastrec.trainers.parameter_server.messages import WHOLE, Applied, GetStats, InitDense, Missing, Push
from elastrec.trainers.parameter_server.serving.marks import BucketMarks
from elastrec.trainers.parameter_server.serving.place import Place
from elastrec.trainers.parameter_server.serving.server import ParameterServer
from tests.splits import origin_of
from tests.trainers.parameter_server.calls import (
    BATCH,
    LAYOUT,
    applied,
    gradient,
    leave,
    origin,
    pull,
    push,
    server_of,
    stamp,
)
from tests.trainers.parameter_server.running import DIMENSION, routing_of
from tests.trainers.parameter_server.test_exactly_once import REFUSED, dense, name_members


def test_a_push_whose_predecessor_is_missing_is_not_applied_before_it() -> None:
    server = server_of()
    assert push(server, "a", 1, [1], 1.0)[0] == Missing(offset=-1)
    assert push(server, "a", 0, [1], 1.0)[0] == applied(0)
    assert push(server, "a", 2, [1], 1.0)[0] == Missing(offset=BATCH)
    assert push(server, "a", 1, [1], 1.0)[0] == applied(1)
    assert dense(server) == -2.0


def test_a_push_after_a_discarded_one_is_refused_until_that_is_sent_again() -> None:
    """Else the mark of the later push would cover the earlier one, which no server has applied."""
    server = server_of("bsp", workers=4)
    pull(server, "a", [1], version=1)
    assert push(server, "a", 0, [1], 2.0, version=1)[0] == applied(-1)
    name_members(server, 2)
    assert push(server, "a", 1, [1], 4.0, version=2)[0] == REFUSED
    name_members(server, 3, ("a", "i"))
    assert push(server, "a", 1, [1], 4.0, version=3)[0] == Missing(offset=-1)
    assert leave(server, "a", 0, version=3) == REFUSED
    assert push(server, "a", 0, [1], 2.0, version=3)[0] == applied(-1)
    assert push(server, "a", 1, [1], 4.0, version=3)[0] == applied(-1)
    assert leave(server, "a", 0, 1, version=3) == Applied(offsets=[2 * BATCH] * 2)
    assert dense(server) == -3.0


def test_a_shard_that_another_worker_begins_again_counts_once_where_it_was_applied() -> None:
    server = server_of()
    for place in range(3):
        push(server, "a", place, [1], 1.0)
    # The master knew of one push, and gives the shard to another worker at that place.
    for place in (1, 2, 3):
        again = msgspec.structs.replace(origin("a", place), attempt=2, is_first=place == 1)
        server.push(Push(stamp=stamp("b"), origin=again, samples=BATCH, number=place), gradient([1], 1.0))
    assert dense(server) == -4.0
    # The first worker was away, and goes on.
    assert push(server, "a", 3, [1], 1.0)[0] == applied(3)
    assert push(server, "a", 4, [1], 1.0)[0] == applied(4)
    assert dense(server) == -5.0


def test_a_push_of_a_shard_that_is_done_never_counts_again() -> None:
    server = server_of()
    last = msgspec.structs.replace(origin("a", 0), is_last=True)
    for _ in range(2):
        answer, _ = server.push(Push(stamp=stamp("a"), origin=last, samples=BATCH, number=1), gradient([1], 1.0))
        assert answer == Applied(offsets=[WHOLE])
    assert push(server, "a", 0, [1], 1.0)[0] == Applied(offsets=[WHOLE])
    assert push(server, "a", 1, [1], 1.0)[0] == Applied(offsets=[WHOLE])
    assert dense(server) == -1.0


def test_the_answer_names_other_splits_and_closes_ended_ones() -> None:
    server = server_of()
    push(server, "a", 0, [1], 1.0)
    split = origin("a", 0).split
    message = Push(
        stamp=stamp("a"), origin=origin("b", 0), samples=BATCH, number=1, also=[split], closed=[(*split, BATCH)]
    )
    assert server.push(message, gradient([1], 1.0))[0] == Applied(offsets=[BATCH, WHOLE])


@pytest.mark.parametrize("holds_dense", [True, False])
def test_a_push_is_applied_only_to_buckets_that_lack_it(holds_dense: bool) -> None:
    """Of two buckets one came from a server that had applied the push before it went away."""
    server = server_of()
    ids = list(range(40))
    start = np.array(pull(server, "a", ids)[1][0]).reshape(-1, DIMENSION)
    routing = routing_of(["here:1"])
    place = Place.under(routing, "ps-0")
    buckets = server.model.stores[0].look_up(np.array([40, 0], np.int32), np.array(ids)).request.buckets
    known = sorted(set(buckets[::2].tolist()))
    there = server_of()
    push(there, "a", 0, ids, 1.0)
    (marks,) = there.freeze().marks
    marks = BucketMarks(known, list(range(256)) if holds_dense else [], marks.streams)
    server.become(place, routing, 1, server.empty_stores(place), marks=[marks])
    server.init_dense(InitDense(stamp=stamp("a"), layout=LAYOUT), [np.zeros(2, np.float32)])
    for _ in range(2):
        assert push(server, "a", 0, ids, 1.0)[0] == applied(0)
    rows = np.array(pull(server, "a", ids)[1][0]).reshape(-1, DIMENSION)
    expected = start - np.where(np.isin(buckets, known), 0.0, 1.0)[:, None]
    np.testing.assert_allclose(rows, expected, atol=1e-6)
    assert dense(server) == (0.0 if holds_dense else -1.0)
    assert push(server, "a", 1, ids, 1.0)[0] == applied(1)
    assert dense(server) == (-1.0 if holds_dense else -2.0)


def test_marks_are_of_the_moment_of_the_parameters() -> None:
    server = server_of("bsp", workers=2)
    push(server, "a", 0, [1], 1.0)
    frozen = server.freeze()
    assert frozen.dense is not None and frozen.dense.steps == 0
    (marks,) = frozen.marks
    assert marks.streams == [] and marks.buckets == frozen.owned and marks.dense_buckets == list(range(256))
    frozen.thaw()
    push(server, "a", 1, [1], 1.0)
    frozen = server.freeze()
    (marks,) = frozen.marks
    assert frozen.dense is not None and frozen.dense.steps == 1
    assert marks.streams[0].offsets == {origin("a", 0).number: 2 * BATCH}
    frozen.thaw()


def test_a_server_without_a_record_of_a_split_takes_it_where_its_lease_begins() -> None:
    server = server_of()
    begun = msgspec.structs.replace(origin_of(3, rows=BATCH), is_first=True)
    assert server.push(Push(stamp=stamp("a"), origin=begun, samples=BATCH, number=1), gradient([1], 1.0))[0] == applied(
        3
    )
    assert server.stats(GetStats()).pushes == 1


def test_a_finished_copy_keeps_no_memory() -> None:
    server: ParameterServer = server_of()
    frozen = server.freeze()
    assert frozen.dense is not None
    copied = weakref.ref(frozen.dense.values)
    server.thaw()
    frozen.thaw()
    del frozen
    gc.collect()
    assert copied() is None
    server.thaw()
