"""Collects the reports of a job's master during a run, and measures how long the job takes to recover from each
strike.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from elastrec.platform.specs.errors import TransportError
from elastrec.platform.specs.metrics import MigrationMetrics, Phase, TrainingMetrics
from elastrec.platform.transport import RpcClient
from elastrec.platform.transport.messages.observer import GetStatus, ShapeOutcome, ShapeRequest, Status
from tests.faults.campaign.plan import AFTER

_PERIOD_SECONDS, _STAGE_PERIOD_SECONDS = 0.1, 0.01
"""Between two questions; the latter while a stage is waited for, which may be over in a moment."""
_ANSWER_SECONDS = 2.0
_LAST_LOOK_SECONDS = 60.0
"""For a busy machine, on which a master takes long to answer, and to start again."""
_DURING_TRAINING = (Phase.PENDING, Phase.STARTING, Phase.TRAINING, Phase.RECOVERING)


@dataclass(frozen=True)
class Sample:
    """The job at a moment of the monotonic clock.

    Attributes:
        waiting: those of its pods that do not run.
    """

    seconds: float
    phase: Phase
    shards_done: int
    shards_total: int
    pods: frozenset[str]
    waiting: frozenset[str]

    @property
    def share(self) -> float:
        return self.shards_done / self.shards_total if self.shards_total else 0.0

    @property
    def has_trained(self) -> bool:
        return self.phase not in _DURING_TRAINING


@dataclass
class Watch:
    """Asks the master ten times per second until the job is over; it may be unreachable for any time.

    Attributes:
        count_rows: queries the servers for the number of rows in their steps; None if one of them does not answer.
        rows: the result of `count_rows` when training was over; None if there was none.
        requests: for other pods, by id, in the state that the master last reported; known: those of its last report. A
            master that lost its journal knows no earlier ones.
    """

    client: RpcClient
    count_rows: Callable[[], int | None] = lambda: None
    rows: int | None = None
    samples: list[Sample] = field(default_factory=list)
    last: TrainingMetrics | None = None
    requests: dict[str, ShapeRequest] = field(default_factory=dict)
    known: frozenset[str] = frozenset()
    period_seconds: float = _PERIOD_SECONDS
    changed: threading.Condition = field(default_factory=threading.Condition)
    is_over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Until the job is over, or `is_over` is set; then the job's end is asked for once more if it was not seen."""
        while not self.is_over.is_set():
            sample = self._look()
            if sample is not None and sample.phase is Phase.EVALUATING and self.rows is None:
                # May take as long as the node agent stands still: the job may be over afterwards.
                self.rows = self.count_rows()
            if sample is not None and sample.phase.is_final:
                self.is_over.set()
            time.sleep(self.period_seconds)
        # The master may just be starting again.
        deadline = time.monotonic() + _LAST_LOOK_SECONDS
        while not (self.samples and self.samples[-1].phase.is_final) and time.monotonic() < deadline:
            self._look()
            time.sleep(self.period_seconds)

    def _look(self) -> Sample | None:
        try:
            status = self.client.call(GetStatus(), Status, timeout_seconds=_ANSWER_SECONDS)
        except TransportError:
            return None
        metrics = TrainingMetrics.model_validate_json(status.metrics_json)
        sample = Sample(
            seconds=time.monotonic(),
            phase=metrics.phase,
            shards_done=metrics.shards_done,
            shards_total=metrics.shards_total,
            pods=frozenset(pod.name for pod in metrics.pods),
            waiting=frozenset(pod.name for pod in metrics.pods if pod.state != "Running"),
        )
        with self.changed:
            self.last = metrics
            reported = {request.request_id: request for request in status.shape_requests}
            self.requests |= reported
            self.known = frozenset(reported)
            self.samples.append(sample)
            self.changed.notify_all()
        return sample

    def wait_for_share(self, share: float) -> Sample | None:
        """The first sample with so much trained (above 1 or 1: training is over); None when the job ended before."""
        with self.changed:
            while True:
                newest = self.samples[-1] if self.samples else None
                if newest is not None and (newest.has_trained or (share < 1.0 and newest.share >= share)):
                    return None if newest.phase.is_final else newest
                if self.is_over.is_set():
                    return None
                self.changed.wait(0.2)

    def wait_for_stage(
        self, stage: str, request_ids: Sequence[str], seconds: float, *, joining: bool = False
    ) -> MigrationMetrics | None:
        """Waits until a change of servers is in a stage and returns it; for `AFTER`, its last state.

        Args:
            joining: also wait for a joining pod.

        Returns:
            None: the requests ended without reaching the stage, or the time is over.
        """
        deadline, seen = time.monotonic() + seconds, None
        self.period_seconds = _STAGE_PERIOD_SECONDS
        try:
            with self.changed:
                while time.monotonic() < deadline and not self.is_over.is_set():
                    now = self.last.migration if self.last is not None else None
                    seen = now or seen
                    if now is not None and now.stage == stage and (now.joining or not joining):
                        return now
                    if now is None and self._have_ended(request_ids):
                        outcomes = [self.requests[each].outcome for each in request_ids]
                        return seen if stage == AFTER and ShapeOutcome.DONE in outcomes else None
                    self.changed.wait(0.2)
        finally:
            self.period_seconds = _PERIOD_SECONDS
        return None

    def wait_for_end(self, request_ids: Sequence[str], seconds: float) -> None:
        """Until these requests have ended, the job has, or the time is over."""
        deadline = time.monotonic() + seconds
        with self.changed:
            while time.monotonic() < deadline and not self.is_over.is_set() and not self._have_ended(request_ids):
                self.changed.wait(0.2)

    def _have_ended(self, request_ids: Sequence[str]) -> bool:
        """Whether the master has reported each, and nothing is to come of it any more."""
        found = [self.requests.get(each) for each in request_ids]
        return all(
            request is not None and (request.outcome is not ShapeOutcome.OPEN or request.request_id not in self.known)
            for request in found
        )


@dataclass(frozen=True)
class Hit:
    """The effect of one fault.

    Attributes:
        pod: name of the victim; empty for the master and the node agent, which keep their name.
        began, until: on the monotonic clock; `until` is infinite for a process that cannot return.
    """

    pod: str
    began: float
    until: float

    def hurts(self, sample: Sample) -> bool:
        return sample.seconds < self.until and (not self.pod or self.pod in sample.pods)

    def has_left(self, sample: Sample) -> bool:
        """Whether a process that cannot return is gone: a master without its journal gives its name to another pod."""
        return self.until == math.inf and (self.pod not in sample.pods or self.pod in sample.waiting)


def recovery_seconds(samples: list[Sample], hits: list[Hit]) -> float | None:
    """Seconds from the beginning of a strike until every pod is alive or replaced and the job has made progress.

    Returns:
        None if the job never recovered, as in a failed run; 0 if it was over before a pod was hit.
    """
    began = min(hit.began for hit in hits)
    if samples and samples[-1].phase.is_final and samples[-1].seconds <= began:
        return 0.0
    before = max((sample.shards_done for sample in samples if sample.seconds <= began), default=0)
    remaining = hits
    for sample in samples:
        if sample.seconds <= began:
            continue
        if sample.phase.is_final:
            return sample.seconds - began
        is_further = sample.shards_done > before or sample.has_trained
        remaining = [hit for hit in remaining if not hit.has_left(sample)]
        if not sample.waiting and is_further and not any(hit.hurts(sample) for hit in remaining):
            return sample.seconds - began
    return None
