"""The artifact as an MLflow model: saved, loaded back, logged in the job's run."""

from __future__ import annotations

import http
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlflow
import mlflow.artifacts
import mlflow.pyfunc
import pandas as pd
import pyarrow as pa
import requests
import structlog
from mlflow.entities import LoggedModelOutput, LoggedModelStatus
from mlflow.exceptions import MlflowException
from mlflow.models import Model

from elastrec.platform.specs.errors import ElastrecError, HistoryError
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.text.uris import masked
from elastrec.trainers.export.own_code import OwnCode
from elastrec.trainers.export.requirements import STAND_INS, pinned, write_wheels
from elastrec.trainers.export.signature import described_inputs, raw_frame, signature
from elastrec.trainers.export.users_code import users_code, users_distributions
from elastrec.trainers.export.wheel import PACKAGE

log = structlog.get_logger(__name__)

LOADER_MODULE = "elastrec.trainers.export.scorer"
TAG_RECORD = "elastrec.record"
"""Of a logged model: the record from which it was made."""
_DATA, _WHEELS = "model", "wheels"


Predict = Callable[[pd.DataFrame], pd.DataFrame]


class UnusableModelError(ElastrecError):
    """A model is not there any more, or cannot be loaded here; another try will not succeed either."""


def use_tracking(tracking_uri: str) -> None:
    """Sets the registry of `models:/` URIs; an empty one keeps MLflow's default."""
    if tracking_uri:
        mlflow.set_tracking_uri(tracking_uri)


def save(job: TrainingJob, artifact: Path, folder: Path, example: pa.Table | None, columns: Sequence[str]) -> None:
    """Makes an MLflow model of an artifact, which `mlflow.pyfunc.load_model(folder)` loads without any server.

    Args:
        artifact: folder from `write_artifact`; it is moved into the model, so that its rows are stored once.
        folder: must not exist.
        example: a few raw rows, for users; left out if JSON cannot hold them.
        columns: of the predictions.
    """
    versions = pinned(users_distributions(job))
    with tempfile.TemporaryDirectory(prefix="stub-", dir=artifact.parent) as temporary:
        # MLflow copies what it is given: an empty folder, in whose place the artifact is moved.
        stub = Path(temporary) / _DATA
        stub.mkdir()
        try:
            mlflow.pyfunc.save_model(str(folder), **_contents(job, stub, example, columns, versions))
        except TypeError as error:
            # Columns for a user's transform have any type, and MLflow writes the example as JSON.
            if example is None or "JSON" not in str(error):
                raise
            log.warning("model_has_no_example", reason=str(error))
            shutil.rmtree(folder)
            mlflow.pyfunc.save_model(str(folder), **_contents(job, stub, None, columns, versions))
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


def load_apart(uri: str) -> tuple[Any, OwnCode]:
    """The model behind an MLflow URI or folder, built with its own version of the user's code.

    Returns: the model, and its code, within whose `used` it is to be called.

    Raises:
        UnusableModelError: it is not there any more, or cannot be loaded.
        HistoryError: it could not be fetched; a later try may succeed.
    """
    try:
        folder = Path(mlflow.artifacts.download_artifacts(artifact_uri=uri))
    except Exception as error:  # each kind of artifact store has errors of its own
        what = f"{type(error).__name__}: {error}"
        if _is_absent(error):
            raise UnusableModelError(f"{uri}: the model is not there: {what}") from error
        raise HistoryError(f"{uri}: the model could not be fetched: {what}") from error
    try:
        code = OwnCode(folder)
        with code.used():
            return load(str(folder)), code
    except (HistoryError, MlflowException, OSError) as error:
        raise UnusableModelError(str(error)) from error


def _is_absent(error: Exception) -> bool:
    if isinstance(error, MlflowException):
        return bool(error.error_code == "RESOURCE_DOES_NOT_EXIST")
    response = error.response if isinstance(error, requests.HTTPError) else None
    return response is not None and response.status_code == http.HTTPStatus.NOT_FOUND


def log_model(job: TrainingJob, folder: Path, *, tracking_uri: str, run_id: str, record_uri: str) -> str:
    """Logs a saved model in the run, without another copy on the way; returns its `models:/m-...` URI.

    If an earlier evaluator has logged the model of this record in the run, it is not stored twice. A model of the run
    that is still pending is that of an evaluator that was killed, because a job has one evaluator at a time; it is
    marked as failed.

    Args:
        record_uri: of the record from which the model was made.

    Raises:
        HistoryError: the tracking server refused or is unreachable.
    """
    use_tracking(tracking_uri)
    client = mlflow.MlflowClient(tracking_uri)
    try:
        experiment_id = client.get_run(run_id).info.experiment_id
        earlier = list(client.search_logged_models([experiment_id], f"source_run_id = '{run_id}'"))
        for left in earlier:
            if left.status is LoggedModelStatus.PENDING:
                client.finalize_logged_model(left.model_id, LoggedModelStatus.FAILED)
        ready = [model for model in earlier if model.status is LoggedModelStatus.READY]
        if same := [model for model in ready if model.tags.get(TAG_RECORD) == masked(record_uri)]:
            log.info("model_was_logged", run_id=run_id, model_uri=same[0].model_uri)
            return str(same[0].model_uri)
        logged = client.create_logged_model(
            experiment_id,
            name=job.metadata.name,
            source_run_id=run_id,
            tags={TAG_RECORD: masked(record_uri)},
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
    except Exception as error:
        # Clients of S3, Google and Azure raise errors of their own, or are not installed.
        is_known = isinstance(error, MlflowException | OSError)
        what = str(error) if is_known else f"{type(error).__name__}: {error}"
        raise HistoryError(f"{masked(tracking_uri)}: the model could not be logged in run {run_id}: {what}") from error
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
