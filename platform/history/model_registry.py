"""Models in MLflow's registry: versions with the gate's figures, and the champion."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import structlog

from elastrec.platform.history.connection import Connection
from elastrec.platform.history.records import TAG_GATE, TAG_GATE_REASON

if TYPE_CHECKING:
    # At run time jobs import history.
    from elastrec.platform.jobs.types import GateDecision, ModelScore

_log = structlog.get_logger(__name__)

CHAMPION = "champion"


class Champion(msgspec.Struct, frozen=True):
    """The version of a registered model that has the alias `champion`.

    Attributes:
        model_uri: `models:/name/version`, fixed to this version.
        run_id: of the job that trained it.
    """

    name: str
    version: str
    model_uri: str
    run_id: str


class ModelRegistry(Connection):
    """Reads and writes the registered models of an MLflow server.

    Every method raises HistoryError when the server cannot be reached or refuses.
    """

    def champion(self, model_name: str) -> Champion | None:
        """The registered model's current champion; None if the model or the alias does not exist."""
        from mlflow.exceptions import MlflowException

        with self._explained(f"look for the champion of {model_name!r}"):
            try:
                version = self._client.get_model_version_by_alias(model_name, CHAMPION)
            except MlflowException as error:
                if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE", "NOT_FOUND"):
                    return None
                raise
        number = str(version.version)
        return Champion(model_name, number, f"models:/{model_name}/{number}", version.run_id or "")

    def register(self, model_name: str, model_uri: str, run_id: str, decision: GateDecision) -> str:
        """Registers a logged model as a new version, with the gate's figures as tags; returns the version.

        Idempotent: if this run's model already has a version, it is returned.
        """
        from mlflow.exceptions import MlflowException

        with self._explained(f"register {model_uri} as {model_name!r}"):
            try:
                self._client.create_registered_model(model_name)
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
            for version in self._client.search_model_versions(f"run_id = '{run_id}'"):
                if version.name == model_name and version.source == model_uri:
                    return str(version.version)
            tags = {
                TAG_GATE: "passed" if decision.passed else "refused",
                TAG_GATE_REASON: decision.reason,
                **{name: f"{value:.6f}" for name, value in compared_figures(decision.candidate).items()},
            }
            created = self._client.create_model_version(
                model_name,
                model_uri,
                run_id,
                tags=tags,
                description=decision.reason,
                model_id=logged_model_id(model_uri),
            )
        return str(created.version)

    def promote(self, model_name: str, version: str) -> None:
        """Moves the alias `champion` to a version."""
        with self._explained(f"make version {version} of {model_name!r} champion"):
            self._client.set_registered_model_alias(model_name, CHAMPION, version)
        _log.info("champion moved", model=model_name, version=version)


def compared_figures(score: ModelScore) -> dict[str, float]:
    """The figures that a gate may compare, if they are defined."""
    figures = {
        "auc": score.auc,
        "normalized_entropy": score.normalized_entropy,
        "normalized_error": score.normalized_error,
    }
    return {name: value for name, value in figures.items() if value is not None}


def logged_model_id(model_uri: str) -> str | None:
    """Id of the logged model behind `models:/m-...`; None for other URIs."""
    return model_uri.removeprefix("models:/") if model_uri.startswith("models:/m-") else None
