"""The trigger that waits for a request for another shape."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from elastrec.operators import settings
from elastrec.operators.triggers.base import JobTrigger
from elastrec.platform.specs.text import plain_words

if TYPE_CHECKING:
    from elastrec.platform.jobs import Platform
    from elastrec.platform.transport.messages.job import Done
    from elastrec.platform.transport.messages.observer import ShapeRequest

GONE = "gone"
"""Outcome of a wait for a request whose job has ended."""


class ShapeTrigger(JobTrigger):
    """Fires when a request for another shape has ended (a `ShapeOutcome`), or its job cannot be observed any more.

    If a user ends the task in any way, the master is asked to cancel the request.

    Args:
        request_id: of the job's master.
        patience_seconds: after this time, the trigger fires with the outcome `open`; None: never.
    """

    path = "elastrec.operators.triggers.ShapeTrigger"

    def __init__(self, *, request_id: str, patience_seconds: float | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.request_id = request_id
        self.patience_seconds = patience_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments, all plain values."""
        path, arguments = super().serialize()
        return path, {**arguments, "request_id": self.request_id, "patience_seconds": self.patience_seconds}

    def event_of(self, outcome: str, reason: str) -> dict[str, str]:
        """As of JobTrigger, with the request."""
        return {**super().event_of(outcome, reason), "request_id": self.request_id}

    async def watch(self) -> tuple[str, str]:
        """Observes the request every `poll_seconds`; logs a line when its state changes, at most every 15 s."""
        begin, logged, said = time.monotonic(), float("-inf"), ""
        while True:
            found, doubt, reason = await self._asked(self._look)
            if found is not None:
                request, waits_for = found
                if request is None:
                    return GONE, "the job has ended, or its master has forgotten the request"
                if request.outcome != "open":
                    return request.outcome.value, request.reason
                now = time.monotonic()
                if self.patience_seconds is not None and now - begin >= self.patience_seconds:
                    return request.outcome.value, waits_for
                if waits_for != said and now - logged >= settings.PROGRESS_SECONDS:
                    logged, said = now, waits_for
                    self.log.info("%s: %s: %s", self.job_id, request.wanted, waits_for or "under way")
            if self._gives_up(doubt, reason):
                return str(doubt), reason
            await asyncio.sleep(self.poll_seconds)

    def _look(self, platform: Platform) -> tuple[ShapeRequest | None, str]:
        from elastrec.platform.jobs.scaling.asking import look_at_request

        return look_at_request(platform, self.job_id, self.request_id)

    async def _stop_or_leave(self) -> str:
        def back(platform: Platform) -> Done:
            from elastrec.platform.jobs.scaling.asking import cancel_request

            return cancel_request(platform, self.job_id, self.request_id, frees_plan=True)

        done = await self._ask(back)
        words = "was cancelled" if done.accepted else f"stands: {done.reason}"
        request = plain_words.numbered(self.request_id)
        return f"job {self.job_id}: {request} {words}: the task {self.watched_task_id} was ended by a person"

    def _undecided(self) -> str:
        return (
            f"{plain_words.numbered(self.request_id)} of job {self.job_id} is still open; "
            f"cancel it with `elastrec scale {self.job_id} --cancel`"
        )

    async def _warm_up(self) -> None:
        # No request to Airflow is needed.
        return
