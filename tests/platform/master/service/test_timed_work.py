"""Periodic work of a master: a slow pod is moved once, as soon as another node has room."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from elastrec.platform.clusters.nodes import Node
from elastrec.platform.master.machine import events
from elastrec.platform.master.machine.effects import Effect
from elastrec.platform.master.measuring.observations import Observations
from elastrec.platform.master.measuring.slow_pods import COOL_DOWN_SECONDS
from elastrec.platform.master.service.timed_work import TimedWork
from elastrec.platform.specs.metrics import TrainingMetrics
from elastrec.platform.specs.shape import PodSize
from tests.platform.master.machine.test_migration import long_job
from tests.platform.master.measuring.test_slow_pods import pass_window, report, report_load

FULL, FREE = PodSize(0.0, 0), PodSize(64.0, 2**40)


class Timed(TimedWork):
    """The periodic work of a master with a fake cluster and fake pods.

    Attributes:
        free: free capacity of the node without pods.
    """

    def __init__(self, slow_pod_moves: int = 5) -> None:
        self.world = long_job(slow_pod_moves=slow_pod_moves)
        self.free = FULL
        self._lock = threading.RLock()
        self._seen = Observations(self.world.time)
        self._reconciler: Any = SimpleNamespace(nodes=lambda: [Node(name="other", size=FREE, free=self.free)])
        self._number = 0
        self.submitted: list[events.Event] = []

    @property
    def state(self) -> Any:
        return self.world.state

    def now(self) -> float:
        return self.world.time

    def submit(self, make: Callable[[float], events.Event]) -> list[Effect]:
        event = make(self.now())
        self.submitted.append(event)
        effects = self.world.handle(event)
        self._seen.handled(self.state, effects, event.time)
        return effects

    def is_superseded(self) -> bool:
        return False

    def metrics(self) -> TrainingMetrics:
        raise NotImplementedError

    def totals(self) -> dict[str, float]:
        raise NotImplementedError

    def profile(self, message: Any) -> Any:
        raise NotImplementedError

    def change_shape(self, message: Any, own_plan: Any = None) -> Any:
        raise NotImplementedError

    def windows(self, count: int, slow: str) -> list[str]:
        """Pods that were said to stay in so many windows in which all heartbeats say that this one is slow."""
        with capture_logs() as lines:
            for _ in range(count):
                self._number += 1
                for member in self.state.membership.workers():
                    report(self.world, self._seen, member.name, 0.5 if member.name == slow else 0.1, self._number)
                for member in self.state.membership.servers():
                    report_load(self.world, self._seen, member.name, 8e-6 if member.name == slow else 2e-6)
                pass_window(self.world, self._seen)
                self._leave_slow_nodes()
        return [line["pod"] for line in lines if line["event"] == "slow_pod_stays"]

    def put_on_node(self, *pods: str) -> None:
        for pod in pods:
            self.state.membership.members[pod].node = "slow-node"


@pytest.mark.parametrize("slow", ["j-worker-1", "j-ps-0"])
def test_a_slow_pod_that_no_node_has_room_for_is_moved_as_soon_as_one_has(slow: str):
    timed = Timed()
    timed.put_on_node(slow)
    assert timed.windows(20, slow) == [slow], "it is said once"
    assert not timed.submitted
    timed.free = FREE
    assert timed.windows(1, slow) == []
    (event,) = timed.submitted
    assert isinstance(event, events.PodSlow) and event.pod == slow and timed.state.slow_moves == 1
    successor = timed.state.shape_requests[-1]
    assert successor is not None and successor.avoided_nodes == ["slow-node"]


def test_after_a_move_the_next_one_of_the_role_waits_for_its_effect():
    timed = Timed()
    timed.put_on_node("j-ps-0", "j-ps-1")
    timed.free = FREE
    timed.windows(14, "j-ps-0")
    assert len(timed.submitted) == 1
    moved = timed.submitted[0].time
    timed.world.live_on(20)
    assert "j-ps-0" not in timed.state.membership.members
    while timed.world.time < moved + COOL_DOWN_SECONDS - 10.0:
        timed.windows(1, "j-ps-1")
    assert len(timed.submitted) == 1
    timed.windows(4, "j-ps-1")
    assert len(timed.submitted) == 2 and timed.state.slow_moves == 2


def test_a_pod_that_is_slow_again_and_fits_no_other_node_is_logged_again():
    timed = Timed()
    timed.put_on_node("j-worker-1")
    assert timed.windows(20, "j-worker-1") == ["j-worker-1"]
    assert timed.windows(1, "nobody") == []
    assert timed.windows(20, "j-worker-1") == ["j-worker-1"]


def test_a_pod_on_an_unknown_node_is_not_moved():
    timed = Timed()
    timed.free = FREE
    timed.put_on_node("j-worker-1")
    timed.state.membership.members["j-worker-1"].node = ""
    assert timed.windows(20, "j-worker-1") == ["j-worker-1"] and not timed.submitted
