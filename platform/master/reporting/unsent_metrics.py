"""Files of a job in its checkpoint store next to its ledger: its result, and metrics that MLflow has not received.

With them, a trained model can be evaluated and published long after its master has ended, without training again.
"""

from __future__ import annotations

import msgspec
from pydantic import ValidationError

from elastrec.checkpoints import conclude, open_store
from elastrec.platform.history.points import JsonPoint, Point
from elastrec.platform.master.machine.phases import NUMBERS_PER_TERM
from elastrec.platform.specs.errors import CheckpointError
from elastrec.platform.specs.metrics import TrainingMetrics


def _result_key(job_name: str, job_id: str) -> str:
    return f"{job_name}/ledger/{job_id}.result.json"


def _points_key(job_name: str, job_id: str) -> str:
    return f"{job_name}/ledger/{job_id}.points.json"


def write_result(store: str, job_name: str, job_id: str, metrics: TrainingMetrics) -> str:
    """Stores the last metrics of a job that has ended next to its ledger; returns their URI.

    Raises:
        CheckpointError: the store refused.
    """
    opened, key = open_store(store), _result_key(job_name, job_id)
    opened.put(key, metrics.model_dump_json().encode())
    return opened.child_uri(key)


def read_result(store: str, job_name: str, job_id: str, earlier_terms: int) -> TrainingMetrics | None:
    """The last metrics of a job; None if the store has none of this run of it.

    Args:
        earlier_terms: terms up to this number belong to runs of the job that had ended before its launch.

    Raises:
        CheckpointError: the store could not be asked, or the file is damaged.
    """
    opened, key = open_store(store), _result_key(job_name, job_id)
    if not opened.exists(key):
        return None
    try:
        result = TrainingMetrics.model_validate_json(opened.get(key))
    except ValidationError as error:
        raise CheckpointError(f"{opened.child_uri(key)}: it cannot be read: {error}") from error
    # It stays until another master of the job ends, which a lost one never does.
    return result if result.generation >= earlier_terms * NUMBERS_PER_TERM else None


def forget_result(store: str, job_name: str, job_id: str) -> None:
    """Removes the result after the model was published, so that the next run with this id trains again.

    Raises:
        CheckpointError: the store refused.
    """
    conclude(store, job_name, job_id)
    open_store(store).delete(_result_key(job_name, job_id))


def write_points(store: str, job_name: str, job_id: str, points: list[Point]) -> str:
    """Stores figures that could not be sent next to the ledger; returns their URI.

    Raises:
        CheckpointError: the store refused.
    """
    opened, key = open_store(store), _points_key(job_name, job_id)
    opened.put(key, msgspec.json.encode(JsonPoint.all(points)))
    return opened.child_uri(key)


def read_points(store: str, job_name: str, job_id: str) -> list[Point]:
    """Unsent figures, oldest first; empty if there are none.

    Raises:
        CheckpointError: the store could not be asked, or the file is damaged.
    """
    opened, key = open_store(store), _points_key(job_name, job_id)
    if not opened.exists(key):
        return []
    try:
        return [each.point() for each in msgspec.json.decode(opened.get(key), type=list[JsonPoint])]
    except (msgspec.MsgspecError, ValueError) as error:
        raise CheckpointError(f"{opened.child_uri(key)}: it cannot be read: {error}") from error


def forget_points(store: str, job_name: str, job_id: str) -> None:
    """Removes the figures after they were sent.

    Raises:
        CheckpointError: the store refused.
    """
    open_store(store).delete(_points_key(job_name, job_id))
