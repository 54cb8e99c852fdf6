"""Whose call is being handled: the name that a server gave to the token by which the connection was opened."""

from __future__ import annotations

import threading
from functools import partial

_calling = threading.local()


def caller() -> str:
    """The caller of the call that this thread handles; empty: it has the server's own token."""
    return str(getattr(_calling, "name", ""))


set_caller = partial(setattr, _calling, "name")
"""For the port alone: says whose call this thread handles from now on."""
