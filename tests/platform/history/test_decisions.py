"""Rounds of scaling in a job's run, in a real MLflow server process."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from matplotlib.figure import Figure
from mlflow.tracking import MlflowClient

from elastrec.platform.history import History, Point
from elastrec.platform.history import decisions as kept
from elastrec.platform.history import metric_names as names
from elastrec.platform.history.decisions import DECISIONS_FILE, EXPLAIN_FILE, Decisions
from elastrec.platform.jobs.types import Allocation, Prepared
from elastrec.platform.scaling.amounts import Allocation as Amounts
from elastrec.platform.scaling.model.throughput import fit
from elastrec.platform.scaling.policies.static import Static
from elastrec.platform.scaling.policies.three_stage import ThreeStage
from elastrec.platform.scaling.policy import View, decide
from elastrec.platform.specs.errors import HistoryError
from tests.platform.history.test_scaling_figures import GREW, ONE, THREE
from tests.platform.scaling.jobs import PLENTY, PRICES, SHAPE, coefficients, measure, profile

pytestmark = pytest.mark.services


@pytest.fixture
def run_id(history: History, make_prepared: Callable[..., Prepared], allocation: Allocation) -> str:
    return history.start_run(make_prepared(), allocation)


def table(client: MlflowClient, run_id: str, folder: Path) -> list[dict[str, Any]]:
    content = json.loads(Path(client.download_artifacts(run_id, EXPLAIN_FILE, str(folder))).read_text())
    return [dict(zip(content["columns"], row, strict=True)) for row in content["data"]]


def test_a_round_is_a_table_a_point_and_a_page_of_pictures(
    tracking_server,
    history: History,
    run_id: str,
    tmp_path: Path,  # type: ignore[no-untyped-def]
) -> None:
    client, now = MlflowClient(tracking_server.uri), time.time()
    speeds = [Point(names.SAMPLES_PER_SECOND, 10.0 + i, 100 * i, now - 60 + 10 * i) for i in range(6)]
    history.log_series(run_id, [*speeds, Point(names.WORKERS_RUNNING, 1.0, 0, now - 60)])
    history = Decisions(tracking_server.uri, "", tracking_server.uri)
    grew = msgspec.structs.replace(GREW, unix_seconds=now)
    rounds = history.log_decision(run_id, grew, [{"why": "a"}, {"why": "b"}], {names.SCALING_WORKERS: 3.0})
    rounds = history.log_decision(run_id, grew, [{"why": "c"}], {names.SCALING_WORKERS: 3.0})
    assert rounds == [grew, grew] == history.decisions(run_id)
    history.log_throughput(run_id, rounds)
    observations = measure(coefficients(), [ONE, msgspec.structs.replace(ONE, workers=2), THREE])
    (plan,) = decide(ThreeStage(), [profile()], View(PLENTY, PRICES)).plans
    history.log_model(run_id, rounds, plan.considered, fit(SHAPE, observations), observations)
    lines = table(client, run_id, tmp_path)
    assert [line["why"] for line in lines] == ["a", "b", "c"] and {line["samples_trained"] for line in lines} == {100}
    # By this tag MLflow's pages know that the file is a table.
    shown = json.loads(client.get_run(run_id).data.tags["mlflow.loggedArtifacts"])
    assert shown == [{"path": EXPLAIN_FILE, "type": "table"}]
    assert {each.path for each in client.list_artifacts(run_id, "figures")} == {
        "figures/throughput.png",
        "figures/scaling_fit.png",
        "figures/scaling_candidates.png",
        "figures/scaling_gains.png",
        "figures/plans",
    }
    _, pictured = history.plan_pictures(run_id, rounds)
    assert (pictured.number, pictured.plan) == (2, grew)
    for name in ("scaling_fit.png", "scaling_candidates.png"):
        png = Path(client.download_artifacts(run_id, f"figures/{name}", str(tmp_path))).read_bytes()
        assert pictured.pictures[name] == f"data:image/png;base64,{base64.b64encode(png).decode()}"
    assert history.gains_picture(run_id).startswith("data:image/png;base64,")
    metrics = client.get_run(run_id).data.metrics
    assert metrics[names.SCALING_WORKERS] == 3.0 and metrics[names.SCALING_LAST_PREDICTED_GAIN] == 18.0
    assert history.page(run_id).startswith(tracking_server.uri) and run_id in history.page(run_id)


@pytest.mark.parametrize("sizes", [[ONE], [ONE, THREE]])
def test_a_picture_is_drawn_when_it_means_something(tracking_server, run_id: str, sizes: list[Amounts]) -> None:  # type: ignore[no-untyped-def]
    history, seen = Decisions(tracking_server.uri, ""), measure(coefficients(), sizes)
    stays = decide(Static(), [profile()], View(PLENTY, PRICES)).plans[0].considered
    history.log_model(run_id, [], stays, fit(SHAPE, seen), seen)
    assert list(MlflowClient(tracking_server.uri).list_artifacts(run_id, "figures")) == []


def test_the_reasons_of_each_plan_are_kept_and_those_of_a_round_that_changes_nothing_are_not(
    tracking_server,
    run_id: str,  # type: ignore[no-untyped-def]
) -> None:
    history, seen = Decisions(tracking_server.uri, ""), measure(coefficients(), [ONE])
    (plan,) = decide(ThreeStage(), [profile()], View(PLENTY, PRICES)).plans
    stays = msgspec.structs.replace(GREW, after=GREW.before, changed=False, unix_seconds=2e9)
    refused = msgspec.structs.replace(GREW, changed=False, unix_seconds=3e9)
    rounds = [GREW, stays, refused]
    for count in (1, 2, 3):
        history.log_model(run_id, rounds[:count], plan.considered, fit(SHAPE, seen), seen)
    pictured = history.plan_pictures(run_id, rounds)
    assert [(each.number, each.plan) for each in pictured] == [(1, GREW), (2, refused)]
    # A model of one configuration is no reason.
    assert all(set(each.pictures) == {"scaling_candidates.png"} for each in pictured)


def test_a_picture_of_a_plan_is_rendered_once_and_written_twice(
    tracking_server,
    run_id: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,  # type: ignore[no-untyped-def]
) -> None:
    rendered = []
    savefig = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *file, **how: [rendered.append(self), savefig(self, *file, **how)]
    )
    history, seen = Decisions(tracking_server.uri, ""), measure(coefficients(), [ONE])
    (plan,) = decide(ThreeStage(), [profile()], View(PLENTY, PRICES)).plans
    history.log_model(run_id, [GREW], plan.considered, fit(SHAPE, seen), seen)
    client, name = MlflowClient(tracking_server.uri), "scaling_candidates.png"
    newest = Path(client.download_artifacts(run_id, f"figures/{name}", str(tmp_path))).read_bytes()
    (pictured,) = history.plan_pictures(run_id, [GREW])
    assert pictured.pictures[name] == f"data:image/png;base64,{base64.b64encode(newest).decode()}"
    assert len(rendered) == 1


def test_the_table_stays_bounded_and_keeps_the_latest_rounds(
    tracking_server,
    run_id: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,  # type: ignore[no-untyped-def]
) -> None:
    monkeypatch.setattr(kept, "_MOST_LINES", 3)
    history = Decisions(tracking_server.uri, "")
    for word in ("a", "b", "c"):
        history.log_decision(run_id, GREW, [{"why": word}, {"why": word}], {})
    assert [line["why"] for line in table(MlflowClient(tracking_server.uri), run_id, tmp_path)] == ["b", "c", "c"]


def test_damaged_decisions_are_named(tracking_server, run_id: str) -> None:  # type: ignore[no-untyped-def]
    MlflowClient(tracking_server.uri).log_text(run_id, '[{"policy": 1}]', DECISIONS_FILE)
    with pytest.raises(HistoryError, match=rf"{run_id}.*decisions\.json cannot be read.*delete it"):
        Decisions(tracking_server.uri, "").decisions(run_id)
