"""Keeps the output of native libraries out of standard output, where commands write JSON.

HiGHS, the solver in scipy, prints a line that no option suppresses.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def native_output_to_stderr() -> Iterator[None]:
    """Redirects file descriptor 1 to standard error, so that no output is lost.

    Python's `sys.stdout` is unchanged: its buffer is written to standard output afterwards.
    """
    library = ctypes.CDLL(None)
    kept = os.dup(1)
    try:
        # The C library's buffer would otherwise be written after descriptor 1 is restored.
        library.fflush(None)
        os.dup2(2, 1)
        yield
    finally:
        library.fflush(None)
        os.dup2(kept, 1)
        os.close(kept)
