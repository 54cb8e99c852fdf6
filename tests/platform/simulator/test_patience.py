from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
import simpy

from elastrec.platform.scaling.amounts import Capacity, Change, Resources
from elastrec.platform.scaling.job_profile import job_profile
from elastrec.platform.scaling.policies.static import Static
from elastrec.platform.scaling.policy import Round, View, decide
from elastrec.platform.scaling.types import JobProfile, Proposal
from elastrec.platform.simulator.nodes import Nodes
from elastrec.platform.simulator.patience import Patience
from elastrec.platform.simulator.running import Running
from elastrec.platform.simulator.settings import Settings
from elastrec.platform.simulator.simulation import Simulation
from elastrec.platform.specs.errors import ScalingError
from tests.platform.simulator.cluster import NODE, PRICES, QUIET, job, run

ENOUGH = Resources(1e9, 1e18)
LITTLE = Resources(2.0, 8.0 * 2**30)


def running() -> Running:
    only = job(movable=frozenset({Change.WORKERS}))
    return Running(only, only.allocation, None, simpy.Environment(), Settings(), np.random.default_rng(0))


def stayed(each: Running, free: Resources) -> Round:
    return decide(Static(), [job_profile(each.facts(180.0, None))], View(Capacity(free=free), PRICES))


def asked_in(patience: Patience, each: Running, rounds: Sequence[int], free: Resources = ENOUGH) -> list[int]:
    """The rounds in which there was a question; the answer is always to stay."""
    found = []
    for number in rounds:
        if patience.is_due(each, number, free):
            found.append(number)
            patience.remember([each], stayed(each, free), number, free)
    return found


def test_a_job_that_stays_is_proposed_less_and_less_often() -> None:
    assert asked_in(Patience(8), running(), range(1, 40)) == [1, 2, 4, 8, 16, 24, 32]


def test_without_patience_a_job_is_asked_about_in_every_round() -> None:
    assert asked_in(Patience(1), running(), range(1, 40)) == list(range(1, 40))


def test_a_job_with_an_event_is_included_in_the_next_round() -> None:
    patience, each = Patience(8), running()
    asked_in(patience, each, range(1, 18))
    each.wake()
    assert asked_in(patience, each, range(18, 26)) == [18, 19, 21, 25]


def test_a_job_without_room_is_proposed_again_when_there_is_more() -> None:
    patience, each = Patience(8), running()
    asked_in(patience, each, range(1, 18), LITTLE)
    assert asked_in(patience, each, [18, 19], Resources()) == []
    assert asked_in(patience, each, [20], ENOUGH) == [20]


def test_a_job_that_had_room_for_anything_does_not_care_for_more() -> None:
    patience, each = Patience(8), running()
    asked_in(patience, each, range(1, 18))
    assert asked_in(patience, each, range(18, 24), ENOUGH + ENOUGH) == []


def test_a_job_with_a_plan_is_proposed_in_every_round() -> None:
    patience, each = Patience(8), running()
    for number in range(1, 10):
        assert patience.is_due(each, number, ENOUGH)
        answer = stayed(each, ENOUGH)
        (proposal,) = answer.proposals
        two = msgspec.structs.replace(proposal, candidates=proposal.candidates * 2)
        patience.remember([each], Round(answer.plans, {}, (two,)), number, ENOUGH)


def test_a_job_that_needs_memory_is_included_in_every_round() -> None:
    patience, each = Patience(8), running()
    asked_in(patience, each, range(1, 18))
    each.is_short_of_memory = True
    assert asked_in(patience, each, range(18, 22)) == [18, 19, 20, 21]


def test_jobs_without_changes_do_not_depend_on_patience() -> None:
    jobs = [job(f"job {number}", 7200.0, straggles=number % 2 == 0) for number in range(6)]
    trouble = Settings(hours_between_failures=4.0, hot_server_share=0.5)
    assert run("static", jobs, given=msgspec.structs.replace(trouble, patience_rounds=8)) == run(
        "static", jobs, given=trouble
    )


class Counting(Static):
    """Static, and how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def propose(self, job: JobProfile, view: View) -> Proposal:
        self.asked += 1
        return super().propose(job, view)


def test_a_patient_simulation_asks_an_eighth_of_the_questions() -> None:
    counts = []
    for rounds in (1, 8):
        policy = Counting()
        given = msgspec.structs.replace(QUIET, patience_rounds=rounds)
        Simulation([job(seconds=36_000.0)], Nodes(2, NODE), policy, PRICES, given).run()
        counts.append(policy.asked)
    assert counts[0] == pytest.approx(36_000.0 / 180.0, abs=3)
    assert counts[1] == pytest.approx(counts[0] / 8, abs=5)


@pytest.mark.parametrize("rounds", [0, -1])
def test_a_patience_of_no_round_is_refused(rounds: int) -> None:
    with pytest.raises(ScalingError, match=r"simulation\.patience_rounds"):
        Settings(patience_rounds=rounds)
