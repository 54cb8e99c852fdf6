"""The requests that a round may send to a job: the same for live and simulated jobs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from elastrec.platform.scaling.amounts import Change
from elastrec.platform.scaling.job_profile import JobFacts, NotNow, decidable
from elastrec.platform.scaling.memory import Servers, TableHistory
from elastrec.platform.scaling.memory_outlook import MemorySeen
from elastrec.platform.scaling.types import JobProfile, Limits
from tests.platform.scaling.jobs import SHAPE, allocation

GIB = 2**30
HERE = allocation()
SAMPLES = tuple(100_000.0 * 2**power for power in range(6))
ROWS = tuple(2.0 * samples**0.8 for samples in SAMPLES)
TABLE = TableHistory(table="user", samples=SAMPLES, rows=ROWS, bytes_per_row=80.0)


def seen(servers: Servers | None = None, **changes: Any) -> MemorySeen:
    """Of a job whose servers hold their rows now, and not to its end."""
    found = Servers(
        count=HERE.parameter_servers, used_bytes=GIB / 8, limit_bytes=float(HERE.parameter_server_memory_bytes),
        imbalance=1.0, largest_bytes=64.0 * GIB,
    )  # fmt: skip
    known = MemorySeen(
        tables=(TABLE,), servers=servers or found, worker_used_bytes=0.0, trained=SAMPLES[-1], remaining=1e10,
        samples_per_second=10_000.0,
    )  # fmt: skip
    return msgspec.structs.replace(known, **changes)


def facts(**changes: Any) -> JobFacts:
    known = JobFacts(
        job_id="job", shape=SHAPE, allocation=HERE, remaining_samples=1e10, observations=(),
        prior=None, memory=seen(), changes=(), shape_version=3, limits=Limits(), movable=frozenset(Change),
        until_next_change_seconds=180.0, team="ads", priority=2.0, is_settled=True, are_servers_settled=True, steps=50,
        least_steps=50,
    )  # fmt: skip
    return msgspec.structs.replace(known, **changes)


def test_a_settled_job_with_steps_enough_is_decided_about() -> None:
    found = decidable(facts())
    assert isinstance(found, JobProfile) and found.memory_wish is not None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"is_settled": False}, "pods are coming or going"),
        ({"steps": 49}, "49 steps in its present configuration; 50 are needed"),
        ({"steps": 0, "is_settled": False}, "pods are coming or going"),
    ],
)
def test_a_job_that_is_left_alone_has_a_reason_and_a_memory_forecast(changes: dict[str, Any], reason: str) -> None:
    found = decidable(facts(**changes))
    assert isinstance(found, NotNow) and found.memory is not None and found.memory.memory_wish is not None
    assert found.reason.startswith(f"{reason}; memory: the limit less 10 % is reached in ")
    assert found.shape_version == 3 and found.holder is not None
    assert (found.holder.team, found.holder.allocation, found.holder.priority) == ("ads", HERE, 2.0)
    assert found.holder.least_workers == Limits().workers[0]


def test_while_servers_change_there_is_no_memory_forecast() -> None:
    found = decidable(facts(is_settled=False, are_servers_settled=False))
    assert isinstance(found, NotNow) and found.memory is None and found.reason == "pods are coming or going"


@pytest.mark.parametrize(
    ("memory", "words"),
    [
        (seen(tables=()), "not forecast before its servers were seen and its tables counted three times"),
        (
            seen(tables=(msgspec.structs.replace(TABLE, bytes_per_row=0.0),)),
            "table user.bytes_per_row: 0.0 is not allowed",
        ),
        (seen(remaining=1.0), "at the end the fullest server has at most"),
    ],
)
def test_the_reason_for_no_memory_request_is_shown(memory: MemorySeen, words: str) -> None:
    found = decidable(facts(is_settled=False, memory=memory))
    assert isinstance(found, NotNow) and f"; memory: {words}" in found.reason
    assert found.memory is not None and found.memory.memory_wish is None


def test_a_job_without_tables_has_no_memory_forecast() -> None:
    found = decidable(facts(is_settled=False, memory=None))
    assert isinstance(found, NotNow) and found.reason == "pods are coming or going"
    assert found.memory is not None and found.memory.memory is None


@pytest.mark.parametrize(("movable", "is_larger"), [(frozenset(Change), False), (frozenset({Change.WORKERS}), True)])
def test_no_server_is_planned_beyond_its_limit_and_where_none_can_be_planned_the_master_is_asked(
    movable: frozenset[Change], is_larger: bool
) -> None:
    limits = Limits(parameter_server_memory_bytes=(GIB, HERE.parameter_server_memory_bytes))
    found = decidable(facts(limits=limits, movable=movable))
    assert isinstance(found, JobProfile) and found.memory_wish is not None
    wanted = found.memory_wish.allocation
    assert (wanted.parameter_server_memory_bytes > HERE.parameter_server_memory_bytes) == is_larger
    assert (wanted.parameter_servers > HERE.parameter_servers) != is_larger
