"""How long a strike kept a job from being whole again: from its beginning, until the job is further than before."""

from __future__ import annotations

import math
from typing import cast

from elastrec.platform.specs.metrics import Phase, TrainingMetrics
from elastrec.platform.transport import RpcClient
from elastrec.platform.transport.messages.observer import Status
from tests.faults.campaign.watching import Hit, Sample, Watch, recovery_seconds


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


class Master:
    """Answers with these phases, one after the other, the last one for ever."""

    def __init__(self, *phases: Phase) -> None:
        self._phases = list(phases)

    def call(self, message: object, answer: type[Status], timeout_seconds: float) -> Status:
        phase = self._phases.pop(0) if len(self._phases) > 1 else self._phases[0]
        return Status(metrics_json=TrainingMetrics(job="j", phase=phase).model_dump_json().encode())


def test_the_end_of_a_job_is_seen_although_somebody_else_saw_it_first() -> None:
    watch = Watch(cast(RpcClient, Master(Phase.TRAINING, Phase.EVALUATING, Phase.SUCCEEDED)))

    def count() -> int:
        # While the servers are counted, over an agent that stands still, the job ends and its caller sees that.
        watch.is_over.set()
        return 7

    watch.count_rows = count
    watch.run()
    assert watch.rows == 7
    assert [sample.phase for sample in watch.samples] == [Phase.TRAINING, Phase.EVALUATING, Phase.SUCCEEDED]
