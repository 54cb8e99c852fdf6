"""The trigger of which all others are made: identity, deadline, and what happens when its task is ended.

A user can end a deferred task in two ways. If the task is marked failed or successful, or its DAG run is ended, the job
is stopped. If the task is cleared, the job is not stopped, because the next try of the task takes it over.

Airflow does not wait for a trigger before it starts the next try, and does not give a trigger the number of the current
try, so the state of the task is not enough to decide. The trigger keeps the try that deferred, in `owner`; each try
takes the job over with its own number; and the job's master refuses a stop by a try that is no longer the owner. The
state of the task is only used to find out whether there can be another try.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from elastrec.operators import settings
from elastrec.operators.doubt import Doubt, Patience
from elastrec.platform.specs.errors import ClusterError

if TYPE_CHECKING:
    from elastrec.platform.jobs import Platform

Answer = TypeVar("Answer")
TIMED_OUT = "task timed out"
"""Outcome of a wait whose task has exceeded its `execution_timeout`."""
ENDED_BY_A_PERSON = "__airflow_user_action__"
"""The message with which Airflow cancels a trigger whose task a user has ended; at a shutdown there is no message."""
_CLEARED = ""
_ANOTHER_TRY_STATES = {
    _CLEARED,
    "scheduled",
    "queued",
    "running",
    "restarting",
    "up_for_retry",
    "up_for_reschedule",
    "deferred",
}
"""States after which a try of the task continues, or another try follows."""


class JobTrigger(BaseTrigger):
    """Code shared by the triggers: identity, the minimum time before the first event, and the handling of kills.

    Args:
        owner: token of the try that deferred; only the owner may stop the job.
        dag_id, run_id, watched_task_id, map_index: the deferred task instance, whose state is read when it is killed.
        try_number: of the try that deferred, for the log.
        deadline: when the wait ends with the outcome TIMED_OUT, seconds since the epoch; None: never.
        over_time: the reason in that case.
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
        map_index: int = -1,
        try_number: int = 0,
        deadline: float | None = None,
        over_time: str = "",
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
        self.map_index = map_index
        self.try_number = try_number
        self.deadline = deadline
        self.over_time = over_time
        self.poll_seconds = poll_seconds
        self.grace_seconds = grace_seconds
        self._patience = Patience(settings.PROGRESS_SECONDS)
        self._decision: asyncio.Task[None] | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments, all plain values."""
        names = (
            "job_id",
            "conn_id",
            "owner",
            "dag_id",
            "run_id",
            "watched_task_id",
            "map_index",
            "try_number",
            "deadline",
            "over_time",
            "poll_seconds",
            "grace_seconds",
        )
        return self.path, {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fires once, with the result of `watch`."""
        begin = time.monotonic()
        # At the first request to Airflow, the triggerer loads its whole API, which takes half a minute on a busy
        # machine. The request is made now, so that it does not delay the decision about a kill.
        first_question = asyncio.create_task(self._warm_up())
        try:
            event = await self.first_event()
            await asyncio.sleep(max(0.0, self.grace_seconds - (time.monotonic() - begin)))
        except asyncio.CancelledError as error:
            # Airflow writes a log line before it calls `on_kill`, and skips the call if a second cancellation arrives
            # while the line waits for a thread. Therefore, the decision begins here.
            if error.args == (ENDED_BY_A_PERSON,):
                self._begin_decision()
            raise
        finally:
            first_question.cancel()
        yield TriggerEvent(event)  # type: ignore[no-untyped-call]

    async def first_event(self) -> dict[str, str]:
        """The result of `watch`, or TIMED_OUT; tasks that do not defer wait here."""
        left = None if self.deadline is None else max(0.0, self.deadline - time.time())
        try:
            async with asyncio.timeout(left) as limit:
                return self.event_of(*await self.watch())
        except TimeoutError:
            # Not by the clock, which may have been set back since.
            if not limit.expired():
                raise
        return self.event_of(TIMED_OUT, self.over_time)

    def event_of(self, outcome: str, reason: str) -> dict[str, str]:
        """Everything that the resumed task needs, because `dag.test()` discards the arguments of `defer`."""
        return {"job_id": self.job_id, "owner": self.owner, "outcome": outcome, "reason": reason}

    @abc.abstractmethod
    async def watch(self) -> tuple[str, str]:
        """Waits for the event for which the task was deferred; returns the outcome and its reason."""

    async def on_kill(self) -> None:
        """Stops the job if a user has ended the task, unless the task was cleared and another try follows."""
        await asyncio.shield(self._begin_decision())

    def _begin_decision(self) -> asyncio.Task[None]:
        if self._decision is None:
            self._decision = asyncio.create_task(self._decide())
        return self._decision

    async def cleanup(self) -> None:
        """Waits for the decision about a kill.

        When a user has ended the task, Airflow cancels the trigger every second until it ends, so `on_kill` itself is
        interrupted after a second. The decision is made in a separate asyncio task, which is not interrupted, and the
        trigger ends after it, so that the decision is in the task's log.
        """
        while self._decision is not None and not self._decision.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({self._decision})

    async def _decide(self) -> None:
        """Decides about the job and logs the decision; tries again while the cluster does not answer."""
        deadline = time.monotonic() + settings.KILL_SECONDS
        try:
            while True:
                try:
                    self.log.info(await self._stop_or_leave())
                    return
                except Exception as error:
                    if time.monotonic() >= deadline:
                        self.log.error("%s: %s", self._undecided(), error)
                        return
                    self.log.warning("job %s could not be stopped; trying again: %s", self.job_id, error)
                await asyncio.sleep(self.poll_seconds)
        except asyncio.CancelledError:
            self.log.error("%s: the triggerer ended", self._undecided())
            raise

    async def _stop_or_leave(self) -> str:
        state = await self._task_state()
        this_try = f"try {self.try_number} of task {self.watched_task_id}"
        if state in _ANOTHER_TRY_STATES:
            words = f"is {state}" if state else "was cleared"
            return f"job {self.job_id} is left running: {this_try} was ended and the task {words}; its next try goes on"
        reason = f"the Airflow task {self.watched_task_id} was ended by a person"

        def stop(platform: Platform) -> bool:
            from elastrec.platform.jobs import stop

            return stop(platform, self.job_id, reason, owner=self.owner)

        words = f"the task is {state}" if state else "the task's state is unknown"
        if await self._ask(stop):
            return f"job {self.job_id} was stopped: {this_try} was ended and {words}"
        return f"job {self.job_id} was not stopped although {words}: {this_try} does not own it any more, or it is gone"

    async def _asked(self, question: Callable[[Platform], Answer]) -> tuple[Answer | None, Doubt | None, str]:
        """The answer to a blocking call, as of `_ask`; while the cluster does not answer: None, the doubt and its
        reason."""
        try:
            return await self._ask(question), None, ""
        except ClusterError as error:
            return None, Doubt.UNREACHABLE, str(error)

    def _gives_up(self, doubt: Doubt | None, reason: str) -> bool:
        """Counts and logs an observation (None: the job answered); returns whether to end the wait for the job."""
        now = time.monotonic()
        is_over = doubt is not None and self._patience.add(doubt, now)
        line = self._patience.line(reason, now) if doubt is not None else self._patience.reset(now)
        if line:
            self.log.log(logging.INFO if doubt is None else logging.WARNING, line)
        return is_over

    def _undecided(self) -> str:
        return (
            f"nothing was decided about job {self.job_id}, which may go on; end it with `elastrec stop {self.job_id}`"
        )

    async def _ask(self, question: Callable[[Platform], Answer]) -> Answer:
        """Runs a blocking call in another thread, with the platform object of that thread."""

        def call() -> Answer:
            return question(self._platform())

        return await asyncio.to_thread(call)

    def _platform(self) -> Platform:
        from elastrec.operators.hook import ElastrecHook

        if not hasattr(self, "_hook"):
            self._hook = ElastrecHook(self.conn_id)
        return self._hook.platform

    async def _task_state(self) -> str | None:
        """The state of the deferred task instance: empty if it was cleared, None if it is unknown."""
        task = self.watched_task_id if self.map_index < 0 else f"{self.watched_task_id}_{self.map_index}"
        try:
            states = await asyncio.wait_for(asyncio.to_thread(self._ask_airflow), settings.STATE_SECONDS)
        except Exception as error:
            words = f"{type(error).__name__}: {error}"
            self.log.warning("the state of task %s is unknown, so the owner of the job decides: %s", task, words)
            return None
        if task not in states:
            self.log.warning("Airflow knows no task %s in run %s, so the owner of the job decides", task, self.run_id)
            return None
        return str(states[task] or _CLEARED)

    async def _warm_up(self) -> None:
        # At a kill, the request is repeated, and errors are logged.
        with contextlib.suppress(Exception):
            await asyncio.to_thread(self._ask_airflow)

    def _ask_airflow(self) -> dict[str, Any]:
        """The states of the watched task's instances in this run; the key of a mapped instance is `task_id_index`."""
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

        states: dict[str, dict[str, Any]] = RuntimeTaskInstance.get_task_states(
            dag_id=self.dag_id, map_index=self.map_index, task_ids=[self.watched_task_id], run_ids=[self.run_id]
        )
        return states.get(self.run_id, {})
