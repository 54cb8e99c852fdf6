"""The jobs of a campaign: small, paced to last some seconds, quick to notice a loss."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

from elastrec.platform.data.generator import GenerateReport, GenerateSpec, generate, training_data_for
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.loading import job_from_json
from tests.faults.plan import Shape

ROWS = 40_000
BATCH_ROWS, SHARD_BATCHES, EPOCHS = 256, 5, 2
SHARD_ROWS = BATCH_ROWS * SHARD_BATCHES
SHARDS = EPOCHS * math.ceil(ROWS / SHARD_ROWS)
MODEL_MODULE = "paced_model"
HEARTBEAT_TIMEOUT_SECONDS, LEASE_SECONDS = 3.0, 6.0
TRAINING_SECONDS = 10.0
"""How long the pauses of all steps take together when every worker trains."""


def make_data(folder: Path) -> GenerateReport:
    """A day to train on and a day to evaluate on."""
    return generate(GenerateSpec(path=str(folder), days=2, rows_per_day=ROWS, dense=4, sparse=6, lists=0, seed=3))


def install_model(folder: Path) -> None:
    """Puts the model where the PYTHONPATH of a node agent can name it."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(__file__).with_name(f"{MODEL_MODULE}.py"), folder)


def campaign_job(shape: Shape, data: GenerateReport) -> TrainingJob:
    """The job of a shape."""
    steps = EPOCHS * math.ceil(ROWS / BATCH_ROWS)
    content = {
        "apiVersion": "elastrec.io/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": f"faults-{shape.mode}-{shape.workers}-{shape.servers}"},
        "spec": {
            "model": {
                "architecture": f"{MODEL_MODULE}:PacedModel",
                "embedding_dimension": 8,
                "options": {"pause_seconds": TRAINING_SECONDS * shape.workers / steps},
            },
            "data": json.loads(training_data_for(data.spec).model_dump_json(exclude_none=True)),
            "training": {
                "batch_size": BATCH_ROWS,
                "batches_per_shard": SHARD_BATCHES,
                "epochs": EPOCHS,
                "seed": 1,
                "consistency": {"mode": shape.mode, "staleness": shape.staleness},
            },
            "resources": {
                "master": {"cores": 0.5, "memory": "512Mi"},
                "worker": {"count": shape.workers, "cores": 1.25, "memory": "1Gi"},
                "parameter_server": {"count": shape.servers, "cores": 1.25, "memory": "512Mi"},
                "evaluator": {"cores": 1, "memory": "2Gi"},
            },
            # Records often enough that faults hit them, and all of them kept, to be compared with what was restored.
            "checkpoint": {"interval": "2s", "keep": 1000},
            "continual": {"start_from": "nothing"},
            # Faults come much faster here than anywhere else: the budgets that end a hopeless job are not in play.
            "faults": {
                "heartbeat_interval": "250ms",
                "heartbeat_timeout": HEARTBEAT_TIMEOUT_SECONDS,
                "lease": LEASE_SECONDS,
                "shard_attempts": 50,
                "pod_restarts": 500,
            },
        },
    }
    return job_from_json(json.dumps(content))
