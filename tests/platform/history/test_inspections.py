"""Runs of inspected logs, in a database file."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlflow import MlflowClient

from elastrec.platform.data.clustering.inspection import DataFacts, Saving
from elastrec.platform.data.deduplicating.dedupe_factor import Choice, FeatureFactor, Proposal
from elastrec.platform.history.inspections import Inspections
from elastrec.platform.specs.errors import HistoryError

HALVED = Saving(2000, 1000)
FACTS = DataFacts(
    rows=100, sessions=20, rows_without_session=0, batch_rows=50, session_sizes={5: 20},
    features=(FeatureFactor("ad", True, 3.0, 0.8, 2.5, 1.1, 2.4, ""),), steps=(),
    proposal=Proposal((("ad",),), (Choice("ad", 0, "worth it"),)),
    storage=HALVED, stored_once=HALVED, sent=HALVED, pooled=HALVED,
)  # fmt: skip


def test_an_inspection_is_a_finished_run_with_figures_picture_and_table(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    run_id = Inspections(uri, "logs").record(FACTS, "/logs/clicks", "2026-01-01")
    run = MlflowClient(uri).get_run(run_id)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "inspection clicks 2026-01-01")
    assert run.data.metrics["data/factor/ad"] == 2.5 and run.data.metrics["data/stored/ratio"] == 2.0
    assert {item.path for item in MlflowClient(uri).list_artifacts(run_id)} == {"inspection.json", "inspection.png"}


def test_an_inspection_whose_files_cannot_be_written_is_closed_as_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*values: object) -> None:
        raise OSError("the store is full")

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setattr(MlflowClient, "log_artifact", refuse)
    inspections = Inspections(uri, "logs")
    with pytest.raises(HistoryError, match="the store is full"):
        inspections.record(FACTS, "/logs/clicks", "2026-01-01")
    (run,) = MlflowClient(uri).search_runs([inspections._experiment_id])
    assert run.info.status == "FAILED"
