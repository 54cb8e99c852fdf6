"""The demo's table of results. The run of the DAG is fake."""

from __future__ import annotations

import io
from datetime import date
from types import SimpleNamespace

import pytest
from rich.console import Console

from elastrec.platform.data.generating.generator import DayTruth
from tools.stack.demo import Outcome, show
from tools.stack.demo_scaling import Scaling

DAY = DayTruth(
    day=date(2026, 1, 3), rows=10, positives=2, bytes=1, best_auc=0.8, best_normalized_entropy=0.9, best_log_loss=0.5
)
METRICS = {"samples_trained": 20, "evaluation_samples": 10, "auc": 0.75, "normalized_entropy": 0.95}


def table(scaling: Scaling) -> str:
    outcome = Outcome(
        run_id="r", metrics=METRICS, decision={"reason": "no champion yet"},
        registered={"name": "clicks", "version": 1, "is_champion": True}, run_url="http://mlflow/r", seconds=60.0,
        scaling=scaling,
    )  # fmt: skip
    console = Console(width=200, file=io.StringIO(), record=True)
    show(console, SimpleNamespace(log_in_url="", mlflow_url="http://mlflow"), outcome, SimpleNamespace(days=[DAY]))  # type: ignore[arg-type]
    return console.export_text()


def test_a_job_that_did_not_grow_is_shown_with_the_reasons() -> None:
    scaling = Scaling(None, print, kills=True)  # type: ignore[arg-type]
    scaling.why_unchanged, scaling.why_not_killed = "stays: [8] plans examined", "the job has not grown"
    shown = table(scaling)
    assert "the job was not changed: stays: [8] plans examined" in shown
    assert "kill of a server" in shown and "not shown: the job has not grown" in shown


@pytest.mark.parametrize(("back", "words"), [(7.0, "it trained again 7 s later"), (None, "it had ended before")])
def test_a_job_that_grew_and_lost_a_server_is_shown_with_both(back: float | None, words: str) -> None:
    scaling = Scaling(None, print, kills=True, killed="job-ps-0", back_after_seconds=back)  # type: ignore[arg-type]
    scaling.changes.append("1 → 3 workers, pause of training 0.25 s")
    shown = table(scaling)
    assert "1 → 3 workers, pause" in shown and "job-ps-0 was killed" in shown and words in shown
    assert "not changed" not in shown and "not shown" not in shown
