"""The Reporter with healthy, slow, unreachable and refusing servers."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import sqlalchemy.exc
import sqlalchemy.orm

from elastrec.platform.history import History
from elastrec.platform.history.delivery.reporter import Reporter
from elastrec.platform.history.delivery.sink import (
    POINTS_PER_CALL,
    ClientSink,
    RefusedError,
    RestSink,
    RunGoneError,
)
from elastrec.platform.history.delivery.spool import Spool
from elastrec.platform.history.points import Point
from elastrec.platform.specs.errors import CollisionError, HistoryError
from tests.processes import wait_for


class Recorder:
    """A sink that behaves as a test sets it."""

    def __init__(self) -> None:
        self.stored: list[float] = []
        self.tags: list[dict[str, str]] = []
        self.calls: list[float] = []
        self.error: HistoryError | None = None
        self.open = threading.Event()
        self.open.set()
        self.called = threading.Event()

    def send(self, run_id: str, points: Sequence[Point], timeout_seconds: float, tags: Mapping[str, str]) -> None:
        self.calls.append(time.monotonic())
        self.called.set()
        self.open.wait(timeout_seconds)
        if self.error is not None:
            raise self.error
        assert len(points) + len(tags) <= POINTS_PER_CALL
        self.stored += [point.value for point in points]
        self.tags += [dict(tags)] if tags else []


def points(first: int, last: int) -> list[Point]:
    return [Point("loss", float(number), number, 0.0) for number in range(first, last)]


def test_points_arrive_once_and_in_order_in_calls_of_bounded_size() -> None:
    sink = Recorder()
    reporter = Reporter("", "run", sink=sink, interval_seconds=0.01)
    for first in range(0, 5000, 10):
        reporter.log(points(first, first + 10))
    assert reporter.close(10)
    assert sink.stored == [float(number) for number in range(5000)]


def test_a_tag_goes_with_the_next_call_and_once() -> None:
    sink = Recorder()
    sink.open.clear()
    reporter = Reporter("", "run", sink=sink, interval_seconds=0.01)
    reporter.log(points(0, 1))
    assert sink.called.wait(5)
    reporter.set_tag("phase", "Training")
    reporter.log(points(1, 2500))
    sink.open.set()
    assert reporter.close(5)
    assert sink.tags == [{"phase": "Training"}]
    assert sink.stored == [float(number) for number in range(2500)]


def test_a_tag_is_sent_although_no_points_wait() -> None:
    sink = Recorder()
    reporter = Reporter("", "run", sink=sink, interval_seconds=0.01)
    reporter.set_tag("phase", "Training")
    wait_for(lambda: bool(sink.tags), 5, "the tag")
    assert reporter.close(5)
    reporter.set_tag("phase", "Saving")
    assert sink.tags == [{"phase": "Training"}] and sink.stored == []


@pytest.fixture
def tag_in_an_outage(monkeypatch: pytest.MonkeyPatch) -> tuple[Recorder, Reporter]:
    """A reporter that tries again and again to send the phase Training."""
    monkeypatch.setattr("elastrec.platform.history.delivery.reporter._LONGEST_PAUSE_SECONDS", 0.01)
    sink = Recorder()
    sink.error = HistoryError("connection refused")
    reporter = Reporter("", "run", sink=sink, interval_seconds=0.01)
    reporter.set_tag("phase", "Training")
    return sink, reporter


def test_only_the_newest_value_of_a_tag_is_sent_after_an_outage(tag_in_an_outage: tuple[Recorder, Reporter]) -> None:
    sink, reporter = tag_in_an_outage
    wait_for(lambda: len(sink.calls) > 1, 5, "the repeated tries")
    reporter.set_tag("phase", "Saving")
    sink.error = None
    assert reporter.close(5)
    assert sink.tags == [{"phase": "Saving"}]


def test_a_tag_that_is_set_while_its_earlier_value_is_being_sent_is_sent_afterwards() -> None:
    sink = Recorder()
    sink.open.clear()
    reporter = Reporter("", "run", sink=sink, interval_seconds=0.01)
    reporter.set_tag("phase", "Training")
    assert sink.called.wait(5)
    reporter.set_tag("phase", "Saving")
    sink.open.set()
    assert reporter.close(5)
    assert sink.tags == [{"phase": "Training"}, {"phase": "Saving"}]


def test_tags_that_the_server_refuses_are_not_sent_again() -> None:
    sink = Recorder()
    sink.error = RefusedError("bad name")
    reporter = Reporter("", "run", sink=sink, interval_seconds=0.01)
    reporter.set_tag("phase", "Training")
    assert sink.called.wait(5)
    assert reporter.close(5) and len(sink.calls) == 1 and sink.tags == []


def test_forgotten_tags_and_those_that_follow_are_not_sent(tag_in_an_outage: tuple[Recorder, Reporter]) -> None:
    sink, reporter = tag_in_an_outage
    assert sink.called.wait(5)
    reporter.forget_tags()
    sink.error = None
    reporter.set_tag("phase", "Saving")
    reporter.log(points(0, 1))
    assert reporter.close(5) and sink.stored == [0.0] and sink.tags == []


def test_the_run_that_replaces_a_deleted_one_gets_the_tags_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The description of the new run says that the job starts."""
    monkeypatch.setattr("elastrec.platform.history.delivery.reporter._LONGEST_PAUSE_SECONDS", 0.01)

    class Deletable(Recorder):
        deleted = ""

        def send(self, run_id: str, points: Sequence[Point], timeout_seconds: float, tags: Mapping[str, str]) -> None:
            self.error = RunGoneError("deleted") if run_id == self.deleted else None
            super().send(run_id, points, timeout_seconds, tags)

    sink = Deletable()
    reporter = Reporter("", "first", sink=sink, interval_seconds=0.001)
    reporter.set_tag("phase", "Training")
    wait_for(lambda: bool(sink.tags), 5, "the tag of the first run")
    sink.deleted = "first"
    reporter.log(points(0, 1))
    reporter.name_run("second")
    assert reporter.close(5)
    assert sink.tags == [{"phase": "Training"}] * 2 and sink.stored == [0.0]


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


@pytest.mark.parametrize("refusals", [1, 7, 8])
def test_points_that_the_servers_database_refuses_are_sent_again_but_not_for_ever(
    refusals: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastrec.platform.history.delivery.reporter._LONGEST_PAUSE_SECONDS", 0.01)

    class Busy(Recorder):
        def send(self, run_id: str, points: Sequence[Point], timeout_seconds: float, tags: Mapping[str, str]) -> None:
            self.error = CollisionError("no connection is free") if len(self.calls) < refusals else None
            super().send(run_id, points, timeout_seconds, tags)

    sink = Busy()
    reporter = Reporter("", "run", sink=sink, interval_seconds=0.001)
    reporter.log(points(0, 3))
    wait_for(lambda: reporter.waiting == 0, 5, "the end of the tries")
    reporter.log(points(3, 5))
    is_lost = refusals == 8
    assert reporter.close(5) != is_lost
    assert sink.stored == [float(number) for number in range(3 if is_lost else 0, 5)]


@pytest.mark.parametrize(
    ("status", "answer", "kind"),
    [
        (400, '{"error_code": "INVALID_PARAMETER_VALUE", "message": "bad name"}', RefusedError),
        (404, '{"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "no run"}', RunGoneError),
        (400, '{"error_code": "BAD_REQUEST", "message": "QueuePool limit of size 5 reached"}', CollisionError),
        (404, "default backend - 404", HistoryError),
        (400, "[]", HistoryError),
        (503, '{"error_code": "TEMPORARILY_UNAVAILABLE", "message": "database is locked"}', HistoryError),
    ],
)
def test_only_mlflow_itself_refuses_points_for_good(status: int, answer: str, kind: type[HistoryError]) -> None:
    """A proxy whose server is away may answer 404, and MLflow answers 400 if its database fails."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(answer.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(HistoryError) as caught:
            RestSink(f"http://127.0.0.1:{server.server_port}").send("run", points(0, 1), 10, {})
        thread.join()
    assert type(caught.value) is kind and answer in str(caught.value)


def test_a_failure_of_mlflows_database_is_no_refusal_of_the_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History(f"sqlite:///{tmp_path}/mlflow.db", "elastrec")
    run_id = history._client.create_run(history._experiment_id).info.run_id
    sink = ClientSink(f"sqlite:///{tmp_path}/mlflow.db")
    sink.send(run_id, points(0, 1), 10, {})

    def no_connection(*values: object, **named: object) -> None:
        raise sqlalchemy.exc.TimeoutError("QueuePool limit of size 5 reached")

    with monkeypatch.context() as patch:
        patch.setattr(sqlalchemy.orm.Session, "execute", no_connection)
        patch.setattr(sqlalchemy.orm.Query, "one", no_connection)
        patch.setattr(sqlalchemy.orm.Query, "all", no_connection)
        with pytest.raises(CollisionError, match="QueuePool"):
            sink.send(run_id, points(1, 2), 10, {})
    with pytest.raises(RunGoneError):
        sink.send("0" * 32, points(1, 2), 10, {})


def test_points_of_a_deleted_run_wait_until_another_run_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastrec.platform.history.delivery.reporter._LONGEST_PAUSE_SECONDS", 0.01)

    class Deleted(Recorder):
        def send(self, run_id: str, points: Sequence[Point], timeout_seconds: float, tags: Mapping[str, str]) -> None:
            self.error = RunGoneError("deleted") if run_id == "deleted" else None
            super().send(run_id, points, timeout_seconds, tags)

    sink = Deleted()
    reporter = Reporter("", "deleted", sink=sink, interval_seconds=0.001, spool=Spool(tmp_path / "spool"))
    reporter.log(points(0, 3))
    wait_for(lambda: len(sink.calls) > 2, 5, "the repeated tries")
    assert (reporter.waiting, reporter.dropped) == (3, 0)
    reporter.name_run("another")
    reporter.name_run("too late")
    assert reporter.close(5) and sink.stored == [0.0, 1.0, 2.0]
    assert reporter.run_id == Spool(tmp_path / "spool").run_id == "another"


@pytest.mark.parametrize("is_restarted", [False, True], ids=["one process", "the next process"])
def test_a_run_that_is_named_before_the_server_says_that_the_first_one_is_deleted_gets_the_points(
    tmp_path: Path, is_restarted: bool
) -> None:
    class Deleted(Recorder):
        runs = list[str]()

        def send(self, run_id: str, points: Sequence[Point], timeout_seconds: float, tags: Mapping[str, str]) -> None:
            self.error = RunGoneError("deleted") if run_id == "deleted" else None
            super().send(run_id, points, timeout_seconds, tags)
            self.runs.append(run_id)

    def reporter() -> Reporter:
        return Reporter("", "deleted", sink=sink, interval_seconds=0.001, spool=Spool(tmp_path / "spool"))

    sink = Deleted()
    named = reporter()
    named.name_run("another")
    if is_restarted:
        named.close(5)
        named = reporter()
    assert named.run_id == "deleted", "nobody has said yet that it is deleted"
    named.log(points(0, 3))
    assert named.close(5)
    assert (sink.runs, sink.stored) == (["another"], [0.0, 1.0, 2.0])
    again = reporter()
    assert named.run_id == again.run_id == "another", "also after a restart"
    again.close()


def test_a_run_that_is_there_keeps_its_points_whatever_is_named_later(tmp_path: Path) -> None:
    sink = Recorder()
    reporter = Reporter("", "run", sink=sink, interval_seconds=0.001, spool=Spool(tmp_path / "spool"))
    reporter.name_run("another")
    reporter.log(points(0, 3))
    assert reporter.close(5) and reporter.run_id == "run" and sink.stored == [0.0, 1.0, 2.0]


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
