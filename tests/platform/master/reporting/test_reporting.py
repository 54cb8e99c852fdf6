from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from elastrec.platform.clusters.pods import PodPhase, PodSize, PodStatus
from elastrec.platform.history import metric_names as names
from elastrec.platform.history.delivery.reporter import Reporter
from elastrec.platform.history.points import Point
from elastrec.platform.master.machine.state import JobState
from elastrec.platform.master.measuring.monitor import FIRST_WINDOW_SECONDS, Monitor
from elastrec.platform.master.reporting.status import totals, training_metrics
from elastrec.platform.master.reporting.unsent_metrics import read_points
from elastrec.platform.master.service.history_sink import HistorySink, Report, leave_points, open_history_sink
from elastrec.platform.specs.errors import ClusterError, HistoryError
from elastrec.platform.specs.metrics import Phase, PodMetrics, Role, TrainingMetrics
from elastrec.platform.specs.splits import TRAINING_STREAM, Positions, StreamPositions
from elastrec.platform.transport.messages.job import Heartbeat, WindowMetrics
from tests.heads import encoded
from tests.platform.master.fakes import FakeCluster, job, launch
from tests.platform.master.world import World, plan, running
from tests.processes import wait_for

pytestmark = pytest.mark.usefixtures("some_fleet")


def beat(pod: str, **metrics: Any) -> Heartbeat:
    window = WindowMetrics(**metrics)
    return Heartbeat(pod=pod, incarnation="i", generation=0, reached_version=0, metrics=window, memory_bytes=7)


def coarse(predictions: list[float], labels: list[int]) -> bytes:
    return encoded(predictions, labels, coarse=True)


def test_a_window_adds_up_the_heartbeats_of_all_workers():
    monitor = Monitor(0.0)
    monitor.add(beat("a", samples=60, steps=2, loss_sum=30.0, compute_seconds=0.4, sketch=coarse([0.1, 0.9], [0, 1])))
    monitor.add(beat("b", samples=40, steps=4, loss_sum=40.0, pull_seconds=0.4, sketch=coarse([0.8, 0.2], [0, 1])))
    assert not monitor.is_window_over(FIRST_WINDOW_SECONDS - 0.1) and monitor.is_window_over(FIRST_WINDOW_SECONDS)
    window = monitor.close_window(FIRST_WINDOW_SECONDS)
    assert window is not None
    assert window.samples_per_second == 100 / FIRST_WINDOW_SECONDS and window.loss == pytest.approx(0.7)
    (head,) = window.heads
    assert head.name == "label" and head.auc == pytest.approx(0.75, abs=0.01)
    assert head.calibration == pytest.approx(1.0)
    assert window.batch_seconds == pytest.approx({"a": 0.2, "b": 0.1})
    assert monitor.pods["b"].phase_seconds["pull"] == pytest.approx(0.1)


def test_bytes_are_given_per_trained_sample():
    monitor = Monitor(0.0)
    assert monitor.traffic() == {}
    monitor.add(beat("a", samples=60, steps=2, bytes_pulled=600, bytes_read=120, bytes_read_plain=240))
    monitor.add(beat("b", samples=40, steps=4, bytes_pulled=400, bytes_pushed=100, bytes_read=80, bytes_read_plain=160))
    monitor.close_window(FIRST_WINDOW_SECONDS)
    found = monitor.traffic()
    assert found == {
        names.TRAFFIC_PULLED: 10.0, names.TRAFFIC_PUSHED: 1.0, names.TRAFFIC_READ: 2.0, names.TRAFFIC_READ_PLAIN: 4.0
    }  # fmt: skip


def test_a_window_that_is_sent_twice_counts_once_and_a_new_process_counts_from_one_again():
    monitor = Monitor(0.0)
    window = WindowMetrics(number=1, samples=64, steps=1)
    beat = Heartbeat(pod="w0", incarnation="a", generation=0, reached_version=1, metrics=window)
    assert monitor.add(beat)
    assert not monitor.add(beat)
    assert monitor.add(msgspec.structs.replace(beat, incarnation="b"))
    assert monitor.pods["w0"].samples == 128


def test_a_damaged_sketch_of_a_window_costs_only_itself():
    monitor = Monitor(0.0)
    monitor.add(beat("a", samples=10, steps=1, loss_sum=5.0, sketch=b"rubbish"))
    window = monitor.close_window(FIRST_WINDOW_SECONDS)
    assert window is not None and window.heads == () and window.loss == 0.5


def test_a_pod_that_does_not_fit_is_the_reason_why_a_job_waits():
    state = World(plan()).state
    status = PodStatus(
        name="j-ps-0",
        uid="1",
        job="j",
        role=Role.PARAMETER_SERVER,
        phase=PodPhase.PENDING,
        size=PodSize(1, 1),
        reason="Unschedulable",
        message="insufficient cpu: asked 1.0, free 0.5",
    )
    metrics = training_metrics(state, "clicks", 1.0, None, {}, {"j-ps-0": status})
    assert metrics.reason == "j-ps-0 waits: Unschedulable: insufficient cpu: asked 1.0, free 0.5"
    assert metrics.pods[0].state == "Pending" and "insufficient cpu" in metrics.pods[0].reason


def test_totals_show_repeats_and_where_the_time_went():
    world = running()
    world.time += 10.0
    world.kill("j-worker-0")
    world.run_fairly()
    found = totals(world.state, world.time)
    assert found[names.SAMPLES_REPEATED] == world.state.training.samples - 130
    assert found["time/training_seconds"] >= 10.0 and 0 < found[names.GOODPUT] <= 1


def test_the_mean_speed_is_that_of_the_jobs_own_samples_over_the_time_of_all_its_masters():
    begin = Positions({TRAINING_STREAM: StreamPositions(5, [])})
    state = JobState.new(plan(start_record="file:///s/r/1", start_positions=begin))
    of_another_job = state.samples_before
    assert of_another_job == state.samples_of_start > 0
    state.training.samples += 60
    found = totals(state, 10.0)
    assert (found[names.SECONDS], found[names.MEAN_SAMPLES_PER_SECOND]) == (10.0, 6.0)
    state.begin_after({"training": 20.0, "pending": 10.0})
    found = totals(state, 10.0)
    assert (found[names.SECONDS], found[names.MEAN_SAMPLES_PER_SECOND]) == (40.0, 1.5)
    state.begin_after(None)
    assert not {names.SECONDS, names.MEAN_SAMPLES_PER_SECOND} & totals(state, 10.0).keys()


class Slow:
    """A tracking server that takes nothing until a test lets it."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.tags: list[tuple[str, str]] = []
        self.open = threading.Event()
        self.tried = threading.Event()

    def send(self, run_id: str, points: Sequence[Point], timeout_seconds: float, tags: Mapping[str, str]) -> None:
        self.tried.set()
        if not self.open.is_set():
            raise HistoryError("away")
        self.points += points
        self.tags += tags.items()


def metrics(phase: Phase) -> TrainingMetrics:
    pod = PodMetrics(name="w", role=Role.WORKER, state="Running", batch_seconds=0.1)
    return TrainingMetrics(job="clicks", phase=phase, samples_trained=50, samples_per_second=5.0, loss=0.4, pods=(pod,))


def test_history_gets_series_and_totals_after_an_outage_of_its_server():
    server, sketches = Slow(), encoded(np.linspace(0.01, 0.99, 100), np.arange(100) > 50)
    sink = HistorySink(Reporter("", "run", sink=server, interval_seconds=0.01), FakeCluster(), "clicks-1")
    sink.put(Report(metrics(Phase.TRAINING), {}, b""))
    totals = {names.SAMPLES_REPEATED: 3.0, "time/training_seconds": 9.0, names.WORKER_START_SECONDS: 2.0}
    sink.put(Report(metrics(Phase.SUCCEEDED), totals, sketches))
    sink.put(Report(metrics(Phase.SUCCEEDED), {names.SAMPLES_REPEATED: 4.0}, b""))
    server.open.set()
    sink.close()
    values = {point.name: point.value for point in server.points}
    assert values[names.LOSS] == 0.4 and values[names.SAMPLES_REPEATED] == 3.0
    assert values["time/training_seconds"] == 9.0 and values[names.CORE_HOURS] >= 0.0
    assert [point.name for point in server.points].count(names.WORKER_START_SECONDS) == 1
    assert names.CALIBRATION_OBSERVED in values


def test_the_runs_tag_has_the_phase_until_it_is_final():
    server = Slow()
    server.open.set()
    sink = HistorySink(Reporter("", "run", sink=server, interval_seconds=0.01), FakeCluster(), "clicks-1")
    phases = (Phase.STARTING, Phase.TRAINING, Phase.RECOVERING, Phase.TRAINING, Phase.SAVING, Phase.EVALUATING)
    for number, phase in enumerate(phases, start=1):
        for _ in range(2):
            sink.put(Report(metrics(phase), {}, b""))
        wait_for(lambda number=number: len(server.tags) >= number, 10, f"the tag of phase {phase.value}")
    sink.put(Report(metrics(Phase.SUCCEEDED), {names.SAMPLES_REPEATED: 3.0}, b""))
    assert sink.close() == []
    assert server.tags == [("elastrec.phase", phase.value) for phase in phases]


def test_a_phase_that_waits_for_the_server_does_not_replace_the_final_one():
    server = Slow()
    sink = HistorySink(Reporter("", "run", sink=server, interval_seconds=0.01), FakeCluster(), "clicks-1")
    sink.put(Report(metrics(Phase.TRAINING), {}, b""))
    assert server.tried.wait(10)
    sink.put(Report(metrics(Phase.FAILED), {names.SAMPLES_REPEATED: 3.0}, b""))
    # The final phase has been handled when its figures wait.
    wait_for(lambda: any(each.name == names.SAMPLES_REPEATED for each in sink._reporter.undelivered()), 10, "the end")
    server.open.set()
    assert sink.close() == []
    assert server.points and server.tags == []


def test_while_the_cluster_does_not_answer_the_newest_reports_wait_with_the_time_of_their_measurement():
    """The last report has the totals of the job."""
    server, cluster, answers = Slow(), FakeCluster(), threading.Event()
    server.open.set()

    def wait(operation: str, name: str) -> None:
        if not answers.wait(20):
            raise ClusterError("no answer")

    cluster.before = wait
    sink = HistorySink(Reporter("", "run", sink=server, interval_seconds=0.01), cluster, "clicks-1")
    for number in range(100):
        sink.put(Report(metrics(Phase.TRAINING).model_copy(update={"samples_trained": number}), {}, b""))
    sink.put(Report(metrics(Phase.SUCCEEDED), {names.SAMPLES_REPEATED: 3.0}, b""))
    put_at = time.time()
    time.sleep(0.05)
    answers.set()
    sink.close()
    values = {point.name: point.value for point in server.points}
    assert values[names.SAMPLES_REPEATED] == 3.0
    of_windows = [point for point in server.points if point.name == names.LOSS]
    assert 50 < len(of_windows) <= 66 and all(point.unix_seconds <= put_at for point in of_windows)


@pytest.mark.parametrize("prices", [None, {"core_hour": 1, "gibibyte_hour": 1, "currency": "EUR"}])
def test_the_cost_in_money_is_measured_where_the_job_file_has_prices(
    prices: dict[str, object] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    server = Slow()
    server.open.set()
    monkeypatch.setattr(
        "elastrec.platform.master.service.history_sink.Reporter",
        lambda uri, run_id, spool: Reporter(uri, run_id, sink=server, interval_seconds=0.01),
    )
    launched = launch(str(tmp_path), job(history={"prices": prices}))
    launched = msgspec.structs.replace(launched, tracking_uri="http://mlflow", run_id="run")
    sink = open_history_sink(launched, FakeCluster(), tmp_path)
    assert sink is not None
    sink.put(Report(metrics(Phase.TRAINING), {}, b""))
    sink.close()
    found = {point.name for point in server.points}
    assert names.CORE_HOURS in found and (names.COST in found) == (prices is not None)


def test_reports_never_wait_for_history():
    sink = HistorySink(Reporter("", "run", sink=Slow()), FakeCluster(), "clicks-1")
    for _ in range(500):
        sink.put(Report(metrics(Phase.TRAINING), {}, b""))
    sink.close(deadline_seconds=0.5)


def test_a_new_state_has_metrics_without_any_heartbeat():
    found = training_metrics(JobState.new(plan()), "clicks", 0.0, None, {}, {})
    assert found.phase is Phase.PENDING and found.loss is None and not found.evaluated


def test_the_next_master_leaves_its_unsent_figures_behind_those_of_the_first(tmp_path: Path):
    """MLflow was away while a job failed, was launched again, and continued from its record."""
    launched = launch(str(tmp_path), job())
    first, second = ([Point(names.LOSS, 1.0 / step, step, 1e9 + step)] for step in (1, 2))
    leave_points(launched, first)
    leave_points(launched, [])
    leave_points(launched, second)
    assert read_points(launched.store, "clicks", launched.job_id) == [*first, *second]
