from __future__ import annotations

from typing import Any

import msgspec
import pytest

from elastrec.platform.scaling.amounts import Change
from elastrec.platform.simulator.workload import JobToRun
from tests.platform.simulator.cluster import QUIET, asked, job, run

URGENT = job("urgent", seconds=600.0, arrival_seconds=600.0, priority=2.0)
WORKERS = frozenset({Change.WORKERS})


def fills(name: str, **changed: Any) -> JobToRun:
    """12 workers and 2 servers of 2 cores: 28 of a node's 32 cores."""
    return job(name, allocation=asked(workers=12), **changed)


def test_a_job_of_higher_priority_takes_workers_before_it_takes_jobs() -> None:
    report = run("static", [fills("low", movable=WORKERS), URGENT], nodes=1)
    low, urgent = (next(each for each in report.jobs if each.job_id == name) for name in ("low", "urgent"))
    assert urgent.placed_seconds == 600.0
    assert low.evictions == 0
    assert low.allocation.workers == 1


def test_evicted_jobs_wait_again_and_lose_only_unsaved_training() -> None:
    report = run("static", [fills("low", movable=frozenset()), URGENT], nodes=1)
    low, urgent = (next(each for each in report.jobs if each.job_id == name) for name in ("low", "urgent"))
    assert urgent.placed_seconds == 600.0
    assert low.evictions == 1
    (alone,) = run("static", [fills("low")], nodes=1).jobs
    pause = urgent.ended_seconds - 600.0
    # Waits for the urgent one, starts anew, and trains again what is less than one checkpoint interval.
    assert pause <= low.ended_seconds - alone.ended_seconds <= pause + 60.0 + 600.0


@pytest.mark.parametrize("change", [{"priority": 1.0}, {"priority": 0.5}])
def test_only_a_job_of_higher_priority_preempts_others(change: dict[str, float]) -> None:
    report = run("static", [fills("low"), msgspec.structs.replace(URGENT, **change)], nodes=1)
    assert report.figures()["evictions"] == 0
    assert next(each for each in report.jobs if each.job_id == "urgent").placed_seconds > 600.0


def test_no_job_is_evicted_whose_capacity_is_not_needed() -> None:
    small = job("small", arrival_seconds=60.0, allocation=asked(workers=1, servers=1), movable=frozenset())
    large = msgspec.structs.replace(URGENT, allocation=asked(workers=11, servers=1))
    report = run("static", [fills("low", movable=frozenset()), small, large], nodes=1)
    assert {each.job_id: each.evictions for each in report.jobs} == {"urgent": 0, "low": 1, "small": 0}
    assert next(each for each in report.jobs if each.job_id == "urgent").placed_seconds == 600.0


def test_no_job_shrinks_whose_workers_are_not_needed() -> None:
    young = job("young", movable=WORKERS, arrival_seconds=60.0, allocation=asked(workers=2, servers=1))
    old = job("old", movable=WORKERS, allocation=asked(workers=10, servers=1))
    large = msgspec.structs.replace(URGENT, allocation=asked(workers=9, servers=1))
    report = run("static", [old, young, large], nodes=1)
    assert {each.job_id: each.allocation.workers for each in report.jobs} == {"urgent": 9, "old": 1, "young": 2}
    assert report.figures()["evictions"] == 0


def test_without_preemption_the_urgent_one_waits() -> None:
    calm = msgspec.structs.replace(QUIET, preemption=False)
    report = run("static", [fills("low"), URGENT], nodes=1, given=calm)
    assert report.figures()["evictions"] == 0
    assert next(each for each in report.jobs if each.job_id == "urgent").placed_seconds > 600.0


def test_no_job_is_displaced_for_a_job_that_would_still_not_fit() -> None:
    large = msgspec.structs.replace(URGENT, allocation=asked(workers=40))
    given = msgspec.structs.replace(QUIET, until_seconds=5 * 3600.0)
    report = run("static", [fills("low"), large], nodes=1, given=given)
    assert report.unfinished == ("urgent",)
    assert [each.evictions for each in report.jobs] == [0]


def test_the_more_urgent_of_those_that_wait_is_placed_first() -> None:
    others = [fills(f"job-{index}", seconds=600.0, priority=float(1 + index)) for index in range(3)]
    calm = msgspec.structs.replace(QUIET, preemption=False)
    report = run("static", [fills("first", seconds=600.0, priority=9.0), *others], nodes=1, given=calm)
    assert [each.job_id for each in report.jobs] == ["first", "job-2", "job-1", "job-0"]
