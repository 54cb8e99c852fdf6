"""Decorators that compile the kernels of this room without reference counts.

numba counts references to the arrays of a tuple at each use, which costs more than most of the work of a kernel. The
counts are unnecessary, because kernels allocate nothing and their callers hold references to all arrays.
"""

from __future__ import annotations

import functools

from elastrec.trainers.parameter_server.kernel import kernel_with as any_kernel_with

kernel_with = functools.partial(any_kernel_with, _nrt=False)
kernel = kernel_with()
inlined = kernel_with(inline="always")
