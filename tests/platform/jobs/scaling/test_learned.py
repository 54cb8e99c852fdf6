"""A round reads the history once, and nothing without MLflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elastrec.platform.history.decisions import coefficient_figures
from elastrec.platform.history.history import History
from elastrec.platform.jobs.scaling import learned as learning
from elastrec.platform.jobs.scaling.learned import Learned, learned
from elastrec.platform.jobs.surroundings import Platform
from elastrec.platform.specs.scaling import ScalingSettings
from tests.platform.jobs.scaling.test_overheads import record
from tests.platform.scaling.jobs import coefficients

SETTINGS = ScalingSettings()


def away(folder: Path) -> Platform:
    return Platform(None, None, "http://127.0.0.1:1", "", folder)  # type: ignore[arg-type]


def test_without_mlflow_documented_defaults_count(tmp_path: Path) -> None:
    assert learned(away(tmp_path), SETTINGS) == Learned()


def test_costs_and_models_come_from_one_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readings = list[Any]()
    known = record(pods__worker_start_seconds=7.0, **coefficient_figures(coefficients()))
    monkeypatch.setattr(learning, "tracking_answers", lambda platform: True)
    monkeypatch.setattr(History, "__init__", lambda self, *arguments: None)
    monkeypatch.setattr(
        History, "job_records", lambda self, wanted=None, limit=200: readings.append(limit) or [known, record()]
    )
    found = learned(away(tmp_path), SETTINGS)
    assert len(readings) == 1
    assert found.overheads.worker_start_seconds == 7.0
    assert [job.coefficients for job in found.past] == [coefficients()]
