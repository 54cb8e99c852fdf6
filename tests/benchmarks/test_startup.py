"""The parts of the start-up time sum to the whole."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from benchmarks.jobs.startup import figures_of, parts_of
from elastrec.platform.transport.messages.ledger import Explanation, TimelineEntry


def at(seconds: float) -> str:
    return datetime.fromtimestamp(1_000.0 + seconds, UTC).isoformat()


def tasks() -> dict[str, dict[str, Any]]:
    spans = {"prepare_data": (2.0, 3.0), "warm_start": (4.0, 4.5), "launch": (5.0, 9.0)}
    return {name: {"start_date": at(a), "end_date": at(b)} for name, (a, b) in spans.items()}


def explanation_of(*entries: tuple[float, str]) -> Explanation:
    timeline = [
        TimelineEntry(seconds=second, unix_seconds=1_000.0 + second, what=what, cause="") for second, what in entries
    ]
    return Explanation(job="j", phase="Training", wall_seconds=1.0, parts={}, goodput=0.0, timeline=timeline, omitted=0)


STORY = [
    (7.0, "began without a record with 2 workers, 2 servers"),
    (9.0, "started j-ps-0"),
    (11.0, "started j-worker-0"),
]


def test_the_parts_sum_to_the_seconds_from_the_trigger_to_the_first_batch() -> None:
    story = explanation_of(*STORY, (11.5, "the job is training"))
    parts = parts_of(1_000.0, tasks(), story, 1_013.0)
    assert sum(parts.values()) == pytest.approx(13.0)
    assert parts["Airflow starts prepare_data"] == pytest.approx(2.0)
    assert parts["launch runs until the master has begun"] == pytest.approx(2.0)
    assert parts["servers and workers come up"] == pytest.approx(4.0)


def test_a_worker_that_came_up_after_the_first_batch_makes_no_part_negative() -> None:
    story = explanation_of(STORY[0], STORY[1], (10.0, "the job is training"), (15.0, "started j-worker-1"))
    parts = parts_of(1_000.0, tasks(), story, 1_013.0)
    assert min(parts.values()) >= 0.0
    assert sum(parts.values()) == pytest.approx(13.0)


def test_a_missing_moment_is_an_error_and_no_zero() -> None:
    with pytest.raises(RuntimeError, match="the job is training"):
        parts_of(1_000.0, tasks(), explanation_of(*STORY), 1_013.0)


def test_the_whole_is_the_median_of_the_runs_and_has_the_goal() -> None:
    runs = [({"a": 1.0, "b": seconds}, {"master": 2.0}) for seconds in (10.0, 30.0, 15.0)]
    whole, *parts = figures_of(runs)
    assert (whole.value, whole.met) == (16.0, True)
    assert {figure.figure: figure.value for figure in parts} == {
        "startup.trigger: a": 1.0, "startup.trigger: b": 15.0, "startup.trigger: CPU of master": 2.0,
    }  # fmt: skip
