"""A trained model is published from the artifacts of its job after the master has ended and MLflow was unreachable."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import msgspec
import pytest
from mlflow import MlflowClient

from elastrec.checkpoints import open_store, predictions_folder, take_term
from elastrec.platform.clusters.local.config import LocalConfig
from elastrec.platform.clusters.pods import PodSize, PodSpec
from elastrec.platform.history import History, metric_names
from elastrec.platform.history.points import Point
from elastrec.platform.history.records import TAG_REASON
from elastrec.platform.jobs.ending import publishing, tracking
from elastrec.platform.jobs.starting.kept_launch import keep_launch
from elastrec.platform.jobs.starting.launching import RUN_LABEL, finish
from elastrec.platform.jobs.surroundings import Platform
from elastrec.platform.jobs.types import Launched, Prepared
from elastrec.platform.jobs.watching.past import is_trained, result_of
from elastrec.platform.master.machine.phases import NUMBERS_PER_TERM
from elastrec.platform.master.reporting.unsent_metrics import read_points, write_points, write_result
from elastrec.platform.specs.errors import ClusterError, HistoryAwayError, HistoryError
from elastrec.platform.specs.metrics import Phase, Role, TrainingMetrics
from tests.operators.steps import ALLOCATION, PREPARED
from tests.platform.master.fakes import FakeLauncher

JOB, JOB_ID = "clicks", "clicks-1"
LAUNCHED = Launched(job_id=JOB_ID, master_pod="", run_id="", run_url="", allocation=ALLOCATION)


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    job = {
        "apiVersion": "elastrec.io/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": JOB},
        "spec": {
            "model": {"architecture": "dlrm"},
            "data": {"path": "/data", "sparse": [{"name": "user"}]},
            "checkpoint": {"store": str(tmp_path / "store")},
            "history": {"publish_wait": 60},
        },
    }
    for name in ("training", "evaluation"):
        (tmp_path / name).write_text("{}")
    return msgspec.structs.replace(
        PREPARED,
        job_json=msgspec.json.encode(job).decode(),
        training_manifest=str(tmp_path / "training"),
        evaluation_manifest=str(tmp_path / "evaluation"),
    )


@pytest.fixture
def platform(tmp_path: Path) -> Platform:
    config = LocalConfig(address="127.0.0.1:1", token="t")
    return Platform(FakeLauncher(), config, f"sqlite:///{tmp_path}/mlflow.db", str(tmp_path), tmp_path)


def left(tmp_path: Path, phase: Phase = Phase.SUCCEEDED, generation: int = 0) -> TrainingMetrics:
    metrics = TrainingMetrics(
        job=JOB_ID, phase=phase, checkpoint="file:///record", samples_trained=10, generation=generation
    )
    write_result(str(tmp_path / "store"), JOB, JOB_ID, metrics)
    return metrics


def test_undelivered_metrics_reach_the_run_that_is_created_later(
    platform: Platform, prepared: Prepared, tmp_path: Path
) -> None:
    left(tmp_path)
    store = str(tmp_path / "store")
    write_points(store, JOB, JOB_ID, [Point(metric_names.LOSS, 1.0 / step, step, 1e9 + step) for step in range(1, 4)])
    launched = publishing.with_run(platform, prepared, LAUNCHED)
    assert launched.run_id and publishing.with_run(platform, prepared, LAUNCHED).run_id == launched.run_id
    client = MlflowClient(platform.tracking_uri)
    series = client.get_metric_history(launched.run_id, metric_names.LOSS)
    assert [point.value for point in series] == [1.0, 0.5, 1 / 3]
    assert read_points(store, JOB, JOB_ID) == [], "delivered once"
    assert client.get_run(launched.run_id).info.status == "RUNNING"
    publishing.finish_job(platform, prepared)
    assert client.get_run(launched.run_id).info.status == "FINISHED"


def test_a_loss_that_was_nan_does_not_prevent_that_a_model_is_published(
    platform: Platform, prepared: Prepared, tmp_path: Path
) -> None:
    left(tmp_path)
    values = (0.5, float("nan"), float("inf"))
    points = [Point(metric_names.LOSS, value, step, 1e9 + step) for step, value in enumerate(values)]
    write_points(str(tmp_path / "store"), JOB, JOB_ID, points)
    launched = publishing.with_run(platform, prepared, LAUNCHED)
    series = MlflowClient(platform.tracking_uri).get_metric_history(launched.run_id, metric_names.LOSS)
    assert [point.step for point in series] == [0, 1, 2]
    assert series[0].value == 0.5 and math.isnan(series[1].value) and series[2].value > 1e308


def test_a_run_that_was_deleted_in_mlflow_is_replaced_and_the_new_one_closed(
    platform: Platform, prepared: Prepared, tmp_path: Path
) -> None:
    left(tmp_path)
    launched = publishing.with_run(platform, prepared, LAUNCHED)
    client = MlflowClient(platform.tracking_uri)
    client.delete_run(launched.run_id)
    replaced = publishing.with_run(platform, prepared, launched)
    assert replaced.run_id not in ("", launched.run_id)
    assert publishing.with_run(platform, prepared, launched).run_id == replaced.run_id
    # The pod of the job's master has the run of the launch.
    pod = PodSpec(
        name=f"{JOB_ID}-master", job=JOB_ID, role=Role.MASTER, command=("x",), size=PodSize(1, 1),
        labels={RUN_LABEL: launched.run_id},
    )  # fmt: skip
    platform.launcher.submit(pod)
    platform.launcher.cluster.end(pod.name)  # type: ignore[attr-defined]
    finish(platform, JOB_ID)
    assert client.get_run(replaced.run_id).info.status == "FAILED"


def test_a_run_that_is_gone_for_good_is_replaced(platform: Platform, prepared: Prepared, tmp_path: Path) -> None:
    left(tmp_path)
    gone = msgspec.structs.replace(LAUNCHED, run_id="0" * 32)
    replaced = publishing.with_run(platform, prepared, gone)
    assert replaced.run_id not in ("", gone.run_id)


def test_a_trained_job_without_a_master_counts_as_trained_until_it_is_published(
    platform: Platform, prepared: Prepared, tmp_path: Path
) -> None:
    assert not is_trained(platform, prepared)
    with pytest.raises(ClusterError, match="not in the cluster"):
        result_of(platform, prepared)
    metrics = left(tmp_path)
    assert is_trained(platform, prepared) and result_of(platform, prepared) == metrics
    publishing.forget(platform, prepared)
    assert not is_trained(platform, prepared)
    left(tmp_path, Phase.FAILED)
    assert not is_trained(platform, prepared)


def test_the_result_of_an_earlier_run_of_the_job_is_not_that_of_one_that_trains_anew_and_is_lost(
    platform: Platform, prepared: Prepared, tmp_path: Path
) -> None:
    left(tmp_path)
    keep_launch(str(tmp_path / "store"), prepared, ALLOCATION, earlier_terms=1)
    run_id = publishing.with_run(platform, prepared, LAUNCHED).run_id
    assert not is_trained(platform, prepared)
    with pytest.raises(ClusterError, match="not in the cluster"):
        result_of(platform, prepared)
    publishing.finish_job(platform, prepared)
    run = MlflowClient(platform.tracking_uri).get_run(run_id)
    assert run.info.status == "KILLED" and run.data.tags[TAG_REASON] == "the master was gone and left no result"
    metrics = left(tmp_path, generation=NUMBERS_PER_TERM)
    assert is_trained(platform, prepared) and result_of(platform, prepared) == metrics


@pytest.mark.parametrize("has_result", [True, False])
def test_a_run_that_stayed_open_because_mlflow_was_away_is_closed_when_the_job_is_finished_again(
    platform: Platform, prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_result: bool
) -> None:
    run_id = publishing.with_run(platform, prepared, LAUNCHED).run_id
    pod = PodSpec(
        name=f"{JOB_ID}-master", job=JOB_ID, role=Role.MASTER, command=("x",), size=PodSize(1, 1),
        labels={RUN_LABEL: run_id},
    )  # fmt: skip
    platform.launcher.submit(pod)
    client = MlflowClient(platform.tracking_uri)
    with monkeypatch.context() as away:
        away.setattr(tracking, "answers", lambda uri: False)
        for _ in range(2):
            with pytest.raises(HistoryAwayError, match="clicks-1 is removed from the cluster, and its run stays open"):
                publishing.finish_job(platform, prepared)
    assert not platform.launcher.pods(JOB_ID) and client.get_run(run_id).info.status == "RUNNING"
    if has_result:
        left(tmp_path)
    publishing.finish_job(platform, prepared)
    assert client.get_run(run_id).info.status == ("FINISHED" if has_result else "KILLED")


def test_the_run_of_a_published_job_that_is_finished_again_has_succeeded(
    platform: Platform, prepared: Prepared, tmp_path: Path
) -> None:
    left(tmp_path)
    run_id = publishing.with_run(platform, prepared, LAUNCHED).run_id
    store = str(tmp_path / "store")
    take_term(store, JOB, JOB_ID, holder="h", address="127.0.0.1:1", base=lambda: "")
    predictions = open_store(predictions_folder(store, JOB, JOB_ID))
    predictions.put("00000000.parquet", b"rows")
    publishing.forget(platform, prepared)
    assert not predictions.keys()
    publishing.finish_job(platform, prepared)
    assert MlflowClient(platform.tracking_uri).get_run(run_id).info.status == "FINISHED"


def test_figures_of_a_failed_job_that_mlflow_has_not_received_are_sent_when_the_job_is_finished(
    platform: Platform, prepared: Prepared, tmp_path: Path
) -> None:
    run_id = publishing.with_run(platform, prepared, LAUNCHED).run_id
    left(tmp_path, Phase.FAILED)
    write_points(str(tmp_path / "store"), JOB, JOB_ID, [Point(metric_names.LOSS, 0.5, 100, 1e9)])
    publishing.finish_job(platform, prepared)
    client = MlflowClient(platform.tracking_uri)
    assert client.get_run(run_id).info.status == "FAILED"
    assert [point.value for point in client.get_metric_history(run_id, metric_names.LOSS)] == [0.5]


def test_a_model_is_published_in_the_run_of_the_training_that_made_it_not_in_that_of_a_failed_one(
    platform: Platform, prepared: Prepared, tmp_path: Path
) -> None:
    """A cleared task of the offline phase launches a failed job again; later tasks know the run of the first launch."""
    first = publishing.with_run(platform, prepared, LAUNCHED)
    history = History(platform.tracking_uri, "elastrec")
    history.finish_run(first.run_id, Phase.FAILED, "bug")
    second = history.start_run(prepared, ALLOCATION)
    assert second != first.run_id and publishing.with_run(platform, prepared, first).run_id == second
    history.finish_run(second, Phase.SUCCEEDED)
    for known in (first, msgspec.structs.replace(first, run_id=second)):
        assert publishing.with_run(platform, prepared, known).run_id == second


def test_a_training_without_mlflow_is_not_published_in_the_run_of_an_earlier_one_under_the_same_id(
    platform: Platform, prepared: Prepared, tmp_path: Path
) -> None:
    store = str(tmp_path / "store")
    keep_launch(store, prepared, ALLOCATION, earlier_terms=0)
    first = publishing.with_run(platform, prepared, LAUNCHED)
    History(platform.tracking_uri, "elastrec").finish_run(first.run_id, Phase.SUCCEEDED)
    assert publishing.with_run(platform, prepared, LAUNCHED).run_id == first.run_id
    keep_launch(store, prepared, ALLOCATION, earlier_terms=1)
    second = publishing.with_run(platform, prepared, LAUNCHED)
    assert second.run_id != first.run_id and publishing.with_run(platform, prepared, LAUNCHED).run_id == second.run_id


def test_the_result_of_a_job_whose_master_does_not_answer_is_in_the_store_or_unknown_for_now(
    platform: Platform, prepared: Prepared, tmp_path: Path
) -> None:
    pod = PodSpec(name=f"{JOB_ID}-master", job=JOB_ID, role=Role.MASTER, command=("x",), size=PodSize(1, 1))
    platform.launcher.submit(pod)
    for _ in range(2):
        with pytest.raises(ClusterError, match=r"job clicks-1: master Running$") as caught:
            result_of(platform, prepared)
        assert caught.value.retryable
        left(tmp_path, Phase.FAILED)  # of an earlier launch
    metrics = left(tmp_path)
    assert result_of(platform, prepared) == metrics


def test_an_outage_of_mlflow_during_a_step_is_waited_out_and_the_step_repeated(
    platform: Platform, prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = itertools.chain([True, False, False], itertools.repeat(True))
    tries: list[int] = []
    monkeypatch.setattr(tracking, "answers", lambda uri: next(there))
    monkeypatch.setattr(tracking, "_POLL_SECONDS", 0.01)

    def step() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise HistoryError("connection refused")
        return "registered"

    announced: list[str] = []
    assert publishing.with_tracking(platform, prepared, step, announced.append) == "registered"
    assert len(tries) == 2 and len(announced) == 1


def test_metrics_that_mlflow_refuses_are_not_waited_for(platform: Platform, prepared: Prepared) -> None:
    def step() -> None:
        raise HistoryError("the experiment was deleted")

    with pytest.raises(HistoryError, match="deleted") as refused:
        publishing.with_tracking(platform, prepared, step)
    assert not isinstance(refused.value, HistoryAwayError)


def test_patience_ends_with_the_name_of_the_record_that_holds_the_model(
    platform: Platform, prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left(tmp_path)
    monkeypatch.setattr(tracking, "answers", lambda uri: False)
    monkeypatch.setattr(publishing, "publish_patience_seconds", lambda prepared: 0.0)
    with pytest.raises(HistoryAwayError, match="file:///record; it will not be trained again"):
        publishing.with_tracking(platform, prepared, lambda: None)
