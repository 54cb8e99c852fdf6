"""The artifact as an MLflow model: saved, loaded back, logged in the job's run."""

from __future__ import annotations

import importlib.util
import shutil
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlflow
import mlflow.pyfunc
import pandas as pd
import pyarrow as pa
import structlog
from mlflow.entities import LoggedModelOutput, LoggedModelStatus
from mlflow.exceptions import MlflowException
from mlflow.models import Model

from elastrec.platform.specs.errors import HistoryError
from elastrec.platform.specs.job import TrainingJob
from elastrec.trainers.export.requirements import STAND_INS, pinned, write_wheels
from elastrec.trainers.export.signature import described_inputs, raw_frame, signature
from elastrec.trainers.export.wheel import PACKAGE

log = structlog.get_logger(__name__)

LOADER_MODULE = "elastrec.trainers.export.scorer"
_DATA, _WHEELS = "model", "wheels"


Predict = Callable[[pd.DataFrame], pd.DataFrame]


def use_tracking(tracking_uri: str) -> None:
    """Sets the registry of `models:/` URIs; an empty one keeps MLflow's default."""
    if tracking_uri:
        mlflow.set_tracking_uri(tracking_uri)


def save(job: TrainingJob, artifact: Path, folder: Path, example: pa.Table | None, columns: Sequence[str]) -> None:
    """Makes an MLflow model of an artifact, which `mlflow.pyfunc.load_model(folder)` loads without any server.

    Args:
        artifact: folder from `write_artifact`; it is moved into the model, so that its rows are stored once.
        folder: must not exist.
        example: a few raw rows, for users.
        columns: of the predictions.
    """
    versions = pinned()
    with tempfile.TemporaryDirectory(prefix="stub-", dir=artifact.parent) as temporary:
        # MLflow copies what it is given: an empty folder, in whose place the artifact is moved.
        stub = Path(temporary) / _DATA
        stub.mkdir()
        mlflow.pyfunc.save_model(str(folder), **_contents(job, stub, example, columns, versions))
    place = folder / "data" / _DATA
    place.rmdir()
    shutil.move(artifact, place)
    wheels = [f"{_WHEELS}/{wheel.name}" for wheel in write_wheels(folder / _WHEELS, versions)]
    named = f"{PACKAGE}=={versions[PACKAGE]}"
    for name in ("requirements.txt", "conda.yaml"):
        file = folder / name
        # MLflow knows no wheels that are made later; in their place stands the package.
        lines = [
            line.replace(named, shipped)
            for line in file.read_text().splitlines()
            for shipped in (wheels if line.split()[-1:] == [named] else [named])
        ]
        file.write_text("\n".join([*lines, ""]))
    described = Model.load(str(folder))
    described.model_size_bytes = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    described.save(str(folder / "MLmodel"))


def load(uri: str) -> Any:
    """The model behind an MLflow URI or folder.

    Raises:
        HistoryError: it cannot be found or loaded.
    """
    try:
        return mlflow.pyfunc.load_model(uri)
    except Exception as error:  # its own code runs: anything may come out
        raise HistoryError(f"{uri}: the model cannot be loaded: {type(error).__name__}: {error}") from error


def log_model(job: TrainingJob, folder: Path, *, tracking_uri: str, run_id: str) -> str:
    """Logs a saved model in the run, without another copy on the way; returns its `models:/m-...` URI.

    Raises:
        HistoryError: the tracking server refused or is unreachable.
    """
    use_tracking(tracking_uri)
    client = mlflow.MlflowClient(tracking_uri)
    try:
        logged = client.create_logged_model(
            client.get_run(run_id).info.experiment_id,
            name=job.metadata.name,
            source_run_id=run_id,
            model_type=job.spec.model.architecture.rpartition(":")[2],
        )
        try:
            _name(folder, logged.model_id, run_id, logged.artifact_location)
            client.log_model_artifacts(logged.model_id, str(folder))
            client.log_outputs(run_id, [LoggedModelOutput(logged.model_id, step=0)])
        except BaseException:
            client.finalize_logged_model(logged.model_id, LoggedModelStatus.FAILED)
            raise
        client.finalize_logged_model(logged.model_id, LoggedModelStatus.READY)
    except (MlflowException, OSError) as error:
        raise HistoryError(f"{tracking_uri}: the model could not be logged in run {run_id}: {error}") from error
    log.info("model_logged", run_id=run_id, model_uri=logged.model_uri)
    return str(logged.model_uri)


def _name(folder: Path, model_id: str, run_id: str, location: str) -> None:
    """Writes the id of the logged model into the model."""
    described = Model.load(str(folder))
    described.model_id = described.model_uuid = model_id
    described.run_id, described.artifact_path = run_id, location
    described.save(str(folder / "MLmodel"))


def _contents(
    job: TrainingJob, data: Path, example: pa.Table | None, columns: Sequence[str], versions: dict[str, str]
) -> dict[str, Any]:
    contents: dict[str, Any] = {
        "loader_module": LOADER_MODULE,
        "data_path": str(data),
        "signature": signature(columns),
        "metadata": {"inputs": described_inputs(job.spec.data)},
        # Named here: inferring them would load the model in yet another process.
        "pip_requirements": [f"{name}=={version}" for name, version in versions.items() if name not in STAND_INS],
    }
    if example is not None:
        contents["input_example"] = raw_frame(job.spec.data, example)
    if code := users_code(job):
        contents["code_paths"] = code
    return contents


def users_code(job: TrainingJob) -> list[str]:
    """Files or packages of the user's model and transform that no installation contains."""
    installed = tuple(Path(path).resolve() for path in sysconfig.get_paths().values())
    modules: set[str] = set()
    for path in (job.spec.model.architecture, job.spec.data.transform or ""):
        top = path.partition(":")[0].partition(".")[0] if ":" in path else ""
        spec = importlib.util.find_spec(top) if top and top != "elastrec" else None
        if spec is None or spec.origin is None:
            continue
        origin = Path(spec.origin).resolve()
        source = origin.parent if spec.submodule_search_locations else origin
        if not any(folder in source.parents for folder in installed):
            modules.add(str(source))
    return sorted(modules)
