"""A check of the memory of a job between two rounds: when it adds memory, and when the next round is early enough."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Any

import msgspec
import pytest

from elastrec.platform.scaling.across_jobs.one_change import one_change
from elastrec.platform.scaling.job_profile import JobFacts, decidable
from elastrec.platform.scaling.memory import Servers
from elastrec.platform.scaling.memory_watch import LEAST_SECONDS, MEMORY, look
from elastrec.platform.scaling.policy import Round
from elastrec.platform.scaling.types import JobProfile, PastChange
from tests.platform.scaling.test_job_profile import GIB, HERE, facts, seen

PLAN_SECONDS = 100.0
LARGER = msgspec.structs.replace(HERE, parameter_server_memory_bytes=HERE.parameter_server_memory_bytes + 8 * GIB)


LIMIT = float(HERE.parameter_server_memory_bytes)
FULL = Servers(
    count=HERE.parameter_servers, used_bytes=0.9 * LIMIT - 2 * 2**20, limit_bytes=LIMIT, imbalance=1.0,
    largest_bytes=64.0 * GIB,
)  # fmt: skip
"""Servers that a third more rows fill."""


def reaching_its_limit_in(seconds: float, **changes: Any) -> JobFacts:
    """At the speed with which the early end of the band is so far away; rounds are 180 s apart."""
    found = decidable(facts(memory=seen(FULL)))
    assert isinstance(found, JobProfile) and found.memory_wish is not None
    assert found.memory_wish.seconds_to_limit is not None
    samples = found.memory_wish.seconds_to_limit * 10_000.0
    return facts(memory=seen(FULL, samples_per_second=samples / seconds), **changes)


def test_memory_is_added_only_if_a_later_plan_would_be_too_late() -> None:
    later = look(reaching_its_limit_in(106.0), PLAN_SECONDS)
    assert later.plan is None and later.is_short
    plan = look(reaching_its_limit_in(104.0), PLAN_SECONDS).plan
    assert plan is not None
    assert "this takes up to 100 s, so it does not wait for the next round" in plan.reason


def test_the_master_gives_the_memory_that_a_round_would_give() -> None:
    known = reaching_its_limit_in(100.0, is_settled=False)
    own = look(known, PLAN_SECONDS).plan
    (of_round,) = one_change(Round((), {}), [decidable(known)])[0].plans
    assert own is not None and own.reason.startswith(f"{of_round.reason}; ")
    assert msgspec.structs.replace(own, reason=of_round.reason) == of_round and own.policy == MEMORY


@pytest.mark.parametrize(
    "changes",
    [
        {"memory": None},
        {"memory": seen(samples_per_second=None)},
        {"memory": seen(tables=())},
        {"memory": seen(remaining=1.0)},
    ],
    ids=["no tables", "no speed yet", "nothing counted yet", "memory lasts"],
)
def test_nothing_is_given_where_nothing_is_needed_or_known(changes: dict[str, Any]) -> None:
    found = look(facts(**changes), PLAN_SECONDS)
    assert found.plan is None and not found.is_short


def test_no_request_is_made_while_an_earlier_one_changes_servers() -> None:
    assert look(reaching_its_limit_in(50.0, is_settled=False), PLAN_SECONDS).plan is not None
    under_way = reaching_its_limit_in(50.0, is_settled=False, are_servers_settled=False)
    assert look(under_way, PLAN_SECONDS).plan is None


@pytest.mark.parametrize(("seconds_ago", "asks"), [(179.0, False), (181.0, True)])
def test_refused_memory_is_not_requested_again_before_the_next_round(seconds_ago: float, *, asks: bool) -> None:
    given_up = (
        PastChange(before=HERE, after=LARGER, seconds_ago=seconds_ago, asked_by=MEMORY),
        PastChange(before=LARGER, after=HERE, seconds_ago=seconds_ago - 1.0, asked_by=""),
    )
    assert (look(reaching_its_limit_in(100.0, changes=given_up), PLAN_SECONDS).plan is not None) == asks


def test_too_little_added_memory_is_increased_immediately() -> None:
    smaller = msgspec.structs.replace(HERE, parameter_server_memory_bytes=HERE.parameter_server_memory_bytes // 2)
    given = (PastChange(before=smaller, after=HERE, seconds_ago=20.0, asked_by=MEMORY),)
    assert look(reaching_its_limit_in(100.0, changes=given), PLAN_SECONDS).plan is not None


def test_the_next_check_is_before_the_limit_and_within_a_round() -> None:
    assert look(reaching_its_limit_in(140.0), PLAN_SECONDS).seconds == pytest.approx(20.0)
    assert look(reaching_its_limit_in(1e6), PLAN_SECONDS).seconds == 180.0
    young = seen(remaining=1.0, trained=400_000.0, samples_per_second=10_000.0)
    assert look(facts(memory=young), PLAN_SECONDS).seconds == pytest.approx(20.0), "half of what it has trained"
    assert look(facts(memory=seen(samples_per_second=None)), PLAN_SECONDS).seconds == LEAST_SECONDS


def test_a_look_loads_no_compiler() -> None:
    """A job's master looks: numba would take more memory than all that it has else, and seconds of its few cores."""
    code = f"""
        import sys
        from {__name__} import look, reaching_its_limit_in
        assert look(reaching_its_limit_in(100.0), 100.0).plan is not None
        print("numba" in sys.modules)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "False", done.stderr
