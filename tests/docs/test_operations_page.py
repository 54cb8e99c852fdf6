"""The events that the page about operations explains are those that `elastrec explain` shows."""

from __future__ import annotations

import re
from typing import Any

import pytest

from elastrec.platform.master.reporting.explanation import timeline_entry
from tests.docs.pages import DOCS

PAGE = (DOCS / "operations.md").read_text(encoding="utf-8")

# Events by the name of their decision; the page has … where a record's name is.
EVENTS: dict[str, dict[str, Any]] = {
    "pod_replaced": {"pod": "JOB-worker-1", "by": "JOB-worker-1-r1", "reason": "no heartbeat for 15.0 s"},
    "rollback": {"record": "…/", "generation": 1, "reason": ""},
    "notice_given": {"pod": "JOB-ps-0", "node": ""},
    "paused_before_end": {"pods": ["JOB-ps-0"], "ends_in_seconds": 3.0},
    "process_replaced": {"pod": "JOB-ps-0"},
    "master_resumed": {"away_seconds": 3.1},
    "job_resumed": {
        "record": "…/records/…",
        "step": 1_300_000,
        "covered_rows": 1_280_000,
        "total_rows": 4_000_000,
        "generation": 1,
        "repeated_rows": 0,
        "term": 2,
    },
    "resize_refused": {"pod": "JOB-worker-2", "cores": 1.0, "asked_cores": 4.0, "memory_bytes": 1, "reason": ""},
    "shape_ended": {"request": "shape-3", "outcome": "refused", "reason": "JOB-worker-2"},
    "save_unknown": {"order": "save-7", "reason": ""},
    "record_damaged": {"record": "…/records/…", "reason": ""},
}


@pytest.mark.parametrize("decision", EVENTS)
def test_an_event_on_the_page_has_the_words_of_explain(decision: str) -> None:
    entry = timeline_entry(1.0, 1.0, decision, EVENTS[decision])
    shown = entry.what.replace("…/,", "…,")
    # The generation of a job that is resumed depends on what happened before.
    assert f"`{re.sub(', generation 1$', '', shown) if decision == 'job_resumed' else shown}`" in PAGE
    if decision in ("pod_replaced", "master_resumed"):
        assert f"`{entry.cause}`" in PAGE
