"""The time to recovery after a strike, and the stage of a change of servers."""

from __future__ import annotations

import math
import threading
from typing import cast

from elastrec.platform.specs.metrics import MigrationMetrics, Phase, TrainingMetrics
from elastrec.platform.transport import RpcClient
from elastrec.platform.transport.messages.observer import ShapeOutcome, ShapeRequest, Status
from tests.faults.campaign.plan import AFTER
from tests.faults.campaign.watching import Hit, Sample, Watch, recovery_seconds


def sample(seconds: float, done: int, *pods: str, phase: Phase = Phase.TRAINING, whole: bool = True) -> Sample:
    return Sample(seconds, phase, done, 10, frozenset(pods), frozenset(() if whole else pods))


def test_a_lost_pod_is_made_good_when_another_one_is_there_and_a_shard_more_is_done() -> None:
    samples = [
        sample(1.0, 3, "w0"),
        sample(3.0, 3, "w0-r1", whole=False),
        sample(4.0, 3, "w0-r1"),
        sample(5.5, 4, "w0-r1"),
    ]
    assert recovery_seconds(samples, [Hit("w0", 2.0, math.inf)]) == 3.5


def test_a_pod_that_gets_the_name_of_the_victim_is_not_the_victim() -> None:
    samples = [sample(1.0, 3, "w0"), sample(3.0, 4, "w0"), sample(4.0, 4, "w0", whole=False), sample(6.0, 4, "w0")]
    assert recovery_seconds(samples[:2], [Hit("w0", 2.0, math.inf)]) is None
    assert recovery_seconds(samples, [Hit("w0", 2.0, math.inf)]) == 4.0


def test_a_stop_lasts_until_its_process_continues() -> None:
    samples = [sample(1.0, 3, "w0"), sample(3.0, 4, "w0"), sample(6.5, 5, "w0")]
    assert recovery_seconds(samples, [Hit("w0", 2.0, 6.0)]) == 4.5


def test_a_job_that_never_gets_further_has_not_recovered() -> None:
    assert recovery_seconds([sample(1.0, 3, "w0"), sample(9.0, 3, "w0")], [Hit("", 2.0, 2.0)]) is None


def test_a_strike_after_the_end_of_the_job_needs_no_recovery() -> None:
    samples = [sample(1.0, 10, "w0", phase=Phase.EVALUATING), sample(1.9, 10, "w0", phase=Phase.SUCCEEDED)]
    assert recovery_seconds(samples, [Hit("w0", 2.0, math.inf)]) == 0.0
    assert recovery_seconds(samples, [Hit("w0", 1.5, math.inf)]) == 1.9 - 1.5


class Master:
    """Gives these answers, one after the other, and the last one again and again."""

    def __init__(self, *answers: Status) -> None:
        self._answers = list(answers)

    def call(self, message: object, answer: type[Status], timeout_seconds: float) -> Status:
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


def in_phase(phase: Phase) -> Status:
    return Status(metrics_json=TrainingMetrics(job="j", phase=phase).model_dump_json().encode())


def test_the_end_of_a_job_is_seen_by_several_observers() -> None:
    phases = Phase.TRAINING, Phase.EVALUATING, Phase.SUCCEEDED
    watch = Watch(cast(RpcClient, Master(*map(in_phase, phases))))

    def count() -> int:
        # While the servers are counted, over an agent that stands still, the job ends and its caller sees that.
        watch.is_over.set()
        return 7

    watch.count_rows = count
    watch.run()
    assert watch.rows == 7
    assert [sample.phase for sample in watch.samples] == list(phases)


def reported(
    stage: str = "", *, outcome: ShapeOutcome = ShapeOutcome.OPEN, joining: str = "", known: bool = True
) -> Status:
    """What a master says of a change of servers, empty: none is under way, and of the request for it."""
    migration = MigrationMetrics(stage=stage, joining=tuple(filter(None, [joining]))) if stage else None
    metrics = TrainingMetrics(job="j", phase=Phase.TRAINING, migration=migration)
    requests = [ShapeRequest(request_id="r", wanted="3 servers", outcome=outcome)] if known else []
    return Status(metrics_json=metrics.model_dump_json().encode(), shape_requests=requests)


def stage_seen(stage: str, *answers: Status, joining: bool = False) -> MigrationMetrics | None:
    """What `wait_for_stage` returns when it sees every answer of the master."""
    watch = Watch(cast(RpcClient, Master(*answers)))

    class AskAgain(threading.Condition):
        """Instead of waiting for another thread, asks the master."""

        def wait(self, timeout: float | None = None) -> bool:
            watch._look()
            return True

    watch.changed = AskAgain()
    return watch.wait_for_stage(stage, ["r"], 20.0, joining=joining)


DONE = ShapeOutcome.DONE


def test_a_stage_is_seen_while_a_change_is_in_it() -> None:
    seen = stage_seen("copying", reported("starting"), reported("copying", joining="ps-1"), reported(outcome=DONE))
    assert seen is not None and (seen.stage, seen.joining) == ("copying", ("ps-1",))


def test_a_start_without_the_pods_that_join_is_not_seen_yet() -> None:
    made = reported("starting", joining="ps-1")
    seen = stage_seen("starting", reported("starting"), made, reported(outcome=DONE), joining=True)
    assert seen is not None and seen.joining == ("ps-1",)


def test_a_change_that_is_done_is_known_as_it_was_last() -> None:
    seen = stage_seen(AFTER, reported("copying"), reported("handing over", joining="ps-1"), reported(outcome=DONE))
    assert seen is not None and (seen.stage, seen.joining) == ("handing over", ("ps-1",))


def test_a_change_that_was_given_up_has_no_time_after_it() -> None:
    assert stage_seen(AFTER, reported("copying"), reported(outcome=ShapeOutcome.CANCELLED)) is None


def test_a_request_that_was_lost_with_the_journal_is_not_waited_for() -> None:
    assert stage_seen("copying", reported("starting"), reported(known=False)) is None
