"""One generated click log for all end-to-end tests of a session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from elastrec.platform.data.generating.generator import GenerateReport, GenerateSpec, generate, training_data_for

ROWS_PER_DAY = 60_000


@pytest.fixture(scope="session")
def click_log(tmp_path_factory: pytest.TempPathFactory) -> GenerateReport:
    folder = tmp_path_factory.mktemp("data") / "clicks"
    spec = GenerateSpec(path=str(folder), days=3, rows_per_day=ROWS_PER_DAY, dense=4, sparse=8, seed=3)
    return generate(spec)


def job_content(log: GenerateReport, **changes: Any) -> dict[str, Any]:
    """A small job on the generated log; `changes` replace sections of `spec`."""
    spec = {
        "model": {"architecture": "wide_and_deep", "embedding_dimension": 8, "options": {}},
        "data": json.loads(training_data_for(log.spec).model_dump_json(exclude_none=True)),
        "training": {"batch_size": 256, "batches_per_shard": 20, "seed": 1},
        "resources": {
            "master": {"cores": 1, "memory": "512Mi"},
            "worker": {"count": 2, "cores": 1, "memory": "2Gi"},
            "parameter_server": {"count": 2, "cores": 1, "memory": "1Gi"},
            "evaluator": {"cores": 1.0, "memory": "3Gi"},
        },
        "checkpoint": {"interval": "5s"},
        **changes,
    }
    return {
        "apiVersion": "elastrec.io/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "small"},
        "spec": spec,
    }


def write_job(folder: Path, log: GenerateReport, **changes: Any) -> Path:
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump(job_content(log, **changes)))
    return file
