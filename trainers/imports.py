"""Loads large libraries without the garbage collector, which would search what is being made, again and again, in vain.

A quarter of the CPU time of loading torch and torchrec is that search. numba loads half of itself at its first kernel.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collector() -> Iterator[None]:
    """Nothing is collected inside; what was made there is never looked at again. Also a decorator."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
