"""Copying words inside compiled kernels.

A loop over the words of a row is turned into vectors of more words than most rows have, and then copies one by one.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


@intrinsic
def copy_row(typing_context: Any, target: Any, start: Any, source: Any, row: Any) -> Any:
    """target[start : start + W] = source[row], source [n, W] contiguous, both of one type; nothing is checked."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        to, begin, rows, number = arguments
        target_view = context.make_array(signature.args[0])(context, builder, to)
        source_view = context.make_array(signature.args[2])(context, builder, rows)
        width = cgutils.unpack_tuple(builder, source_view.shape, 2)[1]
        item = context.get_abi_sizeof(context.get_data_type(signature.args[0].dtype))
        first = builder.gep(target_view.data, [begin])
        cgutils.raw_memcpy(
            builder, first, builder.gep(source_view.data, [builder.mul(number, width)]), width, ir.Constant(word, item)
        )
        return context.get_dummy_value()

    return types.void(target, types.uint64, source, types.uint64), generate


@intrinsic
def copy_words(typing_context: Any, target: Any, start: Any, source: Any, first: Any, count: Any) -> Any:
    """target[start : start + count] = source[first : first + count], both contiguous; nothing is checked."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, begin, words, from_word, number = arguments
        target_view = context.make_array(signature.args[0])(context, builder, to)
        source_view = context.make_array(signature.args[2])(context, builder, words)
        item = context.get_abi_sizeof(context.get_data_type(signature.args[0].dtype))
        cgutils.raw_memcpy(
            builder, builder.gep(target_view.data, [begin]), builder.gep(source_view.data, [from_word]), number,
            ir.Constant(ir.IntType(64), item),
        )  # fmt: skip
        return context.get_dummy_value()

    return types.void(target, types.uint64, source, types.uint64, types.uint64), generate
