"""Checks whether another master has taken the job over. If so, this master ends without changing the job."""

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
"""Seconds between two regular checks. A check is a listing of a few names, so a thousand jobs make 33 requests per
second to their store. The interval is safe, because every action on pods and records checks first."""


class TermWatch:
    """The term of one master, and checks for higher ones.

    Args:
        term: of this master, with the holder of its journal.
        on_superseded: called once, when a higher term of another master was found.

    Attributes:
        superseded: description of the higher term; empty if there is none.
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
        """Returns if the store has no higher term of another master.

        Raises:
            SupersededError: another master has taken a higher term; this one has been ordered to end.
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
        """Checks regularly, so that a superseded master without anything to save or delete ends, too.

        Returns when it is superseded, or when `wait`, which is called with the seconds until the next check, returns
        that it must end.
        """
        while not self.superseded and not wait(PERIOD_SECONDS):
            try:
                self.check()
            except SupersededError:
                return
            except StoreError as error:
                log.warning("successor_not_looked_for", job=self._request.job_id, reason=str(error))

    def is_superseded(self) -> bool:
        """Whether another master has taken the job over; False if the store does not answer within two seconds."""
        if self.superseded:
            return True
        answer: Future[None] = Future()

        def ask() -> None:
            try:
                self.check()
                answer.set_result(None)
            except Exception as error:
                answer.set_exception(error)

        # A hanging store must not delay the timed work of its master.
        threading.Thread(target=ask, name="term", daemon=True).start()
        try:
            answer.result(_LOOK_SECONDS)
        except SupersededError:
            return True
        except (StoreError, TimeoutError) as error:
            log.warning("successor_not_looked_for", job=self._request.job_id, reason=str(error) or "no answer")
        return False
