"""A job with feature steps, from its log to the exported model: plain, deduplicated, and continued on the next day."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml

from elastrec.checkpoints import latest_record, open_record
from elastrec.checkpoints.manifest import RecordKind
from elastrec.checkpoints.summary import steps_of
from elastrec.platform.data.metrics.binary import BinaryMetricsSketch
from elastrec.platform.specs.features import Standardize, Steps
from tests.processes import Elastrec, elastrec_at

pytestmark = pytest.mark.services

ROWS, BATCH = 6_400, 64
FEATURES = {
    "I1": [{"step": "clip", "high": 50}, {"step": "log1p"}, {"step": "standardize"}],
    "no_I1": [{"step": "missing_indicator"}],
    "I2_range": [{"step": "fill_null", "value": 0}, {"step": "bucketize", "boundaries": [1, 3, 10]}],
    "C1": [{"step": "hash", "size": 5_000, "seed": 3}],
    "C1_and_range": [{"step": "cross", "columns": ["C1", "I2_range"]}, {"step": "hash", "size": 20_000}],
    "L1": [{"step": "keep_first", "count": 6}, {"step": "hash", "size": 5_000}],
}


@pytest.fixture(scope="module")
def elastrec(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elastrec]:
    with elastrec_at(tmp_path_factory.mktemp("home")) as command_line:
        yield command_line


@pytest.fixture(scope="module")
def job_file(elastrec: Elastrec) -> Path:
    """A small job in which each kind of step stands, on three clustered days."""
    log, clustered = elastrec.home / "log", elastrec.home / "clustered"
    elastrec.json(
        "data", "generate", str(log), "--days", "3", "--rows-per-day", str(ROWS), "--dense", "2", "--sparse", "3",
        "--lists", "1", "--list-length", "12", "--session-length", "16", "--set", "session_seconds=7200",
    )  # fmt: skip
    elastrec.json("data", "cluster", str(log), str(clustered))
    job = yaml.safe_load((clustered / "job.yaml").read_text())
    job["spec"]["model"] = {"architecture": "dlrm", "embedding_dimension": 8}
    data = job["spec"]["data"]
    data["dense"].append({"name": "no_I1", "column": "I1"})
    data["sparse"] += [{"name": "I2_range", "column": "I2"}, {"name": "C1_and_range"}]
    data["features"] = FEATURES
    [clicked] = [feature for feature in data["sparse"] if feature["name"] == "L1"]
    clicked["pooling"] = "attention"
    # One worker and one server in step: two runs on the same rows are then one.
    size = {"count": 1, "cores": 1}
    job["spec"]["resources"] |= {"worker": size, "parameter_server": size}
    job["spec"]["training"] = {"batch_size": BATCH, "shuffle": False, "consistency": {"mode": "bsp"}}
    every_row = {"kind": "sgd", "learning_rate": 0.1}
    job["spec"]["optimizers"] = {"rows": every_row, "dense": every_row}
    file = elastrec.home / "job.yaml"
    file.write_text(yaml.safe_dump(job))
    return file


def _run(elastrec: Elastrec, file: Path, name: str, day: int, **overrides: str) -> dict[str, Any]:
    settings = {"metadata.name": name, **overrides}
    pairs = [each for path, value in settings.items() for each in ("--set", f"{path}={value}")]
    interval = ("--from", f"2026-01-{day:02}")
    outcome: dict[str, Any] = elastrec.json("run", str(file), *interval, *pairs)
    return outcome


def _recorded_steps(elastrec: Elastrec, name: str) -> dict[str, Steps]:
    record = latest_record(f"{elastrec.home}/work/checkpoints", name, RecordKind.FINAL)
    assert record is not None
    return steps_of(open_record(record.uri).manifest.model)


def _raw(elastrec: Elastrec, day: int) -> pd.DataFrame:
    [file] = (elastrec.home / "clustered" / f"day=2026-01-{day:02}").glob("*.parquet")
    return pq.read_table(file, partitioning=None).to_pandas()


@pytest.mark.timeout(1800)
def test_plain_deduplicated_and_continued_jobs_take_the_same_steps_as_their_models(
    elastrec: Elastrec, job_file: Path
) -> None:
    shown = elastrec.call("validate", str(job_file), "--data")
    assert shown.returncode == 0, shown.stderr
    assert "steps of I1: clip(high=50), log1p, standardize(mean=" in shown.stdout
    mlflow.set_tracking_uri(f"sqlite:///{elastrec.home}/mlflow.db")
    groups = "{groups: [[C1, L1]]}"
    plain = _run(elastrec, job_file, "plain", 1)
    ours = _run(elastrec, job_file, "ours", 1, **{"spec.deduplication": groups})
    assert plain["samples_trained"] == ours["samples_trained"] == ROWS
    assert ours["auc"] == pytest.approx(plain["auc"], abs=1e-4)

    # Fitted on the first day alone, on what the steps before give.
    price = _raw(elastrec, 1)["I1"].dropna().to_numpy(np.float64)
    values = np.log1p(np.minimum(price, 50))
    [fitted] = [step for step in _recorded_steps(elastrec, "ours")["I1"] if isinstance(step, Standardize)]
    assert (fitted.mean, fitted.scale) == pytest.approx((values.mean(), values.std()))

    # The exported model scores raw rows as the evaluator has scored trainer-ready ones.
    rows = _raw(elastrec, 2)
    predicted = {}
    for name, outcome in (("plain", plain), ("ours", ours)):
        model = mlflow.pyfunc.load_model(outcome["model_uri"])
        columns = list(model.metadata.metadata["inputs"])
        assert {"I1", "I2", "C1", "L1"} <= set(columns) and not {"no_I1", "C1_and_range"} & set(columns)
        predicted[name] = model.predict(rows[columns])["probability"].to_numpy(np.float64)
        sketch = BinaryMetricsSketch()
        sketch.update(predicted[name], rows["label"].to_numpy(np.float32))
        assert sketch.auc() == pytest.approx(outcome["auc"], abs=1e-4)
    assert outcome["auc"] > 0.6
    # Attention is trained beside the network, and comes with it.
    trained = model.get_raw_model()._model.state_dict()
    assert any("pooling_L1.score" in name for name in trained)
    np.testing.assert_allclose(predicted["ours"], predicted["plain"], atol=1e-4)

    # The next day goes on with the figures of the first, though its own rows have others.
    later = _run(elastrec, job_file, "ours", 2, **{"spec.deduplication": groups})
    assert later["samples_trained"] == ROWS
    assert _recorded_steps(elastrec, "ours")["I1"][-1] == fitted
    model = mlflow.pyfunc.load_model(later["model_uri"])
    assert model.get_raw_model().job.spec.data.features["I1"][-1] == fitted
