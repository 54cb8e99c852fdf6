"""The Reporter with healthy, slow, unreachable and refusing servers."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Sequence

import pytest

from elastrec.platform.history.points import Point
from elastrec.platform.history.reporter import Reporter
from elastrec.platform.history.sink import POINTS_PER_CALL, RefusedError
from elastrec.platform.specs.errors import HistoryError


class Recorder:
    """A sink that behaves as a test sets it."""

    def __init__(self) -> None:
        self.stored: list[float] = []
        self.calls: list[float] = []
        self.error: HistoryError | None = None
        self.open = threading.Event()
        self.open.set()
        self.called = threading.Event()

    def send(self, run_id: str, points: Sequence[Point], timeout_seconds: float) -> None:
        self.calls.append(time.monotonic())
        self.called.set()
        self.open.wait(timeout_seconds)
        if self.error is not None:
            raise self.error
        assert len(points) <= POINTS_PER_CALL
        self.stored += [point.value for point in points]


def points(first: int, last: int) -> list[Point]:
    return [Point("loss", float(number), number, 0.0) for number in range(first, last)]


def test_points_arrive_once_and_in_order_in_calls_of_bounded_size() -> None:
    sink = Recorder()
    reporter = Reporter("", "run", sink=sink, interval_seconds=0.01)
    for first in range(0, 5000, 10):
        reporter.log(points(first, first + 10))
    assert reporter.close(10)
    assert sink.stored == [float(number) for number in range(5000)]


def test_calls_keep_their_distance() -> None:
    sink = Recorder()
    reporter = Reporter("", "run", sink=sink, interval_seconds=0.2)
    until = time.monotonic() + 0.9
    while time.monotonic() < until:
        reporter.log(points(0, 1))
        time.sleep(0.001)
    assert reporter.close(5)
    gaps = [later - earlier for earlier, later in zip(sink.calls, sink.calls[1:-1], strict=False)]
    assert gaps and min(gaps) >= 0.19


def test_a_hanging_server_never_blocks_the_caller_and_costs_the_oldest_points() -> None:
    sink = Recorder()
    sink.open.clear()
    reporter = Reporter("", "run", sink=sink, capacity=100, interval_seconds=0.01)
    reporter.log(points(0, 50))
    assert sink.called.wait(5)
    before = time.monotonic()
    reporter.log(points(50, 1050))
    assert time.monotonic() - before < 0.5
    assert reporter.waiting == 100 and reporter.dropped == 950
    sink.open.set()
    assert not reporter.close(5)
    assert sink.stored[-100:] == [float(number) for number in range(950, 1050)]


def test_an_outage_is_survived_and_caught_up() -> None:
    sink = Recorder()
    sink.error = HistoryError("connection refused")
    reporter = Reporter("", "run", sink=sink, interval_seconds=0.01)
    reporter.log(points(0, 10))
    assert sink.called.wait(5)
    sink.error = None
    reporter.log(points(10, 20))
    assert reporter.close(5)
    assert sink.stored == [float(number) for number in range(20)]


def test_points_that_the_server_will_never_take_do_not_dam_up_the_others() -> None:
    sink = Recorder()
    sink.error = RefusedError("bad name")
    reporter = Reporter("", "run", sink=sink, interval_seconds=0.01)
    reporter.log(points(0, 3))
    assert sink.called.wait(5)
    deadline = time.monotonic() + 5
    while reporter.dropped < 3 and time.monotonic() < deadline:
        time.sleep(0.005)
    sink.error = None
    reporter.log(points(3, 5))
    assert not reporter.close(5)
    assert sink.stored == [3.0, 4.0] and reporter.dropped == 3


def test_closing_gives_up_at_its_deadline() -> None:
    sink = Recorder()
    sink.error = HistoryError("connection refused")
    reporter = Reporter("", "run", sink=sink)
    reporter.log(points(0, 3))
    before = time.monotonic()
    assert not reporter.close(0.5)
    assert time.monotonic() - before < 1.5
    reporter.log(points(3, 4))
    assert not reporter.close(0.5)


def test_an_idle_reporter_closes_immediately() -> None:
    before = time.monotonic()
    assert Reporter("http://127.0.0.1:1", "run").close(5)
    assert time.monotonic() - before < 1


def test_a_capacity_of_nothing_is_refused() -> None:
    with pytest.raises(HistoryError, match="capacity"):
        Reporter("", "run", sink=Recorder(), capacity=0)


def test_a_masters_imports_load_neither_mlflow_nor_torch() -> None:
    code = (
        "import sys, elastrec.platform.history as h; r = h.Reporter('http://127.0.0.1:1', 'x');"
        "r.log([h.Point('loss', 1.0, 0, 0.0)]); r.close(0.3);"
        "print([name for name in ('mlflow', 'torch', 'matplotlib') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout.strip().splitlines()[-1] == "[]"
