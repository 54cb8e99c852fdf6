"""The way to an experiment of an MLflow without a server."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlflow import MlflowClient

from elastrec.platform.history.connection import Connection


def test_files_of_runs_lie_beside_the_database_file_wherever_one_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    uri = f"sqlite:///{home}/mlflow.db"
    experiment = MlflowClient(uri).get_experiment(Connection(uri, "clicks")._experiment_id)
    assert experiment.artifact_location == (home / "artifacts").as_uri()
    assert list(elsewhere.iterdir()) == []
