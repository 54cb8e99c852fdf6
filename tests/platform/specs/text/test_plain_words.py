"""People read words where programs read identifiers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elastrec.platform.history.words import templates_in
from elastrec.platform.master.reporting.explanation import timeline_entry
from elastrec.platform.scaling.across_jobs.quota import POLICY
from elastrec.platform.scaling.memory_watch import MEMORY
from elastrec.platform.scaling.types import EXPLORING
from elastrec.platform.specs.metrics import Phase, Role, TrainingMetrics
from elastrec.platform.specs.shape import PlacesChange
from elastrec.platform.specs.text import plain_words


@pytest.mark.parametrize("identifier", [MEMORY, POLICY, EXPLORING, "notice", "slow node"])
def test_requesters_that_no_settings_file_names_have_words(identifier: str) -> None:
    assert plain_words.requester(identifier).startswith("the ") and identifier != plain_words.requester(identifier)


@pytest.mark.parametrize("name", ["three-stage", "my-policy", "elastrec scale", "Airflow: daily/scale"])
def test_names_that_people_have_given_stay(name: str) -> None:
    assert plain_words.requester(name) == name


@pytest.mark.parametrize("phase", list(Phase))
def test_a_change_of_phase_is_a_sentence_about_the_job(phase: Phase) -> None:
    entry = timeline_entry(1.0, 1e9, "phase_changed", {"before": "Training", "after": str(phase), "generation": 0})
    assert entry.decision == "phase_changed"
    assert entry.what.split(" ")[:2] == ["the", "job"] and entry.what.split(" ")[2] in ("is", "has", "was")
    assert "->" not in entry.what and str(phase) not in entry.what


@pytest.mark.parametrize(
    ("decision", "inputs", "words"),
    [
        ("migration_begun", {"before": 1, "after": 2}, "migration 3: parameter servers change from 1 to 2"),
        ("migration_copies", {"buckets": 1, "owners": [], "servers": []}, "migration 3: new owners copy 1 bucket"),
        ("migration_hands_over", {"copied_seconds": 1.5}, "migration 3: buckets are handed over after 1.5 s"),
        ("migration_ended", {"servers": 1, "hand_over_seconds": 0.1}, "migration 3: 1 parameter server owns all"),
        ("migration_cancelled", {"stage": "copying", "reason": "slow"}, "migration 3 was cancelled while copying"),
        ("save_failed", {"order": "save-4", "reason": "full"}, "could not save (save 4)"),
        ("save_unknown", {"order": "save-4", "reason": "late"}, "whether save 4 is complete"),
        ("shape_ended", {"request": "shape-5", "outcome": "done", "reason": ""}, "request 5 for another shape: done"),
    ],
)
def test_events_name_orders_by_word_and_number(decision: str, inputs: dict[str, object], words: str) -> None:
    entry = timeline_entry(1.0, 1e9, decision, {"order": "move-3", **inputs})
    assert words in entry.what
    assert not {"move-3", "save-4", "shape-5"} & {*entry.what.split(), *entry.cause.split()}


def test_other_names_with_a_number_are_no_orders() -> None:
    assert [plain_words.numbered(name) for name in ("save-x", "ps-0", "save")] == ["save-x", "ps-0", "save"]


def test_a_change_is_read_as_numbers_of_pods_and_sizes() -> None:
    change = {
        Role.WORKER: PlacesChange(count=1, cores=0.5),
        Role.PARAMETER_SERVER: PlacesChange(count=3, memory_bytes=3 * 2**28),
    }
    assert plain_words.places(change) == [
        "1 worker", "0.5 cores per worker", "3 servers", "768Mi of memory per server",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, ""),
        (
            {"failed_saves": 3, "failing_seconds": 301.0, "checkpoint_age_seconds": 361.0},
            "3 saves have failed, the first 5m ago; the last complete record is 6m old: No space left on device",
        ),
        (
            {"failed_saves": 1, "failing_seconds": 3.2},
            "1 save has failed, 3s ago; none has succeeded so far: No space left on device",
        ),
    ],
)
def test_failing_saves_have_a_beginning_a_reason_and_the_age_of_the_last_record(
    fields: dict[str, Any], words: str
) -> None:
    metrics = TrainingMetrics(job="j", phase=Phase.TRAINING, save_problem="No space left on device", **fields)
    assert plain_words.failing_saves(metrics) == words


def test_templates_have_the_words(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("{{ policy | requester }}, {{ role | role }}")
    page = templates_in(tmp_path).get_template("page.html").render(policy=MEMORY, role=Role.PARAMETER_SERVER)
    assert page == "the memory forecast, parameter server"
