"""How kernels of this room are compiled: without the GIL, kept on disk, and without reference counts.

numba counts references of the arrays of a tuple at each use, which costs more than most of what kernels do with them.
Kernels allocate nothing: their callers hold all arrays.
"""

from __future__ import annotations

from typing import Any

from numba import njit


def kernel_with(**options: Any) -> Any:
    """A decorator, with options of numba beside this room's."""
    return njit(cache=True, nogil=True, _nrt=False, **options)


kernel = kernel_with()
inlined = kernel_with(inline="always")
