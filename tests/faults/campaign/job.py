"""The jobs of a campaign: small, slowed down to last some seconds, and with short timeouts for lost pods."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

from elastrec.platform.data.generating.generator import GenerateReport, GenerateSpec, generate, training_data_for
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.text.loading import job_from_json
from tests.faults.campaign.plan import Shape

ROWS = 40_000
BATCH_ROWS, SHARD_BATCHES, EPOCHS = 128, 10, 2
SHARD_ROWS = BATCH_ROWS * SHARD_BATCHES
SHARDS = EPOCHS * math.ceil(ROWS / SHARD_ROWS)
MODEL_MODULE = "paced_model"
HEARTBEAT_TIMEOUT_SECONDS, LEASE_SECONDS = 3.0, 6.0
TRAINING_SECONDS, CHANGING_SECONDS = 10.0, 40.0
"""How long the pauses of all steps take together when every worker trains: without plans, and with them, since other
pods have to start while it trains. Once nothing is to happen any more, steps do not pause."""


def make_data(folder: Path) -> GenerateReport:
    """One day for training and one for evaluation.

    There are so few ids that the model converges. So a job whose steps of bsp were smaller while a worker was missing
    does not reach a better AUC, and every difference in AUC is an effect that a fault must not have.
    """
    return generate(
        GenerateSpec(
            path=str(folder), days=2, rows_per_day=ROWS, dense=4, sparse=4, lists=0, heaps_factor=0.5,
            heaps_exponent=0.5, seed=3,
        )
    )  # fmt: skip


def install_model(folder: Path) -> None:
    """Puts the model where the PYTHONPATH of a node agent can name it."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(__file__).with_name(f"{MODEL_MODULE}.py"), folder)


def campaign_job(
    shape: Shape,
    data: GenerateReport,
    deltas: int = 0,
    memory_bytes: int = 0,
    seconds: float = TRAINING_SECONDS,
    pause_while: str = "",
) -> TrainingJob:
    """The job with the given shape.

    Args:
        seconds: total of the pauses of all steps.
        pause_while: path of a file; see PacedModel.
        deltas: number of consecutive periodic records that contain only changes.
        memory_bytes: memory of the node for the newest record of each server.
    """
    steps = EPOCHS * math.ceil(ROWS / BATCH_ROWS)
    described = training_data_for(data.spec)
    content = {
        "apiVersion": "elastrec.io/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": f"faults-{shape.mode}-{shape.workers}-{shape.servers}"},
        "spec": {
            "model": {
                "architecture": f"{MODEL_MODULE}:PacedModel",
                "embedding_dimension": 8,
                "options": {"pause_seconds": seconds * shape.workers / steps, "pause_while": pause_while},
            },
            "data": json.loads(described.model_dump_json(exclude_none=True)),
            "training": {
                "batch_size": BATCH_ROWS,
                "batches_per_shard": SHARD_BATCHES,
                "epochs": EPOCHS,
                "seed": 1,
                "consistency": {"mode": shape.mode, "staleness": shape.staleness},
            },
            "optimizers": {
                "rows": {"kind": "adagrad", "learning_rate": 0.05},
                "dense": {"kind": "adam", "learning_rate": 0.003},
            },
            "tables": {feature.name: {"initial_range": 0.01} for feature in described.sparse},
            "resources": {
                "master": {"cores": 0.5, "memory": "512Mi"},
                "worker": {"count": shape.workers, "cores": 1.25, "memory": "1Gi"},
                "parameter_server": {"count": shape.servers, "cores": 1.25, "memory": "512Mi"},
                "evaluator": {"cores": 1, "memory": "2Gi"},
            },
            # Records often enough that faults hit them, and all of them kept, to be compared with what was restored.
            "checkpoint": {"interval": "2s", "keep": 1000, "deltas": deltas, "memory": memory_bytes or None},
            "continual": {"start_from": "nothing"},
            # The budgets that end a hopeless job are the defaults.
            "faults": {
                "heartbeat_interval": "250ms",
                "heartbeat_timeout": HEARTBEAT_TIMEOUT_SECONDS,
                "lease": LEASE_SECONDS,
            },
        },
    }
    return job_from_json(json.dumps(content))
