"""A pod's word to its node that its process has started: it may lend idle cores until then.

The process makes an empty file at the path that the environment names; the node removes it when it has heard.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from elastrec.platform.specs import environment

_PAUSE_SECONDS = 0.01


def announce_ready(timeout_seconds: float = 1.0) -> None:
    """Says that this process is ready to work, and waits until the node has heard it, or the time is over.

    Said again, or where no node asks for it, it does nothing. A node that does not answer keeps nobody from working.
    """
    named = os.environ.pop(environment.READY, "")
    if not named:
        return
    file = Path(named)
    try:
        file.touch()
    except OSError:
        return
    deadline = time.monotonic() + timeout_seconds
    while file.exists() and time.monotonic() < deadline:
        time.sleep(_PAUSE_SECONDS)
