"""A round that cannot be written into MLflow: it is named in the log, and nothing fails because of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import structlog

from elastrec.platform.jobs.scaling.story import log_decision
from elastrec.platform.jobs.starting.launching import RUN_LABEL
from elastrec.platform.jobs.surroundings import Platform
from elastrec.platform.scaling.types import Plan
from elastrec.platform.specs.metrics import Role
from tests.platform.scaling.jobs import allocation

PLAN = Plan(job_id="j", policy="static", before=allocation(1), allocation=allocation(2), reason="faster")


@pytest.mark.parametrize(
    ("master", "why"),
    [
        (None, "the job has no run yet"),
        (SimpleNamespace(role=Role.MASTER, labels={RUN_LABEL: "0123"}), "MLflow does not answer"),
    ],
)
def test_a_change_stands_when_its_story_cannot_be_written(tmp_path: Path, master: object, why: str) -> None:
    launcher = SimpleNamespace(find=lambda job: master)
    platform = Platform(launcher, None, "http://127.0.0.1:1", "", tmp_path)  # type: ignore[arg-type]
    with structlog.testing.capture_logs() as lines:
        assert log_decision(platform, PLAN, is_changed=True, reason="faster") == ""
    (line,) = lines
    assert (line["event"], line["reason"], line["decision"]) == ("decision_not_written", why, "faster")
