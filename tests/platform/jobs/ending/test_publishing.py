"""A trained model is published from the artifacts of its job after the master has ended and MLflow was unreachable."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import pytest
from mlflow import MlflowClient

from elastrec.platform.clusters.local.config import LocalConfig
from elastrec.platform.clusters.pods import PodSize, PodSpec
from elastrec.platform.history import metric_names
from elastrec.platform.history.points import Point
from elastrec.platform.jobs.ending import publishing, tracking
from elastrec.platform.jobs.starting.launching import RUN_LABEL, finish
from elastrec.platform.jobs.surroundings import Platform
from elastrec.platform.jobs.types import Launched, Prepared
from elastrec.platform.jobs.watching.past import is_trained, result_of
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


def left(tmp_path: Path, phase: Phase = Phase.SUCCEEDED) -> TrainingMetrics:
    metrics = TrainingMetrics(job=JOB_ID, phase=phase, checkpoint="file:///record", samples_trained=10)
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
