"""Prefetching rows inside compiled kernels.

Rows of a batch are spread over gigabytes: read one after the other, each waits for a memory latency. A processor
overlaps such reads only until a branch depends on one of them, as in a hash table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

AHEAD = 32
"""Number of rows that are prefetched together; enough to hide the latency of one."""


def prefetch_of(builder: Any) -> Callable[[Any, int], None]:
    """Generates code that prefetches the cache line of an address, for reading.

    The second argument is the locality: 3 for all caches, 2 for all but the smallest one.
    """
    pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
    function = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
    called = builder.module.declare_intrinsic("llvm.prefetch", [pointer], function)

    def generate(address: Any, locality: int) -> None:
        # For reading (0), data (1).
        builder.call(called, [address, number(0), number(locality), number(1)])

    return generate


@intrinsic
def prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    """Prefetches the cache line of `array[index]` (or, with two dimensions, of `array[index, 0]`).

    Never faults and never changes anything, for any index.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = signature.args[0]
        view = context.make_array(kind)(context, builder, arguments[0])
        offset = builder.mul(arguments[1], cgutils.unpack_tuple(builder, view.strides, kind.ndim)[0])
        address = builder.add(builder.ptrtoint(view.data, ir.IntType(64)), offset)
        # To be kept in all caches: exclusive lines would cost a plain read more.
        prefetch_of(builder)(builder.inttoptr(address, ir.IntType(8).as_pointer()), 3)
        return context.get_dummy_value()

    return types.void(array, types.int64), generate
