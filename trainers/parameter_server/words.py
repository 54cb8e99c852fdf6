"""Copying words inside compiled kernels.

A loop over the words of a row is turned into vectors of more words than most rows have, and then copies one by one.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from elastrec.trainers.parameter_server.prefetch import prefetch_of

_LINE_WORDS = 16
"""A cache line: a processor writes whole ones past its caches, and combines smaller pieces first."""


def _addresses(context: Any, builder: Any, signature: Any, arguments: Any, first: Any) -> tuple[Any, Any]:
    """Of the word in the first argument that the second names, and of word `first` of the third argument."""
    target_view, source_view = (
        context.make_array(signature.args[place])(context, builder, arguments[place]) for place in (0, 2)
    )
    return builder.gep(target_view.data, [arguments[1]]), builder.gep(source_view.data, [first])


def _copy(context: Any, builder: Any, signature: Any, arguments: Any, first: Any, count: Any) -> Any:
    """The code that copies words of the third argument to the place in the first that the second names."""
    to, origin = _addresses(context, builder, signature, arguments, first)
    item = context.get_abi_sizeof(context.get_data_type(signature.args[0].dtype))
    cgutils.raw_memcpy(builder, to, origin, count, ir.Constant(ir.IntType(64), item))
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


@intrinsic
def stream_words(typing_context: Any, target: Any, start: Any, source: Any, first: Any, count: Any) -> Any:
    """As `copy_words`, of 32-bit words, past the processor's caches: for many bytes that nobody reads soon.

    The memory of the target is then not read before it is written. Other threads may read it once this thread has
    called `end_streams`. Meanwhile, as many words after the copied ones are prefetched: a caller reads them next.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        long, word = ir.IntType(64), ir.IntType(32)
        line, byte_pointer = ir.VectorType(word, _LINE_WORDS), ir.IntType(8).as_pointer()
        to, origin = _addresses(context, builder, signature, arguments, arguments[3])
        words = arguments[4]
        prefetch = prefetch_of(builder)
        # A line is stored past the caches only where it is aligned.
        offset = builder.and_(builder.lshr(builder.ptrtoint(to, long), long(2)), long(_LINE_WORDS - 1))
        head = builder.and_(builder.sub(long(_LINE_WORDS), offset), long(_LINE_WORDS - 1))
        head = builder.select(builder.icmp_unsigned("<", head, words), head, words)
        lines = builder.udiv(builder.sub(words, head), long(_LINE_WORDS))
        tail = builder.add(head, builder.mul(lines, long(_LINE_WORDS)))

        def copy(begin: Any, end: Any) -> None:
            cgutils.raw_memcpy(
                builder, builder.gep(to, [begin]), builder.gep(origin, [begin]), builder.sub(end, begin), long(4)
            )

        copy(long(0), head)
        with cgutils.for_range(builder, lines) as loop:
            at = builder.add(head, builder.mul(loop.index, long(_LINE_WORDS)))
            read = builder.load(builder.bitcast(builder.gep(origin, [at]), line.as_pointer()), align=4)
            written = builder.store(
                read, builder.bitcast(builder.gep(to, [at]), line.as_pointer()), align=4 * _LINE_WORDS
            )
            written.set_metadata("nontemporal", builder.module.add_metadata([word(1)]))
            prefetch(builder.bitcast(builder.gep(origin, [builder.add(at, words)]), byte_pointer), 2)
        copy(tail, words)
        return context.get_dummy_value()

    return types.void(target, types.uint64, source, types.uint64, types.uint64), generate


@intrinsic
def end_streams(typing_context: Any) -> Any:
    """Other threads see everything that this thread has written by `stream_words`.

    It waits until all of it is in memory: once after many calls, since a wait after each doubles their time.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate
