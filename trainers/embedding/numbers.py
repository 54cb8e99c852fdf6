"""Runs of float32 that are added up inside compiled kernels.

A loop over the numbers of a row is turned into vectors of more numbers than most rows have, and then takes one by one:
so these are vectors of 8, and what is left is taken in vectors of 4 and 2. Nothing is checked.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_NUMBER, _PLACE = ir.FloatType(), ir.IntType(64)
_NUMBER_BYTES = 4


def _start(context: Any, builder: Any, kind: Any, array: Any, place: Any) -> Any:
    return builder.gep(context.make_array(kind)(context, builder, array).data, [place])


@intrinsic
def add_numbers(typing_context: Any, target: Any, at: Any, source: Any, begin: Any, scale: Any, count: Any) -> Any:
    """target[at : at + count] += scale * source[begin : begin + count], both [n] float32 and contiguous."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to = _start(context, builder, signature.args[0], *arguments[0:2])
        addends = _start(context, builder, signature.args[2], *arguments[2:4])
        scale, count = arguments[4:6]

        def add(place: Any, width: int) -> None:
            kind = ir.VectorType(_NUMBER, width)
            scales = ir.Constant(kind, ir.Undefined)
            for lane in range(width):
                scales = builder.insert_element(scales, scale, ir.IntType(32)(lane))
            sums, added = (
                builder.bitcast(builder.gep(pointer, [place]), kind.as_pointer()) for pointer in (to, addends)
            )
            product = builder.fmul(scales, builder.load(added, align=_NUMBER_BYTES))
            builder.store(builder.fadd(builder.load(sums, align=_NUMBER_BYTES), product), sums, align=_NUMBER_BYTES)

        whole = builder.and_(count, _PLACE(-8))
        with cgutils.for_range_slice(builder, _PLACE(0), whole, _PLACE(8), _PLACE) as (place, _):
            add(place, 8)
        place = whole
        for width in (4, 2, 1):
            # The bits of what is left say which of the widths it is made of.
            part = builder.and_(count, _PLACE(width))
            with builder.if_then(builder.icmp_signed("!=", part, _PLACE(0))):
                add(place, width)
            place = builder.add(place, part)
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64, types.float32, types.int64), generate
