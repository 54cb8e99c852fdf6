"""Registered models in a real MLflow server process."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from mlflow.tracking import MlflowClient

from elastrec.platform.history import History, ModelRegistry
from elastrec.platform.jobs.types import Allocation, Prepared
from tests.platform.history.gates import gate_decision

pytestmark = pytest.mark.services


def test_a_model_is_registered_once_and_promoted(
    tracking_server,  # type: ignore[no-untyped-def]
    history: History,
    client: MlflowClient,
    make_prepared: Callable[..., Prepared],
    allocation: Allocation,
) -> None:
    registry = ModelRegistry(tracking_server.uri, "registered once")
    assert registry.champion("click-model") is None
    run_id = history.start_run(make_prepared(), allocation)
    model = client.create_logged_model(client.get_run(run_id).info.experiment_id, name="model", source_run_id=run_id)
    client.finalize_logged_model(model.model_id, "READY")
    gate = gate_decision(f"models:/{model.model_id}")
    version = registry.register("click-model", gate.model_uri, run_id, gate)
    assert registry.register("click-model", gate.model_uri, run_id, gate) == version == "1"
    assert registry.champion("click-model") is None
    registry.promote("click-model", version)
    champion = registry.champion("click-model")
    assert champion is not None
    assert (champion.version, champion.model_uri, champion.run_id) == ("1", "models:/click-model/1", run_id)
    tags = client.get_model_version("click-model", "1").tags
    assert (tags["elastrec.gate"], tags["auc"]) == ("passed", "0.750000")
