"""Looks whether another master has taken the job over. One that finds so ends, and touches nothing of the job."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

import structlog

from elastrec.checkpoints import StoreError, SupersededError, check_term
from elastrec.platform.master.pods.launch import LaunchRequest

log = structlog.get_logger(__name__)
_LOOK_SECONDS = 2.0
PERIOD_SECONDS = 30.0
"""Between two looks of a master that has no other reason for one. One costs a listing of a few names, so a thousand
jobs ask their store 33 times a second; nothing is lost meanwhile, for every act on pods and records looks first."""


class TermWatch:
    """One master's knowledge of its term.

    Args:
        term: of this master, and the mark of its journal in it.
        on_superseded: called once, when a higher term of another master was seen.

    Attributes:
        superseded: what the higher term says; empty while there is none.
    """

    def __init__(
        self, request: LaunchRequest, term: Callable[[], tuple[int, str]], on_superseded: Callable[[], object]
    ) -> None:
        self._request = request
        self._term = term
        self._on_superseded = on_superseded
        self._job_name = request.training_job.metadata.name
        self.superseded = ""

    @property
    def term(self) -> int:
        """Number of this master's term."""
        return self._term()[0]

    def check(self) -> None:
        """Returns while no other master has taken a higher term, as far as the store says.

        Raises:
            SupersededError: another master has; this one has been ordered to end.
            StoreError: the store could not be asked.
        """
        term, holder = self._term()
        try:
            check_term(self._request.store, self._job_name, self._request.job_id, term, holder)
        except SupersededError as error:
            if not self.superseded:
                self.superseded = str(error)
                log.warning("master_superseded", job=self._request.job_id, reason=str(error))
                self._on_superseded()
            raise

    def look_regularly(self, wait: Callable[[float], bool]) -> None:
        """Looks again and again, so that a master with nothing to save or to delete ends, too, once it is superseded.

        Returns when it is, or when `wait`, which passes the seconds until the next look, says that it is to end.
        """
        while not self.superseded and not wait(PERIOD_SECONDS):
            try:
                self.check()
            except SupersededError:
                return
            except StoreError as error:
                log.warning("successor_not_looked_for", job=self._request.job_id, reason=str(error))

    def is_superseded(self) -> bool:
        """Whether another master has taken the job over; false where the store does not answer within two seconds."""
        if self.superseded:
            return True
        answer: Future[None] = Future()

        def ask() -> None:
            try:
                self.check()
                answer.set_result(None)
            except Exception as error:
                answer.set_exception(error)

        # A store that hangs must not hold up what its master does by the clock.
        threading.Thread(target=ask, name="term", daemon=True).start()
        try:
            answer.result(_LOOK_SECONDS)
        except SupersededError:
            return True
        except (StoreError, TimeoutError) as error:
            log.warning("successor_not_looked_for", job=self._request.job_id, reason=str(error) or "no answer")
        return False
