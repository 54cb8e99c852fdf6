"""Triggers that wait for the end of a job, for its evaluator, or for MLflow."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from elastrec.operators import settings
from elastrec.operators.doubt import Doubt
from elastrec.operators.progress import Progress, progress_line
from elastrec.operators.triggers.base import JobTrigger
from elastrec.platform.specs.errors import ClusterError, JobNotFoundError

if TYPE_CHECKING:
    from elastrec.platform.jobs import Observation, Platform

ENDED = "ended"
"""Outcome of a wait for a job whose master has ended, because nobody read its result in time; the result is in the
store."""


class JobPhaseTrigger(JobTrigger):
    """Fires when the job is over (`succeeded`, `failed`, `stopped`) or cannot be observed any more (see `Doubt`).

    A job whose master the cluster has ended, for example with its node, is `lost` at once; one whose master has ended
    by itself, for example while Airflow was down, is ENDED.
    """

    path = "elastrec.operators.triggers.JobPhaseTrigger"

    async def watch(self) -> tuple[str, str]:
        """Observes the job every `poll_seconds`; logs a line when the phase changes, and every 15 s."""
        progress = Progress(settings.PROGRESS_SECONDS)
        while True:
            doubt: Doubt | None
            try:
                observation = await self._ask(self._observe)
            except JobNotFoundError as error:
                doubt, reason = Doubt.LOST, str(error)
            except ClusterError as error:
                doubt, reason = Doubt.UNREACHABLE, str(error)
            else:
                metrics = observation.metrics
                reason = observation.failure or metrics.reason
                if metrics.phase.is_final:
                    return str(Doubt.LOST) if observation.is_lost else metrics.phase.value.lower(), reason
                if observation.has_ended:
                    return ENDED, reason
                doubt = None if observation.reachable else Doubt.SILENT
                if observation.reachable and progress.is_due(metrics, time.monotonic()):
                    self.log.info(progress_line(metrics))
            if self._gives_up(doubt, reason):
                return str(doubt), reason
            await asyncio.sleep(self.poll_seconds)

    def _observe(self, platform: Platform) -> Observation:
        from elastrec.platform.jobs import observe

        return observe(platform, self.job_id)


class EvaluatorTrigger(JobTrigger):
    """Fires when the evaluator pod has ended (an `EvaluatorState`), or with `unreachable`."""

    path = "elastrec.operators.triggers.EvaluatorTrigger"

    async def watch(self) -> tuple[str, str]:
        """Looks every `poll_seconds`."""
        while True:
            ended, doubt, reason = await self._asked(self._ended)
            if ended is not None:
                return ended
            if self._gives_up(doubt, reason):
                return str(doubt), reason
            await asyncio.sleep(self.poll_seconds)

    def _ended(self, platform: Platform) -> tuple[str, str] | None:
        """The evaluator's state and its reason; None while it runs."""
        from elastrec.platform.jobs import EvaluatorState, evaluator_state

        state, reason = evaluator_state(platform, self.job_id)
        return None if state is EvaluatorState.RUNNING else (state.value, reason)


class TrackingTrigger(JobTrigger):
    """Fires when MLflow answers (outcome `back`), when it has not answered for `patience_seconds` (outcome `away`), or
    with `unreachable`."""

    path = "elastrec.operators.triggers.TrackingTrigger"

    def __init__(self, *, patience_seconds: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.patience_seconds = patience_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments, all plain values."""
        path, arguments = super().serialize()
        return path, {**arguments, "patience_seconds": self.patience_seconds}

    async def watch(self) -> tuple[str, str]:
        """Tries MLflow every `poll_seconds`; logs a line immediately, and every 15 s."""
        begin = time.monotonic()
        logged = float("-inf")
        while True:
            # The cluster must be found to reach anything else, although MLflow is not part of it.
            answers, doubt, reason = await self._asked(self._answers)
            if answers:
                return "back", ""
            if self._gives_up(doubt, reason):
                return str(doubt), reason
            now = time.monotonic()
            left = self.patience_seconds - (now - begin)
            if left <= 0:
                return "away", ""
            if now - logged >= settings.PROGRESS_SECONDS:
                logged = now
                self.log.info("MLflow does not answer; waiting for it up to %.0f s more", left)
            await asyncio.sleep(self.poll_seconds)

    def _answers(self, platform: Platform) -> bool:
        from elastrec.platform.jobs import tracking_answers

        return tracking_answers(platform)
