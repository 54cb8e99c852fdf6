"""Triggers only look: the job lives in the cluster, whatever becomes of the triggerer that watches it.

Two run kinds are told apart when a deferred task is ended by a person. Marked failed or successful, or its DAG run
ended: the job is stopped. Cleared: the next try of the task takes the job over, so it is left alone; and should the
state be unknown, the owner token decides (a job that another try took over cannot be stopped by this one).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from elastrec.operators import settings
from elastrec.operators.progress import Progress, progress_line
from elastrec.platform.specs.errors import ClusterError

if TYPE_CHECKING:
    from elastrec.platform.jobs import Platform

Answer = TypeVar("Answer")
_ENDED_STATES = {"failed", "success", "skipped", "removed", "upstream_failed"}


class JobTrigger(BaseTrigger):
    """What the two triggers share: identity, the grace before the first event, and what a kill means.

    Args:
        owner: token of the try that deferred; only the owner may stop the job.
        dag_id, run_id, watched_task_id, map_index: the deferred task, asked for its state when it is killed.
    """

    path = ""

    def __init__(
        self,
        job_id: str,
        conn_id: str,
        owner: str,
        dag_id: str,
        run_id: str,
        watched_task_id: str,
        poll_seconds: float = settings.POLL_SECONDS,
        grace_seconds: float = settings.FIRE_GRACE_SECONDS,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.job_id = job_id
        self.conn_id = conn_id
        self.owner = owner
        self.dag_id = dag_id
        self.run_id = run_id
        self.watched_task_id = watched_task_id
        self.poll_seconds = poll_seconds
        self.grace_seconds = grace_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments, all plain values."""
        names = (
            "job_id",
            "conn_id",
            "owner",
            "dag_id",
            "run_id",
            "watched_task_id",
            "poll_seconds",
            "grace_seconds",
        )
        return self.path, {name: getattr(self, name) for name in names}

    async def on_kill(self) -> None:
        """Stops the job when a person ended the task for good; leaves it to the next try when the task was cleared."""
        state = await self._task_state()
        if state is not None and state not in _ENDED_STATES:
            self.log.info("job %s is left running: the task was cleared (state %s)", self.job_id, state or "none")
            return
        from elastrec.platform.jobs import stop

        reason = f"the Airflow task {self.watched_task_id} was ended by a person"
        stopped = await self._ask(lambda platform: stop(platform, self.job_id, reason, owner=self.owner))
        self.log.info("job %s was %s", self.job_id, "stopped" if stopped else "not stopped: another try owns it")

    async def _ask(self, question: Callable[[Platform], Answer]) -> Answer:
        """Runs a blocking call beside the event loop, on a platform of its own thread."""

        def call() -> Answer:
            return question(self._platform())

        return await asyncio.to_thread(call)

    def _platform(self) -> Platform:
        from elastrec.operators.hook import ElastrecHook

        if not hasattr(self, "_hook"):
            self._hook = ElastrecHook(self.conn_id)
        return self._hook.platform

    async def _task_state(self) -> str | None:
        """The state of the deferred task: empty when cleared, None when it cannot be found out."""
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

        try:
            states = await asyncio.to_thread(
                RuntimeTaskInstance.get_task_states,
                dag_id=self.dag_id,
                task_ids=[self.watched_task_id],
                run_ids=[self.run_id],
            )
        except Exception as error:
            self.log.warning("the state of task %s is unknown: %s", self.watched_task_id, error)
            return None
        return str(states.get(self.run_id, {}).get(self.watched_task_id) or "")

    def _event(self, outcome: str, reason: str = "") -> TriggerEvent:
        # All that the resumed task needs is in the event: `dag.test()` forgets the arguments of `defer`.
        event = {"job_id": self.job_id, "owner": self.owner, "outcome": outcome, "reason": reason}
        return TriggerEvent(event)  # type: ignore[no-untyped-call]


class JobPhaseTrigger(JobTrigger):
    """Fires when the job is over: outcome `succeeded`, `failed`, `stopped`, `lost` or `unreachable`."""

    path = "elastrec.operators.triggers.JobPhaseTrigger"

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Looks every `poll_seconds`; one line when the phase changes, and one every 15 s beside that."""
        from elastrec.platform.jobs import observe

        begin = time.monotonic()
        progress = Progress(settings.PROGRESS_SECONDS)
        doubt_since: float | None = None
        while True:
            now = time.monotonic()
            outcome, reason = "", ""
            try:
                observation = await self._ask(lambda platform: observe(platform, self.job_id))
            except ClusterError as error:
                doubt_since = now if doubt_since is None else doubt_since
                outcome, reason = _outcome_of_doubt(str(error), now - doubt_since)
            else:
                doubt_since = None
                if observation.reachable and progress.is_due(observation.metrics, now):
                    self.log.info(progress_line(observation.metrics))
                if observation.metrics.phase.is_final:
                    outcome = observation.metrics.phase.value.lower()
                    reason = observation.failure or observation.metrics.reason
            if outcome:
                await asyncio.sleep(max(0.0, self.grace_seconds - (time.monotonic() - begin)))
                yield self._event(outcome, reason)
                return
            await asyncio.sleep(self.poll_seconds)


class EvaluatorTrigger(JobTrigger):
    """Fires when the evaluator pod has ended: outcome `done` or `failed`, or `unreachable`."""

    path = "elastrec.operators.triggers.EvaluatorTrigger"

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Looks every `poll_seconds`."""
        from elastrec.platform.jobs import EvaluatorState, evaluator_state

        begin = time.monotonic()
        doubt_since: float | None = None
        while True:
            now = time.monotonic()
            outcome, reason = "", ""
            try:
                state, reason = await self._ask(lambda platform: evaluator_state(platform, self.job_id))
            except ClusterError as error:
                doubt_since = now if doubt_since is None else doubt_since
                outcome, reason = _outcome_of_doubt(str(error), now - doubt_since)
            else:
                doubt_since = None
                if state is not EvaluatorState.RUNNING:
                    outcome = state.value
            if outcome:
                await asyncio.sleep(max(0.0, self.grace_seconds - (time.monotonic() - begin)))
                yield self._event(outcome, reason)
                return
            await asyncio.sleep(self.poll_seconds)


class TrackingTrigger(JobTrigger):
    """Fires when MLflow answers: outcome `back`; or `away` when it has not for `patience_seconds`."""

    path = "elastrec.operators.triggers.TrackingTrigger"

    def __init__(self, *, patience_seconds: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.patience_seconds = patience_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments, all plain values."""
        path, arguments = super().serialize()
        return path, {**arguments, "patience_seconds": self.patience_seconds}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Looks every `poll_seconds`; one line at once, and one every 15 s."""
        from elastrec.platform.jobs import tracking_answers

        begin = time.monotonic()
        told_at = float("-inf")
        while not await self._ask(tracking_answers):
            now = time.monotonic()
            left = self.patience_seconds - (now - begin)
            if left <= 0:
                yield self._event("away")
                return
            if now - told_at >= settings.PROGRESS_SECONDS:
                told_at = now
                self.log.info("MLflow does not answer; waiting for it up to %.0f s more", left)
            await asyncio.sleep(self.poll_seconds)
        await asyncio.sleep(max(0.0, self.grace_seconds - (time.monotonic() - begin)))
        yield self._event("back")


def _outcome_of_doubt(error: str, seconds: float) -> tuple[str, str]:
    """`lost` when the cluster answers but does not know the job, `unreachable` when it does not answer at all."""
    if "not in the cluster" in error and seconds >= settings.LOST_AFTER_SECONDS:
        return "lost", error
    if seconds >= settings.UNREACHABLE_AFTER_SECONDS:
        return "unreachable", error
    return "", ""
