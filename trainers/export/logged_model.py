"""The artifact as an MLflow model: saved, loaded back, logged in the job's run."""

from __future__ import annotations

import importlib.util
import sysconfig
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlflow
import mlflow.pyfunc
import pandas as pd
import pyarrow as pa
import structlog
from mlflow.exceptions import MlflowException
from mlflow.models import Model

from elastrec.platform.specs.errors import HistoryError
from elastrec.platform.specs.job import TrainingJob
from elastrec.trainers.export.signature import raw_frame, signature

log = structlog.get_logger(__name__)

LOADER_MODULE = "elastrec.trainers.export.scorer"
# MLflow copies all metrics of the run at a model's step to the model, as one write that it repeats, and then refuses as
# its own duplicate, where another writer of an SQLite file is in its way. No metric has this step: nothing is copied.
_NO_STEP = -1
_REQUIREMENTS = ("elastrec", "torch", "torchrec", "fbgemm-gpu-cpu", "numpy", "pandas", "pyarrow", "mlflow")


Predict = Callable[[pd.DataFrame], pd.DataFrame]


def use_tracking(tracking_uri: str) -> None:
    """Where `models:/` URIs are looked up from now on; an empty one leaves MLflow's own choice."""
    if tracking_uri:
        mlflow.set_tracking_uri(tracking_uri)


def save(job: TrainingJob, artifact: Path, folder: Path, example: pa.Table | None) -> None:
    """Writes an MLflow model that `mlflow.pyfunc.load_model(folder)` loads without any server.

    Args:
        artifact: folder that `write_artifact` filled.
        example: a few raw rows; they give the signature its types.
    """
    mlflow.pyfunc.save_model(str(folder), **_contents(job, artifact, example))


def load(uri: str) -> Any:
    """The model behind an MLflow URI or folder.

    Raises:
        HistoryError: it cannot be found or loaded.
    """
    try:
        return mlflow.pyfunc.load_model(uri)
    except Exception as error:  # its own code runs: anything may come out
        raise HistoryError(f"{uri}: the model cannot be loaded: {type(error).__name__}: {error}") from error


def log_model(
    job: TrainingJob,
    artifact: Path,
    example: pa.Table | None,
    *,
    tracking_uri: str,
    run_id: str,
) -> str:
    """Logs the model in the run; returns its `models:/m-...` URI.

    Raises:
        HistoryError: the tracking server refused or is away.
    """
    use_tracking(tracking_uri)
    client = mlflow.MlflowClient(tracking_uri)
    try:
        mlflow.set_experiment(experiment_id=client.get_run(run_id).info.experiment_id)
        info = Model.log(
            artifact_path=None,
            name=job.metadata.name,
            flavor=mlflow.pyfunc,
            run_id=run_id,
            step=_NO_STEP,
            model_type=job.spec.model.architecture.rpartition(":")[2],
            **_contents(job, artifact, example),
        )
    except (MlflowException, OSError) as error:
        raise HistoryError(f"{tracking_uri}: the model could not be logged in run {run_id}: {error}") from error
    log.info("model_logged", run_id=run_id, model_uri=info.model_uri)
    return str(info.model_uri)


def _contents(job: TrainingJob, artifact: Path, example: pa.Table | None) -> dict[str, Any]:
    contents: dict[str, Any] = {
        "loader_module": LOADER_MODULE,
        "data_path": str(artifact),
        "signature": signature(job.spec.data),
        # Named here: inferring them would load the model in yet another process.
        "pip_requirements": [f"{name}=={version(name)}" for name in _REQUIREMENTS],
    }
    if example is not None and contents["signature"] is not None:
        contents["input_example"] = raw_frame(job.spec.data, example)
    if code := users_code(job):
        contents["code_paths"] = code
    return contents


def users_code(job: TrainingJob) -> list[str]:
    """Files or packages of the user's model and transform that no installation would bring along."""
    installed = tuple(Path(path).resolve() for path in sysconfig.get_paths().values())
    found: set[str] = set()
    for path in (job.spec.model.architecture, job.spec.data.transform or ""):
        top = path.partition(":")[0].partition(".")[0] if ":" in path else ""
        spec = importlib.util.find_spec(top) if top and top != "elastrec" else None
        if spec is None or spec.origin is None:
            continue
        origin = Path(spec.origin).resolve()
        source = origin.parent if spec.submodule_search_locations else origin
        if not any(folder in source.parents for folder in installed):
            found.add(str(source))
    return sorted(found)
