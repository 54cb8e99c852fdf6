"""Inputs and outputs of the tasks, as requested by the OpenLineage provider and as contained in its events."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from airflow.providers.openlineage.extractors import OperatorLineage
from airflow.providers.openlineage.extractors.base import DefaultExtractor
from openlineage.client import OpenLineageClient
from openlineage.client.event_v2 import Job, Run, RunEvent, RunState
from openlineage.client.transport.file import FileConfig, FileTransport

from elastrec.operators.base import ElastrecOperator
from elastrec.operators.clustering import ClusterPartitionOperator
from elastrec.operators.lineage import clustered, name_of
from elastrec.operators.publishing import RegisterModelOperator
from elastrec.operators.training import OfflinePhaseOperator
from elastrec.platform.jobs import Registered
from elastrec.platform.jobs.starting.clustering import Clustered
from elastrec.platform.specs.metrics import Phase, TrainingMetrics
from elastrec.platform.specs.text.loading import job_to_json
from tests.operators.steps import JUDGED_JOB, LAUNCHED_JOB, PREPARED, plain
from tests.platform.master.fakes import job

RECORD = "hdfs://store:8020/records/clicks/final"


def launched() -> Any:
    described = job().model_dump(mode="json", by_alias=True)
    described["spec"]["data"]["path"] = "s3://key:secret@bucket/logs/clicks"
    prepared = msgspec.structs.replace(
        PREPARED, job_json=job_to_json(type(job()).model_validate(described)), start_record="file:///store/clicks/older"
    )
    return msgspec.structs.replace(LAUNCHED_JOB, prepared=prepared)


def events_of(operator: Any, folder: Path) -> dict[str, Any]:
    """The event of a finished task, as the real provider asks for it and a client writes it into a file."""
    found = DefaultExtractor(operator).extract_on_complete(SimpleNamespace())
    assert isinstance(found, OperatorLineage)
    client = OpenLineageClient(transport=FileTransport(FileConfig(log_file_path=str(folder / "events"), append=True)))
    client.emit(
        RunEvent(
            eventType=RunState.COMPLETE,
            eventTime=datetime(2026, 1, 3, tzinfo=UTC).isoformat(),
            run=Run(runId="0190f5a2-0000-7000-8000-000000000000"),
            job=Job("airflow", f"daily_retraining.{operator.task_id}"),
            inputs=found.inputs,
            outputs=found.outputs,
        )
    )
    event: dict[str, Any] = json.loads((folder / "events").read_text().splitlines()[-1])
    return event


def test_the_lineage_of_a_model_has_its_training_and_evaluation_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracking = SimpleNamespace(tracking_uri="http://user:secret@mlflow:5000")
    monkeypatch.setattr(ElastrecOperator, "platform", property(lambda self: tracking))
    operator = RegisterModelOperator(
        task_id="register", decision=plain(msgspec.structs.replace(JUDGED_JOB, launched=launched()))
    )
    operator._registered = Registered(name="clicks", version="7", is_champion=True, model_uri="models:/clicks/7")
    event = events_of(operator, tmp_path)
    assert "secret" not in json.dumps(event)
    training, evaluation = event["inputs"]
    for log, days, rows in ((training, (1, 2), 10), (evaluation, (2, 3), 5)):
        assert (log["namespace"], log["name"]) == ("s3://bucket", "logs/clicks")
        assert log["inputFacets"]["inputStatistics"]["rowCount"] == rows
        (part,) = log["inputFacets"]["subset"]["inputCondition"]["partitions"]
        assert part["identifier"] == "/".join(f"2026-01-0{day}T00:00:00+00:00" for day in days)
    (model,) = event["outputs"]
    assert (model["namespace"], model["name"]) == ("http://mlflow:5000", "models/clicks")
    assert model["facets"]["version"]["datasetVersion"] == "7"


def test_a_trained_job_leads_from_the_log_and_the_record_before_to_its_own_record(tmp_path: Path) -> None:
    operator = OfflinePhaseOperator(task_id="offline_phase", launched=plain(launched()))
    assert operator.get_openlineage_facets_on_complete(None).outputs == [], "a job that failed has no record"
    operator._trained = TrainingMetrics(job="clicks-1", phase=Phase.SUCCEEDED, checkpoint=RECORD, samples_trained=30)
    event = events_of(operator, tmp_path)
    assert [each["name"] for each in event["inputs"]] == ["logs/clicks", "/store/clicks/older"]
    (record,) = event["outputs"]
    assert (record["namespace"], record["name"]) == ("hdfs://store:8020", "/records/clicks/final")
    assert record["outputFacets"]["outputStatistics"]["rowCount"] == 30


def test_the_lineage_of_a_clustered_partition_has_the_log(tmp_path: Path) -> None:
    found = Clustered(
        path="/logs/clustered", partition="2026-01-01", rows=100, sessions=9, source_bytes=2000, bytes=500
    )
    operator = ClusterPartitionOperator(
        task_id="cluster", jobs_folder="/", job_file="job.yaml", path="/logs/clustered", partition="2026-01-01"
    )
    assert operator.get_openlineage_facets_on_complete(None) is None
    operator._clustered = "/logs/clicks", found
    event = events_of(operator, tmp_path)
    assert [each["name"] for each in (*event["inputs"], *event["outputs"])] == ["/logs/clicks", "/logs/clustered"]
    assert clustered("/logs/clicks", found).outputs[0].outputFacets["outputStatistics"].size == 500


@pytest.mark.parametrize(
    ("uri", "namespace", "name"),
    [
        ("s3://bucket/logs/clicks/", "s3://bucket", "logs/clicks"),
        ("s3a://bucket/logs", "s3://bucket", "logs"),
        ("hdfs://user:pw@nn:8020/logs", "hdfs://nn:8020", "/logs"),
        ("/data/clicks", "file", "/data/clicks"),
        ("file:///data/clicks", "file", "/data/clicks"),
    ],
)
def test_data_sets_have_the_names_that_openlineage_gives_them(uri: str, namespace: str, name: str) -> None:
    assert name_of(uri) == (namespace, name)


def test_operators_need_no_openlineage() -> None:
    """Without the provider nobody asks for lineage, and nothing of it is imported."""
    program = """
import sys
sys.modules["openlineage"] = None
import elastrec.operators.training, elastrec.operators.publishing, elastrec.operators.clustering
import elastrec.operators.lineage
"""
    subprocess.run([sys.executable, "-c", program], check=True)
