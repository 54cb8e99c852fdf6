"""The caller of the current call: the name that a server has given to the token of the connection."""

from __future__ import annotations

import threading
from functools import partial

_calling = threading.local()


def caller() -> str:
    """The caller of the call that this thread handles; empty: it has the server's own token."""
    return str(getattr(_calling, "name", ""))


set_caller = partial(setattr, _calling, "name")
"""For the port alone: sets the caller of the calls that this thread handles."""
