"""Copying words inside compiled kernels.

A loop over the words of a row is turned into vectors of more words than most rows have, and then copies one by one.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


def _copy(context: Any, builder: Any, signature: Any, arguments: Any, first: Any, count: Any) -> Any:
    """The code that copies words of the third argument to the place in the first that the second names."""
    target_view, source_view = (
        context.make_array(signature.args[place])(context, builder, arguments[place]) for place in (0, 2)
    )
    item = context.get_abi_sizeof(context.get_data_type(signature.args[0].dtype))
    cgutils.raw_memcpy(
        builder, builder.gep(target_view.data, [arguments[1]]), builder.gep(source_view.data, [first]), count,
        ir.Constant(ir.IntType(64), item),
    )  # fmt: skip
    return context.get_dummy_value()


@intrinsic
def copy_row(typing_context: Any, target: Any, start: Any, source: Any, row: Any) -> Any:
    """target[start : start + W] = source[row], source [n, W] contiguous, both of one type; nothing is checked."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows = context.make_array(signature.args[2])(context, builder, arguments[2])
        width = cgutils.unpack_tuple(builder, rows.shape, 2)[1]
        return _copy(context, builder, signature, arguments, builder.mul(arguments[3], width), width)

    return types.void(target, types.uint64, source, types.uint64), generate


@intrinsic
def copy_words(typing_context: Any, target: Any, start: Any, source: Any, first: Any, count: Any) -> Any:
    """target[start : start + count] = source[first : first + count], contiguous and of one type; nothing is checked."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _copy(context, builder, signature, arguments, *arguments[3:])

    return types.void(target, types.uint64, source, types.uint64, types.uint64), generate
