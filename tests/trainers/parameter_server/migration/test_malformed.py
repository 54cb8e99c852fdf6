"""Malformed requests and answers between servers are refused by name before anything changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from elastrec.platform.specs.errors import IncompatibleError
from elastrec.platform.transport.messages.directive import TakeFrom
from elastrec.trainers.parameter_server.migration import taking
from elastrec.trainers.parameter_server.migration.messages import BucketCells, CopyBuckets, DenseCells, HandedOver
from elastrec.trainers.parameter_server.migration.taking import Taker
from elastrec.trainers.parameter_server.serving.attendance import Attendance
from elastrec.trainers.parameter_server.warm_up import warm_kernels
from tests.trainers.parameter_server.migration.moving import BUCKETS, Worker, cluster


@pytest.fixture(autouse=True, scope="module")
def _warm() -> None:
    """A kernel that compiles in the middle of a request would look like a server out of reach."""
    warm_kernels()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"group": 7}, "group: 7 is not allowed; allowed: 0 to 0"),
        ({"group": -1}, "group: -1 is not allowed; allowed: 0 to 0"),
        ({"buckets": [BUCKETS]}, rf"buckets: \[{BUCKETS}\] are not allowed; allowed: 0 to {BUCKETS - 1}"),
        ({"buckets": [-1]}, r"buckets: \[-1\] are not allowed"),
        ({"since": []}, r"buckets, since, left: \(1, 0, 1\) of them are not allowed"),
        ({"left": [(-1, 0)]}, r"left: \[\(-1, 0\)\] are not allowed"),
    ],
)
def test_a_request_for_missing_buckets_is_refused(changed: dict[str, Any], message: str) -> None:
    with cluster(1, 1) as moved:
        request = CopyBuckets(generation=1, group=0, buckets=[0], since=[-1], left=[(0, 0)])
        assert len(moved.givers["ps-0"].copy(request, [])[1]) == 3
        with pytest.raises(IncompatibleError, match=message):
            moved.givers["ps-0"].copy(msgspec.structs.replace(request, **changed), [])


class _Altering:
    """A stream whose answers are altered."""

    def __init__(self, stream: Any, alter: Callable[[list[BucketCells]], list[BucketCells]]) -> None:
        self._stream, self._alter = stream, alter

    def request(self, message: Any) -> Any:
        answer, arrays = self._stream.request(message)
        return msgspec.structs.replace(answer, parts=self._alter(answer.parts)), arrays

    def cut(self) -> None:
        self._stream.cut()

    def close(self) -> None:
        self._stream.close()


def _with_rows(part: BucketCells, more: int) -> BucketCells:
    return msgspec.structs.replace(part, rows=part.rows + more)


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (lambda parts: parts[::-1], r"ps-1 answers with buckets .*; allowed: .* in this order"),
        (lambda parts: [_with_rows(parts[0], 1), *parts[1:]], r"ps-1 answers with rows, candidates and deleted ids .*"),
        (lambda parts: [_with_rows(parts[0], -99), _with_rows(parts[1], 99), *parts[2:]], r"as its parts .* say"),
        (lambda parts: parts[:-1], "ps-1 answers with rows"),
    ],
    ids=["order", "more", "negative", "fewer"],
)
def test_an_unexpected_answer_is_refused(alter: Callable[[list[BucketCells]], list[BucketCells]], message: str) -> None:
    with cluster(2, 2) as moved:
        worker = Worker(moved.routing)
        worker.step()
        order = moved.orders(moved.table(1, moved.routing.owners))["ps-0"]
        stores = moved.servers["ps-0"].stores
        held = [store.rows for store in stores]
        taker = Taker(moved.servers["ps-0"], order, 1, lambda address: _Altering(moved.connect(address), alter))
        with pytest.raises(IncompatibleError, match=message):
            taker.copy_round()
        assert [store.rows for store in stores] == held
        taker.give_up()
        worker.client.close()


@pytest.mark.parametrize(
    ("dense", "values", "state"),
    [
        ([DenseCells(0, 4, 1), DenseCells(1, 3, 1)], np.zeros(6, np.float32), np.zeros((2, 6), np.float32)),
        ([DenseCells(0, -1, 1), DenseCells(1, 7, 1)], np.zeros(6, np.float32), np.zeros((2, 6), np.float32)),
        ([DenseCells(0, 6, -1)], np.zeros(6, np.float32), np.zeros((2, 6), np.float32)),
        ([DenseCells(0, 6, 1)], np.zeros(6), np.zeros((2, 6), np.float32)),
        ([DenseCells(0, 6, 1)], np.zeros(6, np.float32), np.zeros((2, 5), np.float32)),
        ([DenseCells(0, 6, 1)], np.zeros(6, np.float32), np.zeros(12, np.float32)),
    ],
    ids=["more", "negative", "steps", "dtype", "state", "shape"],
)
def test_dense_parameters_that_differ_from_their_description_are_refused(
    dense: list[DenseCells], values: np.ndarray, state: np.ndarray
) -> None:
    answer = HandedOver(attendance=Attendance(), marks=[], layout=[], dense=dense)
    place = TakeFrom("ps-1", "nowhere", [], [])
    with pytest.raises(IncompatibleError, match=r"server ps-1 hands over .*; allowed: values float32"):
        taking._dense_of(place, answer, [values, state])
    with pytest.raises(IncompatibleError, match="ps-1"):
        taking._dense_of(place, answer, [values])
