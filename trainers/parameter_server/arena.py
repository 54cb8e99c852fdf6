"""Arrays that grow without being copied: address space is reserved once, pages come when they are first written."""

from __future__ import annotations

import contextlib
import math
import mmap
import os
from typing import Any

import numpy as np

from elastrec.platform.specs.errors import ElastrecError

Array = np.ndarray[Any, Any]

_MAP_NORESERVE = 0x4000  # Linux; the mmap module does not name it
_HUGE_PAGE_BYTES = 2 * 2**20


class ServerMemoryError(ElastrecError):
    """The server cannot hold more rows."""


def physical_memory_bytes() -> int:
    """Memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def reserve(shape: tuple[int, ...], dtype: Any) -> Array:
    """A zeroed array whose untouched pages cost nothing.

    Raises:
        ServerMemoryError: the system refuses the address space.
    """
    size_bytes = max(1, math.prod(shape) * np.dtype(dtype).itemsize)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    try:
        region = mmap.mmap(-1, size_bytes, flags=flags)
    except (OSError, ValueError, OverflowError) as error:
        raise ServerMemoryError(
            f"{size_bytes} bytes of address space were refused ({error}); raise the limit (ulimit -v) or set "
            "vm.overcommit_memory to 0 or 1"
        ) from error
    if size_bytes >= _HUGE_PAGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        # An advice: kernels without huge pages refuse it.
        with contextlib.suppress(OSError):
            region.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(region, dtype, math.prod(shape)).reshape(shape)
