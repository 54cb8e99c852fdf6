"""Pending answers, and waits for several of them at once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Answer = tuple[Any, list[Array]]
"""A message, and its arrays."""


class Reply:
    """A server's answer to one request. One thread waits for it.

    Args:
        lock: held by callers of `succeed` and `fail`; the same for all replies of a client.

    Attributes:
        is_done: whether the answer has arrived or the request has failed.
    """

    __slots__ = ("_answer", "_error", "_lock", "_waiter", "is_done")

    def __init__(self, lock: threading.RLock) -> None:
        self.is_done = False
        self._lock = lock
        self._answer: Answer | None = None
        self._error: Exception | None = None
        self._waiter: _Waiter | None = None

    def succeed(self, answer: Answer) -> None:
        self._answer, self.is_done = answer, True
        if self._waiter is not None:
            self._waiter.note(has_failed=False)

    def fail(self, error: Exception) -> None:
        self._error, self.is_done = error, True
        if self._waiter is not None:
            self._waiter.note(has_failed=True)

    def result(self) -> Answer:
        """Waits for the answer; raises the error of a failed request."""
        if not self.is_done:
            wait_for([self])
        if self._error is not None:
            raise self._error
        assert self._answer is not None
        return self._answer


def results(replies: Sequence[Reply]) -> list[Answer]:
    """Waits for all answers; raises the error of a failed request without waiting for the others."""
    wait_for(replies)
    for reply in replies:
        if reply._error is not None:
            raise reply._error
    return [reply._answer for reply in replies if reply._answer is not None]


def wait_for(replies: Sequence[Reply]) -> None:
    """Waits until all answers have arrived or a request has failed."""
    for reply in replies:
        if not reply.is_done:
            break
    else:
        return
    with replies[0]._lock:
        missing = [reply for reply in replies if not reply.is_done]
        if not missing or any(reply._error is not None for reply in replies):
            return
        waiter = _Waiter(len(missing))
        for reply in missing:
            reply._waiter = waiter
    waiter.wait()


class _Waiter:
    """A waiting thread, woken once when a number of replies is done or one has failed."""

    def __init__(self, missing: int) -> None:
        self._missing = missing
        self._gate = threading.Lock()
        self._gate.acquire()

    def note(self, *, has_failed: bool) -> None:
        if self._missing > 0:
            self._missing = 0 if has_failed else self._missing - 1
            if not self._missing:
                self._gate.release()

    def wait(self) -> None:
        self._gate.acquire()
