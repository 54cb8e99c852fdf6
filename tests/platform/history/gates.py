"""Decisions of the gate, made from results of the evaluator, and models to decide about."""

from __future__ import annotations

from mlflow import MlflowClient
from mlflow.entities import LoggedModel

from elastrec.platform.jobs.types import GateDecision, ModelScore


def gate_decision(model_uri: str) -> GateDecision:
    """Passed: the candidate is better than the champion by 0.01 of AUC and of normalised entropy."""
    return GateDecision(
        passed=True, reason="within the tolerance", candidate=ModelScore(0.75, 0.9, 200),
        champion=ModelScore(0.74, 0.91, 200), champion_version="1", model_uri=model_uri,
    )  # fmt: skip


def ready_model(client: MlflowClient, run_id: str) -> LoggedModel:
    """A logged model of a run, without files."""
    model = client.create_logged_model(client.get_run(run_id).info.experiment_id, name="model", source_run_id=run_id)
    return client.finalize_logged_model(model.model_id, "READY")
