"""The end of a command whose output nobody reads any more, as in `elastrec schema | head -1`."""

from __future__ import annotations

import io
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class ReaderGone(BaseException):
    """Nobody reads standard output or standard error any more.

    Like KeyboardInterrupt, it may be raised anywhere, so it is no Exception: a call to the cluster must not take it for
    an error of its connection, and try again.
    """


@contextmanager
def reader_awaited() -> Iterator[None]:
    """Raises ReaderGone where click and rich would leave with exit code 1, which says that a job has failed."""
    try:
        yield
    except BrokenPipeError as error:
        raise ReaderGone from error
    except SystemExit as error:
        # rich raises it, and leads standard output to nowhere.
        if isinstance(error.__context__, BrokenPipeError):
            raise ReaderGone from error
        raise


@contextmanager
def interrupted_without_reader() -> Iterator[None]:
    """Raises ReaderGone in the main thread as soon as the reader of standard output has ended.

    For commands that wait for something to write, which may never come.
    """
    try:
        output = sys.stdout.fileno()
    except io.UnsupportedOperation:  # a test's
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise ReaderGone

    left, leave = os.pipe()
    watch = threading.Thread(target=_watch, args=(output, left), name="reader", daemon=True)
    before = signal.signal(signal.SIGPIPE, interrupt)
    try:
        watch.start()
        yield
    finally:
        os.close(leave)
        watch.join()
        signal.signal(signal.SIGPIPE, before)
        os.close(left)


def _watch(output: int, left: int) -> None:
    """Sends SIGPIPE to this process when `output` has no reader; ends when the other end of `left` is closed."""
    poll = select.poll()
    poll.register(output, 0)
    poll.register(left, select.POLLIN)
    found = dict(poll.poll())
    if left not in found and found.get(output, 0) & select.POLLERR:
        os.kill(os.getpid(), signal.SIGPIPE)
