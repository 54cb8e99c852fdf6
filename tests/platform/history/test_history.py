"""Job records in a real MLflow server process."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import pytest
from mlflow.tracking import MlflowClient
from structlog.testing import capture_logs

from elastrec.platform.data.metrics.binary import BinaryMetricsSketch
from elastrec.platform.history import History, JobFilter, Point, Reporter, Sizes, final_points, window_points
from elastrec.platform.history import metric_names as names
from elastrec.platform.history.delivery.sink import POINTS_PER_CALL, ClientSink, RestSink
from elastrec.platform.history.points import calibration_points
from elastrec.platform.history.records import TAG_PHASE
from elastrec.platform.history.report import Story
from elastrec.platform.jobs.types import Allocation, Prepared
from elastrec.platform.specs.errors import HistoryError
from elastrec.platform.specs.metrics import Phase, PodMetrics, Role, TrainingMetrics
from tests.platform.history.gates import gate_decision, ready_model

pytestmark = pytest.mark.services

MakePrepared = Callable[..., Prepared]


def metrics_at(samples: int, *, evaluated: bool = False, phase: Phase = Phase.TRAINING) -> TrainingMetrics:
    workers = tuple(
        PodMetrics(name=f"clicks-w-{n}", role=Role.WORKER, state="Running", batch_seconds=0.02 + n / 1000)
        for n in range(2)
    )
    return TrainingMetrics(
        job="clicks", phase=phase, elapsed_seconds=samples / 100, samples_total=2000, samples_trained=samples,
        shards_total=10, shards_done=10, samples_per_second=100.0, loss=0.7 - samples / 10_000, auc=0.75,
        normalized_entropy=0.9, evaluated=evaluated, evaluation_samples=200 if evaluated else 0, pods=workers,
    )  # fmt: skip


def test_a_started_job_is_described_by_params_tags_inputs_and_its_job_file(
    history: History, client: MlflowClient, make_prepared: MakePrepared, allocation: Allocation
) -> None:
    run = client.get_run(history.start_run(make_prepared(), allocation))
    assert run.data.params["asked.workers"] == "1" and run.data.params["granted.workers"] == "3"
    assert run.data.tags["elastrec.job_id"] == "clicks-20260101"
    assert run.data.tags["elastrec.label.market"] == "eu" and run.data.tags["elastrec.team"] == "ads"
    note = run.data.tags["mlflow.note.content"]
    assert "ad  kept" in note and note.startswith("Trains on 1,000 rows of 2026-01-01, is evaluated on ")
    assert " rows of 2026-01-02.\n" in note
    assert run.data.params["data.training_rows"] == "1000" and run.data.params["data.days"] == "2026-01-01"
    assert run.data.metrics == {}, "what does not change is no metric"
    inputs = {item.tags[0].value: item.dataset for item in run.inputs.dataset_inputs}
    assert {context: dataset.name for context, dataset in inputs.items()} == {
        "training": "clicks 2026-01-01", "evaluation": "clicks 2026-01-02"
    }  # fmt: skip
    assert inputs["training"].digest != inputs["evaluation"].digest
    assert '"num_rows": 1000' in inputs["training"].profile
    assert [item.path for item in client.list_artifacts(run.info.run_id)] == ["job.json"]
    assert run.info.status == "RUNNING"


def test_starting_again_gives_the_same_run_and_a_new_one_only_after_a_failure(
    history: History, client: MlflowClient, make_prepared: MakePrepared, allocation: Allocation
) -> None:
    prepared = make_prepared()
    first = history.start_run(prepared, allocation)
    assert history.start_run(prepared, allocation) == first
    history.finish_run(first, Phase.FAILED, "ValueError: bad feature")
    second = history.start_run(prepared, allocation)
    assert second != first
    assert client.get_run(second).data.tags["elastrec.attempt"] == "2"
    history.finish_run(second, Phase.SUCCEEDED)
    assert history.start_run(prepared, allocation) == second


def test_four_concurrent_callers_get_one_run(
    tracking_server,
    make_prepared: MakePrepared,
    allocation: Allocation,  # type: ignore[no-untyped-def]
) -> None:
    prepared = make_prepared()
    histories = [History(tracking_server.uri, "race") for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda history: history.start_run(prepared, allocation), histories))
    # A loser of the race may have answered before it was sorted out; from now on all agree.
    assert len({history.start_run(prepared, allocation) for history in histories}) == 1
    assert len(histories[0].job_records()) == 1


def test_a_job_is_read_back_as_it_was_written(
    history: History, make_prepared: MakePrepared, allocation: Allocation
) -> None:
    run_id = history.start_run(make_prepared(), allocation)
    for points in (window_points, final_points):
        history.log_series(run_id, points(metrics_at(2000, evaluated=True), time.time()))
    history.finish_run(run_id, Phase.SUCCEEDED)
    (record,) = history.job_records()
    assert record == history.record(run_id)
    assert (record.job_name, record.team, record.architecture, record.phase) == ("clicks", "ads", "dlrm", "Succeeded")
    assert record.granted == Sizes.granted(allocation) and record.asked.workers == 1
    assert record.interval == ("2026-01-01T00:00:00+00:00", "2026-01-02T00:00:00+00:00")
    assert record.labels == {"market": "eu"} and record.features["training_rows"] == 1000
    assert (record.auc, record.normalized_entropy, record.samples_trained) == (0.75, 0.9, 2000)
    assert record.ended_unix_seconds is not None and record.ended_unix_seconds >= record.started_unix_seconds


def test_jobs_are_found_by_tags_and_phases(
    history: History, client: MlflowClient, make_prepared: MakePrepared, allocation: Allocation
) -> None:
    for job_id, name, rows in (("a", "clicks", 10), ("b", "clicks", 1000), ("c", "sales", 1000)):
        history.start_run(make_prepared(job_id, name=name, rows=rows), allocation)
    (of_a,) = history.job_records(JobFilter(job_id="a"))
    history.finish_run(of_a.run_id, Phase.STOPPED, "stopped by its owner")
    client.create_run(client.get_run(of_a.run_id).info.experiment_id, tags={"made by": "another tool"})

    def found(**wanted: object) -> str:
        return "".join(record.job_id for record in history.job_records(JobFilter(**wanted)))  # type: ignore[arg-type]

    assert found() == "cba"
    assert found(job_name="clicks") == "ba"
    assert found(phases=(Phase.STOPPED,)) == "a"
    assert found(phases=(Phase.STOPPED, Phase.STARTING), job_name="clicks") == "ba"
    assert found(labels={"market": "eu"}, team="ads", architecture="dlrm") == "cba"
    assert found(team="it's") == ""
    assert [record.job_id for record in history.job_records(limit=1)] == ["c"]
    assert of_a.phase is Phase.STARTING and history.record(of_a.run_id).reason == "stopped by its owner"
    with pytest.raises(HistoryError, match="quotes"):
        found(team='it\'s "odd"')


def test_only_the_half_written_run_is_left_out(
    history: History, client: MlflowClient, make_prepared: MakePrepared, allocation: Allocation
) -> None:
    run_id = history.start_run(make_prepared(), allocation)
    experiment = client.get_run(run_id).info.experiment_id
    broken = client.create_run(experiment, tags={"elastrec.described": "true", "elastrec.job_id": "broken"})
    assert [record.job_id for record in history.job_records()] == [history.record(run_id).job_id]
    with pytest.raises(HistoryError, match=rf"{broken.info.run_id} is no job record: KeyError"):
        history.record(broken.info.run_id)


def test_a_reporter_over_http_fills_the_series_and_nan_is_kept(
    history: History,
    tracking_server,
    make_prepared: MakePrepared,
    allocation: Allocation,  # type: ignore[no-untyped-def]
) -> None:
    run_id = history.start_run(make_prepared(), allocation)
    reporter = Reporter(tracking_server.uri, run_id, interval_seconds=0.05)
    for samples in range(0, 2000, 100):
        reporter.log(window_points(metrics_at(samples), time.time()))
    reporter.log([Point(names.LOSS, float("nan"), 2000, time.time()), Point("odd", float("-inf"), 1, time.time())])
    assert reporter.close(10)
    loss = history.series(run_id, names.LOSS)
    assert [step for step, _ in loss] == list(range(0, 2001, 100))
    assert loss[5] == (500, pytest.approx(0.65)) and np.isnan(loss[-1][1])
    assert len(history.series(run_id, names.SLOWEST_STEP_SECONDS)) == 20


@pytest.mark.parametrize("way", ["http", "client"])
def test_a_reporter_writes_the_phase_of_a_running_job_beside_a_full_call_of_points(
    history: History,
    tracking_server,  # type: ignore[no-untyped-def]
    make_prepared: MakePrepared,
    allocation: Allocation,
    way: str,
) -> None:
    """MLflow's limit holds for metrics and tags together."""
    run_id = history.start_run(make_prepared(), allocation)
    assert history.record(run_id).phase is Phase.STARTING
    sink = RestSink(tracking_server.uri) if way == "http" else ClientSink(tracking_server.uri)
    reporter = Reporter("", "", sink=sink, interval_seconds=0.05)
    reporter.set_tag(TAG_PHASE, Phase.TRAINING.value)
    reporter.log([Point("loss", 0.5, step, time.time()) for step in range(POINTS_PER_CALL)])
    reporter.name_run(run_id)
    assert reporter.close(30)
    assert len(history.series(run_id, "loss")) == POINTS_PER_CALL
    assert history.record(run_id).phase is Phase.TRAINING
    assert [each.run_id for each in history.job_records(JobFilter(phases=(Phase.TRAINING,)))] == [run_id]
    history.finish_run(run_id, Phase.SUCCEEDED)
    assert history.record(run_id).phase is Phase.SUCCEEDED


@pytest.mark.parametrize("way", ["http", "client"])
@pytest.mark.parametrize("has_status", [False, True], ids=["while it is closed", "closed"])
def test_the_phase_of_a_master_that_was_superseded_during_an_outage_does_not_replace_the_end_of_the_job(
    history: History,
    tracking_server,  # type: ignore[no-untyped-def]
    make_prepared: MakePrepared,
    allocation: Allocation,
    way: str,
    has_status: bool,
) -> None:
    """Its figures are those of the job, so they still arrive."""
    run_id = history.start_run(make_prepared(), allocation)
    if has_status:
        history.finish_run(run_id, Phase.SUCCEEDED)
    else:  # `finish_run` draws pictures before it closes the run
        history.set_phase(run_id, Phase.SUCCEEDED)
    sink = RestSink(tracking_server.uri) if way == "http" else ClientSink(tracking_server.uri)
    for points in ([], [Point("loss", 0.5, 1, time.time())]):
        sink.send(run_id, points, 30, {TAG_PHASE: Phase.TRAINING.value})
    assert history.record(run_id).phase is Phase.SUCCEEDED
    assert len(history.series(run_id, "loss")) == 1


def test_a_finished_job_has_its_pictures_status_and_reason(
    history: History,
    client: MlflowClient,
    make_prepared: MakePrepared,
    allocation: Allocation,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    run_id = history.start_run(make_prepared(), allocation)
    for samples in range(100, 2000, 100):
        history.log_series(run_id, window_points(metrics_at(samples), time.time()))
    history.log_series(run_id, final_points(metrics_at(2000, evaluated=True), time.time()))
    rng = np.random.default_rng(0)
    sketch = BinaryMetricsSketch()
    predictions = rng.random(5000)
    sketch.update(predictions, rng.random(5000) < predictions)
    history.log_series(run_id, calibration_points(sketch.calibration(), time.time()))
    for _ in range(2):
        history.finish_run(run_id, Phase.SUCCEEDED)
    pictures = sorted(item.path for item in client.list_artifacts(run_id, "figures"))
    assert pictures == ["figures/calibration.png", "figures/learning_curve.png", "figures/step_seconds.png"]
    for picture in pictures:
        data = Path(client.download_artifacts(run_id, picture, str(tmp_path))).read_bytes()
        assert data.startswith(b"\x89PNG") and len(data) > 5000
    assert client.get_run(run_id).info.status == "FINISHED"
    assert "View run" not in capfd.readouterr().out
    with pytest.raises(HistoryError, match="Training is not allowed"):
        history.finish_run(run_id, Phase.TRAINING)


def test_a_job_whose_loss_was_infinite_is_closed_with_its_pictures(
    history: History, client: MlflowClient, make_prepared: MakePrepared, allocation: Allocation
) -> None:
    run_id = history.start_run(make_prepared(), allocation)
    infinity, nan = float("inf"), float("nan")
    losses = enumerate((0.7, infinity, -infinity, nan, 0.5))
    history.log_series(run_id, [Point(names.LOSS, value, step, 1e9 + step) for step, value in losses])
    groups = {names.CALIBRATION_PREDICTED: (0.1, nan), names.CALIBRATION_OBSERVED: (0.1, 0.2)}
    points = [Point(name, value, step, 1e9) for name, values in groups.items() for step, value in enumerate(values)]
    points += [Point(names.CALIBRATION_ROWS, 10.0, step, 1e9) for step in range(2)]
    history.log_series(run_id, [*points, Point(names.EVALUATION_LOG_LOSS, infinity, 5, 1e9)])
    assert [value for _, value in history.series(run_id, names.LOSS)][:3] == [0.7, infinity, -infinity]
    history.finish_run(run_id, Phase.SUCCEEDED)
    assert client.get_run(run_id).info.status == "FINISHED"
    pictures = {item.path for item in client.list_artifacts(run_id, "figures")}
    assert pictures == {"figures/calibration.png", "figures/learning_curve.png"}
    assert history.record(run_id).metrics[names.EVALUATION_LOG_LOSS] == infinity
    report = history.report(run_id)
    assert "179,769" not in report and "1797693" not in report


def test_a_run_is_closed_with_its_reason_also_if_its_pictures_cannot_be_drawn(
    history: History,
    client: MlflowClient,
    make_prepared: MakePrepared,
    allocation: Allocation,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*values: object) -> None:
        raise ValueError("Axis limits cannot be NaN or Inf")

    run_id = history.start_run(make_prepared(), allocation)
    monkeypatch.setattr("elastrec.platform.history.figures.learning_curve", refuse)
    history.finish_run(run_id, Phase.FAILED, "bug")
    assert client.get_run(run_id).info.status == "FAILED"
    assert {"reason.txt", "report.html"} <= {item.path for item in client.list_artifacts(run_id)}


def test_a_failed_job_without_any_series_closes_with_its_traceback(
    history: History, client: MlflowClient, make_prepared: MakePrepared, allocation: Allocation
) -> None:
    run_id = history.start_run(make_prepared(), allocation)
    traceback = "Traceback:\n" + "  line\n" * 2000 + "ZeroDivisionError"
    history.finish_run(run_id, Phase.FAILED, traceback)
    assert client.get_run(run_id).info.status == "FAILED"
    assert "reason.txt" in [item.path for item in client.list_artifacts(run_id)]
    assert history.record(run_id).phase is Phase.FAILED


def test_the_gates_scores_stand_beside_the_training_curve_and_on_the_logged_model(
    history: History, client: MlflowClient, make_prepared: MakePrepared, allocation: Allocation
) -> None:
    run_id = history.start_run(make_prepared(), allocation)
    model = ready_model(client, run_id)
    gate = gate_decision(f"models:/{model.model_id}")
    training = [
        Point(names.AUC, 0.5, 100, 1.0),
        Point(names.AUC, 0.7, 200, 2.0),
        Point(names.SAMPLES_TRAINED, 150, 200, 2.0),
        Point(names.SAMPLES_OF_START, 50, 200, 2.0),
    ]
    history.log_series(run_id, training)
    history.log_gate(run_id, gate)
    record = history.record(run_id)
    assert (record.auc, record.metrics["evaluation/champion_auc"]) == (0.75, 0.74)
    gains = [record.metrics[f"evaluation/{figure}_gain"] for figure in ("auc", "normalized_entropy")]
    assert gains == pytest.approx([0.01, 0.01]), "above 0 is better, also where less is better"
    assert history.series(run_id, names.AUC) == [(100, 0.5), (200, 0.7)], "the training curve is left alone"
    assert history.series(run_id, names.EVALUATION_AUC) == [(200, 0.75)]
    of_model = {metric.key: metric.value for metric in client.get_logged_model(model.model_id).metrics}
    assert of_model[names.EVALUATION_AUC] == 0.75
    assert "evaluation/champion_auc" not in of_model
    assert client.get_run(run_id).data.tags["elastrec.gate"] == "passed"


def test_links_lead_to_pages_of_the_machine_learning_view(tracking_server, history: History) -> None:  # type: ignore[no-untyped-def]
    url = history.run_url("abc")
    assert url.startswith(f"{tracking_server.uri}/#/experiments/")
    assert url.endswith("/runs/abc?workflowType=machine_learning")
    wanted = "tags.%60elastrec.job_id%60%20%3D%20%27clicks-1%27"
    assert f"/runs?searchFilter={wanted}&workflowType=machine_learning" in history.job_url("clicks-1")
    shown = History(tracking_server.uri, history._experiment, ui_url="https://mlflow.example/")
    assert shown.run_url("abc").startswith("https://mlflow.example/#/")


def test_a_run_is_named_by_job_and_days_and_links_to_its_dag_run(
    history: History, client: MlflowClient, make_prepared: MakePrepared, allocation: Allocation
) -> None:
    page = "https://airflow.example/team/dags/daily/runs/scheduled__2026-01-03"
    prepared = msgspec.structs.replace(make_prepared(), run_tags={"airflow.dag_id": "daily", "airflow.url": page})
    first = history.start_run(prepared, allocation)
    run = client.get_run(first)
    assert run.info.run_name == "clicks 2026-01-01"
    assert run.data.tags["airflow.dag_id"] == "daily" and run.data.tags["airflow.url"] == page
    assert f"({page})" in run.data.tags["mlflow.note.content"]
    history.finish_run(first, Phase.FAILED)
    assert client.get_run(history.start_run(prepared, allocation)).info.run_name == "clicks 2026-01-01 (attempt 2)"


def test_the_run_of_a_job_links_to_the_task_that_attached_last(
    history: History, client: MlflowClient, make_prepared: MakePrepared, allocation: Allocation
) -> None:
    launched = msgspec.structs.replace(make_prepared(), run_tags={"airflow.dag_id": "daily", "airflow.log_url": "a"})
    run_id = history.start_run(launched, allocation)
    waiting = msgspec.structs.replace(launched, run_tags={"airflow.log_url": "b"})
    assert history.start_run(waiting, allocation) == run_id and history.record(run_id).log_url == "b"
    assert history.start_run(make_prepared(), allocation) == run_id
    tags = client.get_run(run_id).data.tags
    assert (tags["airflow.dag_id"], tags["airflow.log_url"]) == ("daily", "b"), "who names nothing changes nothing"


def test_the_run_of_a_job_for_which_no_task_waits_any_more_links_to_no_log(
    history: History,
    client: MlflowClient,
    make_prepared: MakePrepared,
    allocation: Allocation,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launched = msgspec.structs.replace(make_prepared(), run_tags={"airflow.dag_id": "daily", "airflow.log_url": "a"})
    resumed = msgspec.structs.replace(launched, run_tags={"airflow.dag_id": "daily", "airflow.log_url": ""})
    run_id = history.start_run(launched, allocation)
    before = client.get_run(run_id)
    assert history.start_run(resumed, allocation) == run_id and history.record(run_id).log_url == ""
    tags = client.get_run(run_id).data.tags
    assert tags["airflow.dag_id"] == "daily" and "airflow.log_url" not in tags
    with monkeypatch.context() as patch:
        # Of two that resume it, the later one has read the run before the earlier one changed it.
        patch.setattr(history, "_live_run", lambda *values: before)
        assert history.start_run(resumed, allocation) == run_id
    history.finish_run(run_id, Phase.STOPPED)
    anew = client.get_run(history.start_run(resumed, allocation))
    assert anew.info.run_id != run_id and "airflow.log_url" not in anew.data.tags


def test_a_password_in_the_tracking_uri_is_in_no_link_and_nowhere_in_the_run(
    history: History, client: MlflowClient, make_prepared: MakePrepared, allocation: Allocation, tmp_path: Path
) -> None:
    uri = client.tracking_uri.replace("//", "//user:s3cret@")
    guarded = History(uri, history._experiment)
    run_id = guarded.start_run(make_prepared(), allocation)
    assert guarded.run_url(run_id) == history.run_url(run_id)
    guarded.finish_run(run_id, Phase.SUCCEEDED)
    assert "s3cret" not in str(client.get_run(run_id).to_dictionary())
    files = Path(client.download_artifacts(run_id, "", str(tmp_path)))
    assert [file for file in files.rglob("*") if file.is_file() and b"s3cret" in file.read_bytes()] == []
    with pytest.raises(HistoryError, match=r"user:\*\*\*@") as caught:
        guarded.record("nowhere")
    assert "s3cret" not in str(caught.value)


def test_a_password_in_a_uri_of_the_job_file_is_nowhere_in_the_run(
    history: History, client: MlflowClient, make_prepared: MakePrepared, allocation: Allocation, tmp_path: Path
) -> None:
    secret = "webhdfs://ann:s3cret@host:9870"
    prepared = make_prepared()
    job = msgspec.json.decode(prepared.job_json)
    job["spec"]["data"]["path"], job["spec"]["checkpoint"]["store"] = f"{secret}/clicks", f"{secret}/store"
    prepared = msgspec.structs.replace(
        prepared, job_json=msgspec.json.encode(job).decode(), start_record=f"{secret}/store/records/0"
    )
    run_id = history.start_run(prepared, allocation)
    story = Story(text=f"read {secret}/clicks", wall_seconds=1.0, goodput=0.0, parts=[], timeline=[])
    history.finish_run(run_id, Phase.FAILED, f"could not read {secret}/clicks", story=story)
    run = client.get_run(run_id)
    assert run.data.params["data.path"] == "webhdfs://ann:***@host:9870/clicks"
    assert "s3cret" not in str(run.to_dictionary())
    files = [file for file in Path(client.download_artifacts(run_id, "", str(tmp_path))).rglob("*") if file.is_file()]
    assert {"job.json", "reason.txt", "explanation.txt", "report.html"} <= {file.name for file in files}
    assert [file for file in files if b"s3cret" in file.read_bytes()] == []


def test_a_database_file_serves_as_tracking_uri_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_prepared: MakePrepared, allocation: Allocation
) -> None:
    monkeypatch.chdir(tmp_path)
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    history = History(uri, "local")
    run_id = history.start_run(make_prepared(), allocation)
    assert history.run_url(run_id) == ""
    reporter = Reporter(uri, run_id)
    reporter.log(window_points(metrics_at(100), time.time()))
    assert reporter.close(60)
    assert history.series(run_id, names.LOSS) == [(100, pytest.approx(0.69))]


def test_errors_name_an_unreachable_server_and_a_missing_manifest(
    monkeypatch: pytest.MonkeyPatch, history: History, make_prepared: MakePrepared, allocation: Allocation
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(HistoryError, match=r"http://127\.0\.0\.1:1"):
        History("http://127.0.0.1:1", "x").job_records()
    prepared = msgspec.structs.replace(make_prepared(), training_manifest="/nowhere/manifest.json")
    with pytest.raises(HistoryError, match=r"manifest of the training data.*nowhere"):
        history.start_run(prepared, allocation)


@pytest.mark.parametrize("way", ["http", "client"])
def test_figures_of_a_run_that_is_deleted_while_the_job_trains_wait_until_it_is_restored(
    tracking_server,  # type: ignore[no-untyped-def]
    history: History,
    client: MlflowClient,
    make_prepared: Callable[..., Prepared],
    allocation: Allocation,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    monkeypatch.setattr("elastrec.platform.history.delivery.reporter._LONGEST_PAUSE_SECONDS", 0.1)
    run_id = history.start_run(make_prepared(), allocation)
    sink = RestSink(tracking_server.uri) if way == "http" else ClientSink(tracking_server.uri)
    with capture_logs() as logged:
        reporter = Reporter("", run_id, interval_seconds=0.05, sink=sink)
        client.delete_run(run_id)
        for step in range(3):
            reporter.log([Point("loss", 0.5, step, time.time())])
            time.sleep(0.3)
        assert (reporter.waiting, reporter.dropped) == (3, 0)
        client.restore_run(run_id)
        assert reporter.close(20)
    assert [step for step, _ in history.series(run_id, "loss")] == [0, 1, 2]
    assert [line["event"] for line in logged if line["log_level"] == "warning"] == ["history run is deleted"]


def test_a_reporter_outlives_a_restart_of_the_server(
    history: History,
    tracking_server,
    make_prepared: MakePrepared,
    allocation: Allocation,  # type: ignore[no-untyped-def]
) -> None:
    run_id = history.start_run(make_prepared(), allocation)
    reporter = Reporter(tracking_server.uri, run_id, interval_seconds=0.05)
    tracking_server.stop()
    before = time.monotonic()
    for samples in range(100, 1100, 100):
        reporter.log(window_points(metrics_at(samples), time.time()))
    assert time.monotonic() - before < 0.5
    tracking_server.start()
    assert reporter.close(30)
    assert len(history.series(run_id, names.LOSS)) == 10
