"""How kernels of this room are compiled, and those of others that call them."""

from __future__ import annotations

from pathlib import Path

from elastrec.platform.specs.numba_cache import kernels_of

SOURCES = Path(__file__).parent
"""The options of this room's kernels; kernels call each other across files."""

kernel_with = kernels_of(SOURCES)
kernel = kernel_with()
inlined = kernel_with(inline="always")
