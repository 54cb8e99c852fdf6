"""A job with two labels from its log to the exported model, with real processes."""

from __future__ import annotations

from pathlib import Path

import mlflow
import pytest

from elastrec.platform.data.generating.generator import GenerateSpec, generate
from elastrec.platform.data.manifest import build_manifest
from elastrec.platform.data.metrics.binary import BinaryMetricsSketch
from elastrec.platform.data.reading.batches import targets_of
from elastrec.platform.data.reading.reader import ShardReader
from tests.e2e.conftest import write_job
from tests.processes import elastrec_at

pytestmark = pytest.mark.services


def test_a_job_of_two_labels_is_trained_judged_by_the_second_and_exported(tmp_path: Path) -> None:
    spec = GenerateSpec(
        path=str(tmp_path / "clicks"), days=2, rows_per_day=30_000, dense=4, sparse=8, seed=3, conversion_rate=0.3
    )
    log = generate(spec)
    with elastrec_at(tmp_path / "home") as elastrec:
        file = write_job(
            elastrec.home, log, model={"architecture": "mmoe", "embedding_dimension": 8}, gate={"head": "conversion"}
        )
        outcome = elastrec.json("run", str(file), "--from", "2026-01-01")
        assert outcome["samples_trained"] == 30_000 and outcome["is_champion"]
        mlflow.set_tracking_uri(f"sqlite:///{elastrec.home}/mlflow.db")
        metrics = mlflow.MlflowClient().get_run(outcome["run_id"]).data.metrics
        assert metrics["evaluation/auc"] == metrics["evaluation/heads/label/auc"] == outcome["auc"]
        assert {"curves/heads/conversion/auc", "curves/losses/label", "curves/losses/conversion"} <= set(metrics)
        model = mlflow.pyfunc.load_model(outcome["model_uri"])
        data = model.get_raw_model().job.spec.data
        data = type(data).model_validate(
            {**data.model_dump(), "path": f"{spec.path}/day=2026-01-02", "partitioning": "none"}
        )
        manifest = build_manifest(data)
        reader = ShardReader(data, manifest)
        (targets,) = (
            targets_of(batch)
            for batch in reader.read(0, manifest.rows, seed=0, shuffle=False, batch_size=manifest.rows)
        )
        rows = next(reader.read_raw(0, manifest.rows)).to_pandas()
        scores = model.predict(rows)
        for head, label_B in zip(("label", "conversion"), targets.T, strict=True):
            sketch = BinaryMetricsSketch()
            sketch.update(scores[head], label_B[: len(scores)])
            assert sketch.auc() == pytest.approx(metrics[f"evaluation/heads/{head}/auc"], abs=0.02)
            assert sketch.auc() > 0.6
