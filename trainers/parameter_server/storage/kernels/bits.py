"""Search of bytes in 64-bit words, for kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from elastrec.trainers.parameter_server.storage.kernels.compiling import inlined

_ONES = np.uint64(0x0101010101010101)
_LOWS = np.uint64(0x7F7F7F7F7F7F7F7F)
_GATHER = np.uint64(0x0102040810204080)
_S7, _S56 = np.uint64(7), np.uint64(56)


@intrinsic
def trailing_zeros(typing_context: Any, value: Any) -> Any:
    """Number of zero bits below the lowest set bit of a uint64; 64 for zero."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), generate


@inlined
def zero_bytes(word):  # type: ignore[no-untyped-def]
    """A uint64 with byte 1 for each byte 0 of `word`, and byte 0 for all others."""
    # Bit 7 of exactly the bytes that are 0.
    return ~(((word & _LOWS) + _LOWS) | word | _LOWS) >> _S7


@inlined
def matches(word, byte):  # type: ignore[no-untyped-def]
    """8 bits, one for each byte of `word` that equals `byte`. All are uint64."""
    return (zero_bytes(word ^ (byte * _ONES)) * _GATHER) >> _S56
