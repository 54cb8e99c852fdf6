"""Keeps what a native library prints out of standard output, where commands write JSON.

HiGHS, the solver in scipy, has a line that it prints whatever its options say.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def native_output_to_stderr() -> Iterator[None]:
    """While inside, file descriptor 1 is standard error, so nothing that anybody prints meanwhile is lost.

    Python's own `sys.stdout` is not touched: what stands in its buffer is written where it belongs afterwards.
    """
    library = ctypes.CDLL(None)
    kept = os.dup(1)
    try:
        # What the C library holds back would be written to whatever descriptor 1 is later.
        library.fflush(None)
        os.dup2(2, 1)
        yield
    finally:
        library.fflush(None)
        os.dup2(kept, 1)
        os.close(kept)
