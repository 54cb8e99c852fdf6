"""Whose call is being handled: the name that a server gave to the token by which the connection was opened."""

from __future__ import annotations

import threading

_calling = threading.local()


def caller() -> str:
    """The caller of the call that this thread handles; empty: it has the server's own token."""
    return str(getattr(_calling, "name", ""))


def set_caller(name: str) -> None:
    """For the port alone: says whose call this thread handles from now on."""
    _calling.name = name
