"""Checks whether MLflow answers: training does not need it, publishing waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from elastrec.platform.history.connection import answers
from elastrec.platform.jobs.surroundings import Platform
from elastrec.platform.specs.text.uris import masked

log = structlog.get_logger(__name__)
Announce = Callable[[str], None]
_POLL_SECONDS = 1.0
_TELL_SECONDS = 60.0


def tracking_answers(platform: Platform) -> bool:
    """Whether MLflow answers at present."""
    return answers(platform.tracking_uri)


def warn(text: str) -> None:
    """Logs a line for people.

    `log.warning` itself, bound when a module is imported, would write to standard output, because a command configures
    its logs later.
    """
    log.warning(text)


def wait_for_tracking(platform: Platform, seconds: float, announce: Announce = warn) -> bool:
    """Waits until MLflow answers; returns False if it does not within the given time.

    Args:
        announce: if MLflow does not answer, called with a line for people at once and then every minute.
    """
    deadline = time.monotonic() + seconds
    told_at = float("-inf")
    while not tracking_answers(platform):
        now = time.monotonic()
        if now >= deadline:
            return False
        if now - told_at >= _TELL_SECONDS:
            told_at = now
            server = masked(platform.tracking_uri)
            announce(f"MLflow at {server} does not answer; waiting for it up to {deadline - now:.0f} s more")
        time.sleep(min(_POLL_SECONDS, deadline - now))
    return True
