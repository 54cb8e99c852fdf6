"""Registered models in a real MLflow server process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
from mlflow.tracking import MlflowClient

from elastrec.platform.history import History, ModelRegistry, model_registry
from elastrec.platform.history.model_registry import Champion
from elastrec.platform.jobs.types import Allocation, Prepared
from tests.platform.history.gates import gate_decision, ready_model

pytestmark = pytest.mark.services


@pytest.fixture
def run_id(history: History, make_prepared: Callable[..., Prepared], allocation: Allocation) -> str:
    return history.start_run(make_prepared(), allocation)


def test_a_model_is_registered_once_and_promoted(
    tracking_server,  # type: ignore[no-untyped-def]
    client: MlflowClient,
    run_id: str,
) -> None:
    registry = ModelRegistry(tracking_server.uri, "registered once")
    assert registry.champion("click-model") is None
    model = ready_model(client, run_id)
    gate = gate_decision(f"models:/{model.model_id}")
    version = registry.register("click-model", gate.model_uri, run_id, gate)
    assert registry.register("click-model", gate.model_uri, run_id, gate) == version == "1"
    assert registry.champion("click-model") is None
    assert registry.promote("click-model", version, "") is None
    champion = registry.champion("click-model")
    assert champion is not None
    assert (champion.version, champion.model_uri, champion.run_id) == ("1", "models:/click-model/1", run_id)
    tags = client.get_model_version("click-model", "1").tags
    assert (tags["elastrec.gate"], tags["auc"]) == ("passed", "0.750000")


def test_two_callers_at_once_register_one_version(
    tracking_server,  # type: ignore[no-untyped-def]
    client: MlflowClient,
    run_id: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two `elastrec run` with the same key see the end of the evaluator at the same time."""
    model = ready_model(client, run_id)
    gate = gate_decision(f"models:/{model.model_id}")
    earlier, later = (ModelRegistry(tracking_server.uri, "two callers") for _ in range(2))
    create, found = later._client.create_model_version, list[str]()

    def other_is_first(*values: Any, **named: Any) -> Any:
        found.append(earlier.register("raced", gate.model_uri, run_id, gate))
        return create(*values, **named)

    monkeypatch.setattr(later._client, "create_model_version", other_is_first)
    assert later.register("raced", gate.model_uri, run_id, gate) == found[0] == "1"
    assert [version.version for version in client.search_model_versions("name='raced'")] == ["1"]


def test_a_run_whose_model_was_exported_again_keeps_its_version_with_the_tags_of_the_last_decision(
    tracking_server,  # type: ignore[no-untyped-def]
    client: MlflowClient,
    run_id: str,
) -> None:
    registry = ModelRegistry(tracking_server.uri, "exported again")
    models = [f"models:/{ready_model(client, run_id).model_id}" for _ in range(2)]
    before = msgspec.structs.replace(gate_decision(models[0]), passed=False, reason="worse")
    assert registry.register("again", models[0], run_id, before) == "1"
    assert registry.register("again", models[1], run_id, gate_decision(models[1])) == "1"
    (version,) = client.search_model_versions("name='again'")
    assert (version.source, version.description) == (models[0], "within the tolerance")
    assert (version.tags["elastrec.gate"], version.tags["elastrec.gate_reason"]) == ("passed", "within the tolerance")


@pytest.fixture
def versions(client: MlflowClient, run_id: str) -> Callable[[str, int], None]:
    """Registers versions of a model; the first one is champion."""

    def make(name: str, count: int) -> None:
        client.create_registered_model(name)
        for _ in range(count):
            model_id = ready_model(client, run_id).model_id
            client.create_model_version(name, f"models:/{model_id}", run_id, model_id=model_id)
        client.set_registered_model_alias(name, "champion", "1")

    return make


def test_of_two_gates_at_once_the_second_one_sees_the_first_ones_champion(
    tracking_server,  # type: ignore[no-untyped-def]
    client: MlflowClient,
    versions: Callable[[str, int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both models were compared with version 1; the second gate reads the champion while the first one moves it."""
    versions("moving", 3)
    first, second = (ModelRegistry(tracking_server.uri, "moving") for _ in range(2))
    move = first._client.set_registered_model_alias
    with ThreadPoolExecutor(1) as pool:
        stays: list[Future[Champion | None]] = []

        def moving(*values: Any) -> None:
            stays.append(pool.submit(second.promote, "moving", "2", "1"))
            with pytest.raises(TimeoutError):
                stays[0].result(1.0)
            move(*values)

        monkeypatch.setattr(first._client, "set_registered_model_alias", moving)
        assert first.promote("moving", "3", "1") is None
        champion = stays[0].result(20)
    assert champion is not None and champion.version == "3"
    assert client.get_model_version_by_alias("moving", "champion").version == "3"


def test_of_many_gates_at_once_one_moves_the_champion(
    tracking_server,  # type: ignore[no-untyped-def]
    client: MlflowClient,
    versions: Callable[[str, int], None],
) -> None:
    versions("many", 6)
    start = threading.Barrier(5)

    def gate(version: str) -> Champion | None:
        registry = ModelRegistry(tracking_server.uri, "many")
        registry.champion("many")
        start.wait(20)
        return registry.promote("many", version, "1")

    with ThreadPoolExecutor(5) as pool:
        stays = [*pool.map(gate, "23456")]
    champion = client.get_model_version_by_alias("many", "champion").version
    assert [str(2 + place) for place, found in enumerate(stays) if found is None] == [champion]
    assert {found.version for found in stays if found is not None} == {champion}
    assert not any("elastrec.turn" in each.tags for each in client.search_model_versions("name='many'"))


def test_a_turn_of_a_killed_process_ends(
    tracking_server,  # type: ignore[no-untyped-def]
    client: MlflowClient,
    versions: Callable[[str, int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    versions("killed", 4)
    client.set_model_version_tag("killed", "2", "elastrec.turn", "killed")
    client.set_model_version_tag("killed", "4", "elastrec.turn", "killed")
    monkeypatch.setattr(model_registry, "_TURN_SECONDS", 0.3)
    assert ModelRegistry(tracking_server.uri, "killed").promote("killed", "3", "1") is None
    assert client.get_model_version_by_alias("killed", "champion").version == "3"
    assert not any("elastrec.turn" in each.tags for each in client.search_model_versions("name='killed'"))


def test_a_long_reason_of_the_gate_is_cut_to_what_mlflows_databases_hold_and_has_no_password(
    tracking_server,  # type: ignore[no-untyped-def]
    history: History,
    client: MlflowClient,
    run_id: str,
) -> None:
    """It contains why the champion could not be scored, which may be any error of its code."""
    model = ready_model(client, run_id)
    reason = "the champion could not be scored: hdfs://ann:s3cret@host/x " + "feature, " * 2000
    gate = msgspec.structs.replace(gate_decision(f"models:/{model.model_id}"), reason=reason)
    history.log_gate(run_id, gate)
    ModelRegistry(tracking_server.uri, "long reason").register("long", gate.model_uri, run_id, gate)
    version = client.get_model_version("long", "1")
    kept = [version.description, version.tags["elastrec.gate_reason"], *(
        value for key, value in client.get_run(run_id).data.tags.items() if key == "elastrec.gate_reason"
    )]  # fmt: skip
    assert len(kept) == 3
    # `model_versions.description` has 5000 characters in PostgreSQL and MySQL.
    assert all(len(text) < 5000 and text.startswith("the champion could not") for text in kept)
    assert not any("s3cret" in text for text in kept)
