"""A transformer over histories, from a generated log to a registered model; plain and deduplicated runs give the same
model.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from elastrec.checkpoints import latest_record, open_record
from elastrec.checkpoints.manifest import RecordKind
from elastrec.platform.history import metric_names as names
from tests.processes import Elastrec, elastrec_at
from tools.stack.services import default_dags_folder

pytestmark = pytest.mark.services

BATCH, STEPS = 64, 200
ROWS = BATCH * STEPS
EVERY_ROW = {"kind": "sgd", "learning_rate": 0.1}


@pytest.fixture(scope="module")
def elastrec(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elastrec]:
    with elastrec_at(tmp_path_factory.mktemp("home")) as command_line:
        yield command_line


@pytest.fixture(scope="module")
def job_file(elastrec: Elastrec) -> Path:
    """The ready job file of the transformer on a small log, with steps that do not enlarge rounding."""
    data = elastrec.home / "demo_data"
    elastrec.json(
        "data", "generate", str(data / "sessions"), "--rows-per-day", str(ROWS), "--dense", "4", "--sparse", "9",
        "--lists", "2", "--list-length", "12", "--session-length", "16", "--set", "session_seconds=7200",
    )  # fmt: skip
    clustered = elastrec.json("data", "cluster", str(data / "sessions"), str(data / "clustered"))
    assert [report["rows"] for report in clustered["partitions"]] == [ROWS, ROWS]
    job = yaml.safe_load((default_dags_folder() / "jobs" / "bst.yaml").read_text())
    job["spec"]["data"]["path"] = str(data / "clustered")
    job["spec"]["training"] |= {"batch_size": BATCH, "shuffle": False, "consistency": {"mode": "bsp"}}
    # Nor may the layer norms enlarge it, which divide by the spread of the rows.
    job["spec"]["model"]["initial_range"] = 0.25
    job["spec"]["optimizers"] = {"rows": EVERY_ROW, "dense": EVERY_ROW}
    size = {"count": 1, "cores": 1}
    job["spec"]["resources"] |= {"worker": size, "parameter_server": size}
    file = elastrec.home / "job.yaml"
    file.write_text(yaml.safe_dump(job))
    return file


def _run(elastrec: Elastrec, file: Path, name: str, deduplication: str) -> dict[str, Any]:
    outcome: dict[str, Any] = elastrec.json(
        "run", str(file), "--set", f"metadata.name={name}", "--set", f"spec.deduplication={deduplication}",
    )  # fmt: skip
    return outcome


def test_render_shows_deduplicated_features_with_reasons(elastrec: Elastrec, job_file: Path) -> None:
    shown = elastrec.call("render", str(job_file))
    assert shown.returncode == 0, shown.stderr
    assert "# Deduplication: 2 features in 1 groups; measured on" in shown.stdout
    assert "changes together with L2" in shown.stdout and "one id a row" in shown.stdout
    # The master's launch file, which every worker's job comes from.
    assert '"deduplication":{"groups":[["L1","L2"]]}' in "".join(shown.stdout.split())


@pytest.mark.timeout(1800)
def test_plain_and_deduplicated_jobs_end_with_the_same_model(elastrec: Elastrec, job_file: Path) -> None:
    plain = _run(elastrec, job_file, "plain", "off")
    ours = _run(elastrec, job_file, "deduplicated", "auto")
    assert plain["samples_trained"] == ours["samples_trained"] == ROWS
    assert ours["auc"] == pytest.approx(plain["auc"], abs=1e-4)
    assert ours["normalized_entropy"] == pytest.approx(plain["normalized_entropy"], abs=1e-5)
    store = f"{elastrec.home}/work/checkpoints"
    records = [latest_record(store, name, RecordKind.FINAL) for name in ("plain", "deduplicated")]
    left, right = (open_record(record.uri) for record in records if record is not None)
    parameters = [summary.name for summary in left.manifest.model.dense]
    assert any("encoders" in name for name in parameters)
    for name in parameters:
        np.testing.assert_allclose(right.dense(name)["value"], left.dense(name)["value"], atol=1e-4)

    mlflow.set_tracking_uri(f"sqlite:///{elastrec.home}/mlflow.db")
    client = mlflow.MlflowClient()
    before, after = (client.get_run(outcome["run_id"]).data.metrics for outcome in (plain, ours))
    assert after[names.TRAFFIC_READ] < 0.6 * before[names.TRAFFIC_READ]
    assert after[names.TRAFFIC_READ_PLAIN] == before[names.TRAFFIC_READ] == before[names.TRAFFIC_READ_PLAIN]
    assert after[names.TRAFFIC_PULLED] == pytest.approx(before[names.TRAFFIC_PULLED], rel=0.01)
    note = client.get_run(ours["run_id"]).data.tags["mlflow.note.content"]
    assert "Deduplication: 2 features in 1 groups" in note
    model = mlflow.pyfunc.load_model(ours["model_uri"])
    kinds = model.metadata.metadata["inputs"]
    assert kinds["L1"] == "a list of a 64-bit id"
    day = next((elastrec.home / "demo_data" / "clustered" / "day=2026-01-02").glob("*.parquet"))
    rows = pq.read_table(day).slice(0, 50).to_pandas()
    scores = model.predict(rows[list(kinds)])["probability"]
    assert len(scores) == 50 and 0 < scores.min() < scores.max() < 1
