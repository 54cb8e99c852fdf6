"""A pod's report to its node that its process has started; until then, the pod may have additional cores.

The process creates an empty file at the path in its environment; the node removes it when it has noticed it.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from elastrec.platform.specs import environment

_PAUSE_SECONDS = 0.01


def announce_ready(timeout_seconds: float = 1.0) -> None:
    """Reports that this process is ready to work, and waits until the node has noticed it, or the time is over.

    A repeated call, or one without a node that expects it, has no effect. A node that does not answer is no error.
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
