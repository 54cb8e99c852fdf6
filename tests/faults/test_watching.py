"""How long a strike kept a job from being whole again: from its beginning, until the job is further than before."""

from __future__ import annotations

import math

from elastrec.platform.specs.metrics import Phase
from tests.faults.watching import Hit, Sample, recovery_seconds


def sample(seconds: float, done: int, *pods: str, phase: Phase = Phase.TRAINING, whole: bool = True) -> Sample:
    return Sample(seconds, phase, done, 10, frozenset(pods), whole)


def test_a_lost_pod_is_made_good_when_another_one_is_there_and_a_shard_more_is_done() -> None:
    samples = [
        sample(1.0, 3, "w0"),
        sample(3.0, 3, "w0-r1", whole=False),
        sample(4.0, 3, "w0-r1"),
        sample(5.5, 4, "w0-r1"),
    ]
    assert recovery_seconds(samples, [Hit("w0", 2.0, math.inf)]) == 3.5


def test_a_stop_lasts_until_its_process_goes_on() -> None:
    samples = [sample(1.0, 3, "w0"), sample(3.0, 4, "w0"), sample(6.5, 5, "w0")]
    assert recovery_seconds(samples, [Hit("w0", 2.0, 6.0)]) == 4.5


def test_a_job_that_never_gets_further_has_not_recovered() -> None:
    assert recovery_seconds([sample(1.0, 3, "w0"), sample(9.0, 3, "w0")], [Hit("", 2.0, 2.0)]) is None


def test_a_strike_that_finds_the_job_over_leaves_nothing_to_recover_from() -> None:
    samples = [sample(1.0, 10, "w0", phase=Phase.EVALUATING), sample(1.9, 10, "w0", phase=Phase.SUCCEEDED)]
    assert recovery_seconds(samples, [Hit("w0", 2.0, math.inf)]) == 0.0
    assert recovery_seconds(samples, [Hit("w0", 1.5, math.inf)]) == 1.9 - 1.5
