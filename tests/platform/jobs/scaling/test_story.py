"""A round that cannot be written to MLflow is logged and does not fail."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import structlog

from elastrec.platform.history.scaling_figures import Decision
from elastrec.platform.jobs.scaling.story import log_decision, write_own_plans
from elastrec.platform.jobs.starting.launching import RUN_LABEL
from elastrec.platform.jobs.surroundings import Platform
from elastrec.platform.scaling.memory_watch import MEMORY
from elastrec.platform.scaling.types import MemoryCurve, Plan
from elastrec.platform.specs.metrics import Role
from elastrec.platform.transport.messages.ledger import OwnPlan
from tests.platform.scaling.jobs import allocation

PLAN = Plan(job_id="j", policy="static", before=allocation(1), allocation=allocation(2), reason="faster")


@pytest.mark.parametrize(
    ("master", "why"),
    [
        (None, "the job has no run yet"),
        (SimpleNamespace(role=Role.MASTER, labels={RUN_LABEL: "0123"}), "MLflow does not answer"),
    ],
)
def test_a_change_is_kept_when_its_decision_cannot_be_logged(tmp_path: Path, master: object, why: str) -> None:
    launcher = SimpleNamespace(find=lambda job: master)
    platform = Platform(launcher, None, "http://127.0.0.1:1", "", tmp_path)  # type: ignore[arg-type]
    with structlog.testing.capture_logs() as lines:
        assert log_decision(platform, PLAN, is_changed=True, reason="faster") == ""
    (line,) = lines
    assert (line["event"], line["reason"], line["decision"]) == ("decision_not_written", why, "faster")


class Written:
    """A run of MLflow that keeps decisions."""

    def __init__(self) -> None:
        self.kept: list[Decision] = []

    def decisions(self, run_id: str) -> list[Decision]:
        return list(self.kept)

    def log_decision(self, run_id: str, decision: Decision, lines: object, figures: object) -> list[Decision]:
        self.kept.append(decision)
        return self.decisions(run_id)


def test_a_masters_own_decision_is_written_once_with_forecast_and_outcome() -> None:
    curve = MemoryCurve(samples=(5.0, 6.0), low=(1.0, 2.0), likely=(1.0, 3.0), high=(1.0, 4.0), safe_bytes=3.0)
    more = msgspec.structs.replace(PLAN, policy=MEMORY, reason="full in 30 s", memory=curve, plan_id="plan-1")
    other = msgspec.structs.replace(more, plan_id="plan-2")
    own = [
        OwnPlan(unix_seconds=10.0, samples=5, plan_json=msgspec.json.encode(more), outcome="done"),
        OwnPlan(
            unix_seconds=20.0, samples=7, plan_json=msgspec.json.encode(other), outcome="timed out", reason="no room"
        ),
    ]
    written: Any = Written()
    for known in (own[:1], own, own):
        write_own_plans(written, "run", known)
    done, late = written.kept
    assert (done.unix_seconds, done.samples_trained, done.policy, done.memory) == (10.0, 5, MEMORY, curve)
    assert (done.changed, done.reason) == (True, "full in 30 s")
    assert (late.changed, late.reason) == (False, "timed out: no room")
