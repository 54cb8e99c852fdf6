"""The rule by which the rest of a copy counts as small: rows that change fast are copied faster before the
hand-over.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from elastrec.platform.transport.messages.directive import RoutingTable, TakeOrder
from elastrec.trainers.parameter_server.migration import mover, taking
from elastrec.trainers.parameter_server.migration.giving import Giver
from elastrec.trainers.parameter_server.migration.messages import BucketCells, Copied, CopyBuckets
from elastrec.trainers.parameter_server.migration.mover import Mover
from elastrec.trainers.parameter_server.migration.taking import Taker
from elastrec.trainers.parameter_server.serving.server import ParameterServer
from tests.processes import wait_for
from tests.trainers.parameter_server.migration.moving import BUCKETS, JOB, cluster

_MIB = 2**20
ORDER = TakeOrder("move-1", [])


class Rounds:
    """A taker whose rounds bring so many bytes, 80 MiB a second, and which can take more of the time so often."""

    def __init__(self, copied_bytes: Sequence[int], hastens: int) -> None:
        self.of_round, self.hastens, self.rounds, self.advance, self.copied_bytes = copied_bytes, hastens, 0, 0, 0
        self.copying_seconds = 0.0

    def copy_round(self) -> int:
        self.rounds += 1
        found = self.of_round[min(self.rounds, len(self.of_round)) - 1]
        self.copied_bytes += found
        self.copying_seconds = found / (80 * _MIB)
        return found

    def hasten(self) -> bool:
        self.hastens -= 1
        return self.hastens >= 0

    def cut(self) -> None:
        pass

    def give_up(self) -> None:
        pass


def rounds_until_small(monkeypatch: pytest.MonkeyPatch, copied_bytes: Sequence[int], hastens: int) -> int:
    """After how many rounds the mover names its order copied."""
    rounds, named = Rounds(copied_bytes, hastens), list[int]()
    monkeypatch.setattr(mover, "Taker", lambda *_: rounds)
    monkeypatch.setattr(mover, "_ROUND_SECONDS", 0.0)

    def report() -> None:
        named.append(rounds.rounds)

    server = ParameterServer("ps-0", JOB.spec, granted_cores=1)
    copier = Mover(server, lambda address: pytest.fail("nobody is asked"), report)
    copier.follow(ORDER, 1)
    wait_for(lambda: bool(named), 60, "an order that is copied")
    copier.cancel()
    return named[0]


@pytest.mark.parametrize(
    ("copied_bytes", "hastens", "rounds"),
    [
        ([900 * _MIB, 400 * _MIB, 100 * _MIB, 3 * _MIB], 0, 4),
        ([900 * _MIB, 890 * _MIB, 880 * _MIB, 300 * _MIB, 2 * _MIB], 2, 5),
        ([900 * _MIB, 890 * _MIB, 880 * _MIB, 870 * _MIB], 1, 3),
        ([900 * _MIB, 890 * _MIB, 80 * _MIB, 40 * _MIB, 39 * _MIB], 5, 5),
        ([40 * _MIB, 39 * _MIB], 5, 2),
        ([5 * _MIB, _MIB], 5, 2),
        ([4 * _MIB], 5, 1),
    ],
    ids=["shrinks", "hastened", "cannot shrink", "is short", "is always short", "small at once", "all is small"],
)
def test_a_rest_is_small_or_copied_with_all_of_the_time_before_it_is_due(
    monkeypatch: pytest.MonkeyPatch, copied_bytes: Sequence[int], hastens: int, rounds: int
) -> None:
    assert rounds_until_small(monkeypatch, copied_bytes, hastens) == rounds


def test_a_taker_pauses_less_each_time_that_it_is_hastened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    clock = iter(np.arange(0, 1e4, 0.01).tolist())  # every answer takes a hundredth of a second
    monkeypatch.setattr(taking, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with cluster(2, 1) as moved:
        after: RoutingTable = moved.table(2, moved.routing.owners)
        order = moved.orders(after)["ps-1"]
        taker = Taker(ParameterServer("ps-1", JOB.spec, granted_cores=1), order, 1, moved.connect)
        monkeypatch.setattr(taker, "_ask", lambda source, request, answer: (answered(request.buckets), nothing()))
        taker._due = SimpleNamespace(wait=pauses.append)  # type: ignore[assignment]
        taken = []
        while True:
            for _ in range(2):
                taker.copy_round()
                taker._is_short = False  # as if the round had brought much
                assert taker.copying_seconds == pytest.approx(0.01 * len(taker._stores) * len(order.sources))
            taken.append(pauses[-1])
            if not taker.hasten():
                break
        taker.give_up()
    assert pauses[0] == 0.0, "nothing was copied before"
    assert taken == pytest.approx([0.09, 0.04, 0.015, 0.0025, 0.0])


def test_there_is_no_pause_after_a_round_or_before_due_work() -> None:
    steps: list[str] = []
    with cluster(2, 1) as moved:
        order = moved.orders(moved.table(2, moved.routing.owners))["ps-1"]
        taker = Taker(ParameterServer("ps-1", JOB.spec, granted_cores=1), order, 1, moved.connect)

        def ask(source: Any, request: CopyBuckets, answer: Any) -> Any:
            steps.append("ask")
            return answered(request.buckets), nothing()

        taker._ask = ask  # type: ignore[method-assign, assignment]
        due, taker._due = taker._due, SimpleNamespace(wait=lambda _: steps.append("pause"))  # type: ignore[assignment]
        taker.copy_round()
        assert steps == ["pause", "ask"] * (len(taker._stores) * len(order.sources))
        taker._due = due
        taker.hurry()
        assert taker._due.wait(60.0)
        taker.give_up()


def test_long_rounds_do_not_follow_each_other_before_the_hand_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, waits = [0.0], list[float]()
    rounds = Rounds([4 * _MIB], 0)
    server = ParameterServer("ps-0", JOB.spec, granted_cores=1)
    copier = Mover(server, lambda address: pytest.fail("nobody is asked"), lambda: None)

    def take_time() -> int:
        clock[0] += (0.01, 0.4, 60.0)[len(waits)]
        return Rounds.copy_round(rounds)

    def wait(order: TakeOrder, seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            copier._order = None

    monkeypatch.setattr(mover, "Taker", lambda *_: rounds)
    monkeypatch.setattr(mover, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(rounds, "copy_round", take_time)
    monkeypatch.setattr(copier, "_wait", wait)
    copier._order = ORDER
    copier._run(ORDER, 1)
    assert waits == pytest.approx([0.2, 3.6, 5.0])


def test_rows_that_change_in_every_round_are_listed_in_each_round() -> None:
    server = ParameterServer("ps-0", JOB.spec, granted_cores=1)
    server.start_empty(RoutingTable(epoch=1, owners=[0] * BUCKETS, servers=["ps-0"], addresses=["nowhere"]), 1)
    store, giver = server.stores[0], Giver(server)

    def push(ids: np.ndarray) -> None:
        counts = np.zeros(len(store.salts), np.int32)
        counts[0] = len(ids)
        store.push(counts, ids, np.empty(0, np.int32), np.ones((len(ids), store.group.dimension), np.float32), 0.0)

    push(np.arange(100_000))
    version, kinds = -1, []
    for number in range(20):
        request = CopyBuckets(generation=1, group=0, buckets=[3], since=[version], left=[(0, 0)])
        answer, arrays = giver.copy(request, [])
        assert isinstance(answer, Copied)
        (part,) = answer.parts
        kinds.append(part.is_whole)
        assert number == 0 or 50 < len(arrays[0]) < 200
        version = part.version
        push(np.arange(number % 5, 100_000, 16))
    assert kinds == [True] + 19 * [False]


def answered(buckets: Sequence[int]) -> Copied:
    return Copied(parts=[BucketCells(bucket, 1, False, 0, 0, 0, (0, 0)) for bucket in buckets])


def nothing() -> list[Any]:
    return [np.empty((0, 8), np.uint32), np.empty((0, 5), np.uint32), np.empty((0, 4), np.uint32)]
