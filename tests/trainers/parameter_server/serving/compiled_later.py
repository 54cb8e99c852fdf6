"""A pytest plugin that warms the kernels of a server, and prints those that its code compiles or loads afterwards.

`python -m pytest -p tests.trainers.parameter_server.serving.compiled_later TESTS`. Kernels that tests call themselves
do not count: their arguments may have other types than those of a server.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numba
import pytest
from numba.core.dispatcher import Dispatcher

import elastrec.trainers.parameter_server
from elastrec.trainers.parameter_server.warm_up import warm_kernels

_NUMBA = str(Path(numba.__file__).parent)
_ROOM = str(Path(elastrec.trainers.parameter_server.__file__).parent)
_HASHING = str(Path(_ROOM, "hashing.py"))
"""Tests call it for the buckets of ids; servers find these within other kernels."""

_found: dict[str, str] = {}
_compile = Dispatcher.compile


def _callers() -> list[str]:
    """Files of the calls that are in progress, without those of numba and of this file, from the innermost on."""
    frame, files = sys._getframe(2), []
    while frame is not None:
        files.append(frame.f_code.co_filename)
        frame = frame.f_back  # type: ignore[assignment]
    return [file for file in files if not file.startswith((_NUMBA, __file__))]


def _noted(self: Any, signature: Any) -> Any:
    callers = _callers()
    # A kernel of this room that is compiled for another one has that one's caller.
    if callers[0].startswith(_ROOM) and callers[0] != _HASHING:
        _found.setdefault(self.py_func.__qualname__, Path(callers[0]).name)
    return _compile(self, signature)


def pytest_configure() -> None:
    warm_kernels()
    Dispatcher.compile = _noted


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    print(f"\ncompiled later: {_found}")
    if _found:
        session.exitstatus = 1
