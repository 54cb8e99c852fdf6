"""How kernels of this room are compiled: without reference counts.

numba counts references of the arrays of a tuple at each use, which costs more than most of what kernels do with them.
Kernels allocate nothing: their callers hold all arrays.
"""

from __future__ import annotations

import functools

from elastrec.trainers.parameter_server.kernel import kernel_with as any_kernel_with

kernel_with = functools.partial(any_kernel_with, _nrt=False)
kernel = kernel_with()
inlined = kernel_with(inline="always")
