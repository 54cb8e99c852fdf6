"""A lock for many writers or one reader: changes of the model enter the gate, snapshots of it close the gate."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """Many threads may be inside, or one may have it closed. A thread that waits to close it precedes later ones.

    Not reentrant. A thread inside must not wait for a thread that has not entered yet.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._inside = 0
        self._closing = 0
        self._is_closed = False

    @contextmanager
    def passed(self) -> Iterator[None]:
        """Enters the gate for the block."""
        with self._changed:
            while self._is_closed or self._closing:
                self._changed.wait()
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                if not self._inside and self._closing:
                    self._changed.notify_all()

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Closes the gate for the block, in which no other thread is inside."""
        with self._changed:
            self._closing += 1
            while self._inside or self._is_closed:
                self._changed.wait()
            self._closing -= 1
            self._is_closed = True
        try:
            yield
        finally:
            with self._changed:
                self._is_closed = False
                self._changed.notify_all()
