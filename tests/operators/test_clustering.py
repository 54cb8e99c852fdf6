"""The operators for click logs, on real files and a real MLflow database."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlflow
import pytest
import yaml
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.execution_time.context import OutletEventAccessors

from elastrec.operators.base import ElastrecOperator
from elastrec.operators.clustering import ClusterPartitionOperator, InspectPartitionOperator
from elastrec.operators.links import RUN_URL_KEY
from elastrec.operators.settings import CLUSTERED_CLICK_LOG_ASSET
from elastrec.platform.data.clustering.clustering import RECORD_NAME
from elastrec.platform.data.generating.generator import GenerateSpec, generate, training_data_for
from tests.operators.steps import context
from tools.stack.services import default_dags_folder

DAY, ROWS = "2026-01-01", 3_000
CLUSTERED = Asset(CLUSTERED_CLICK_LOG_ASSET)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A log of two days with a job file on it; the platform's base folder."""
    spec = GenerateSpec(
        path=str(tmp_path / "log"), rows_per_day=ROWS, dense=1, sparse=3, lists=1, list_length=20, session_length=16
    )
    generate(spec)
    data = training_data_for(spec.model_copy(update={"path": "log"}))
    job = {
        "metadata": {"name": "click"},
        "spec": {
            "model": {"architecture": "bst", "embedding_dimension": 4, "options": {"sequences": ["L1"]}},
            "data": data.model_dump(mode="json", exclude_none=True),
            "training": {"batch_size": 256},
        },
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    platform = SimpleNamespace(base_folder=tmp_path, tracking_uri=f"sqlite:///{tmp_path}/mlflow.db", ui_url="http://ml")
    monkeypatch.setattr(ElastrecOperator, "platform", property(lambda self: platform))
    return tmp_path


def cluster(folder: Path, partition: str = DAY, path: str = "clustered") -> tuple[dict[str, Any], OutletEventAccessors]:
    operator = ClusterPartitionOperator(
        task_id="cluster", jobs_folder=folder, job_file="job.yaml", path=path, partition=partition,
        outlets=[CLUSTERED],
    )  # fmt: skip
    events = OutletEventAccessors()
    return operator.execute({**context(), "outlet_events": events}), events


def test_a_day_is_clustered_once_and_announced_as_a_partition_of_the_asset(folder: Path) -> None:
    found, events = cluster(folder)
    assert (found["rows"], found["partition"]) == (ROWS, DAY)
    assert 1 < found["sessions"] < ROWS / 4
    assert events[CLUSTERED].partition_keys == {DAY}
    assert events[CLUSTERED].extra["path"] == str(folder / "clustered")
    record = folder / "clustered" / f"day={DAY}" / RECORD_NAME
    written = record.stat().st_mtime_ns
    again, events = cluster(folder)
    assert again == found and record.stat().st_mtime_ns == written
    assert events[CLUSTERED].partition_keys == {DAY}
    assert not (folder / "clustered" / "day=2026-01-02").exists()


def test_repeated_features_go_to_mlflow_with_a_picture(folder: Path) -> None:
    cluster(folder)
    operator = InspectPartitionOperator(
        task_id="inspect", jobs_folder=folder, job_file="job.yaml", path="clustered", partition=DAY
    )
    shown = context()
    found = operator.execute(shown)
    assert found["groups"] == [["L1"]] and found["pooled"] > 5
    assert shown["ti"].pushed[RUN_URL_KEY] == found["run_url"] != ""
    client = mlflow.MlflowClient(f"sqlite:///{folder}/mlflow.db")
    run = client.get_run(found["run_id"])
    assert run.info.status == "FINISHED"
    metrics = run.data.metrics
    assert metrics["data/rows"] == ROWS and metrics["data/pooled/ratio"] == pytest.approx(found["pooled"])
    assert metrics["data/factor/L1"] > 8 and metrics["data/predicted_factor/L1"] > 8 and "data/factor/C3" in metrics
    assert run.data.tags["elastrec.data.partition"] == DAY
    assert {file.path for file in client.list_artifacts(found["run_id"])} == {"inspection.png", "inspection.json"}


@pytest.mark.parametrize("partition", ["2025-01-01", "yesterday"])
def test_a_day_that_is_not_there_fails_without_a_retry(folder: Path, partition: str) -> None:
    with pytest.raises(AirflowFailException, match=partition):
        cluster(folder, partition)


def test_without_a_destination_nothing_is_clustered(folder: Path) -> None:
    with pytest.raises(AirflowFailException, match=r"destination: empty.*elastrec_clustered_log"):
        cluster(folder, path="")


def test_the_dag_clusters_an_announced_day_and_then_inspects_it() -> None:
    dag = DagBag(default_dags_folder(), bundle_name="test").dags["click_log_clustered"]
    assert [task.task_id for task in dag.topological_sort()] == ["cluster", "inspect"]
    assert [asset.name for asset in dag.get_task("cluster").outlets] == [CLUSTERED_CLICK_LOG_ASSET]
