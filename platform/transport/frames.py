"""How a message with arrays becomes bytes on a connection, without copying the arrays.

A frame is a header, metadata (the message, and the arrays' dtypes and shapes), and a body: the arrays' own bytes, each
beginning at a multiple of 64. Nothing here touches a socket.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from elastrec.platform.specs.errors import TransportError

MAXIMUM_ARRAYS = 12
MAXIMUM_FRAME_BYTES = 2**29
"""Of all arrays of one frame together; larger ones are refused by both sides."""
ALIGNMENT_BYTES = 64
_ALLOWED_DTYPES = frozenset({"i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "b1"})
_PADDING = bytes(ALIGNMENT_BYTES)

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Joined:
    """A vector whose parts lie apart in memory; it arrives as one array.

    Args:
        parts: at least one, of one dimension and one dtype.
    """

    parts: Sequence[Array]

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)


class _Layout(msgspec.Struct, array_like=True):
    message: msgspec.Raw
    arrays: list[tuple[str, list[int]]]


_encoder = msgspec.msgpack.Encoder()
_layout_decoder = msgspec.msgpack.Decoder(_Layout)


def encode_frame(message: msgspec.Struct, arrays: Sequence[Array | Joined]) -> tuple[bytes, list[Any]]:
    """Metadata and the buffers that make up the body, views of the arrays among them.

    Arrays must be C-contiguous numeric numpy arrays, at most 12.

    Raises:
        TransportError: too many arrays, or an array that is not contiguous or not numeric, or parts that do not fit.
    """
    if len(arrays) > MAXIMUM_ARRAYS:
        raise TransportError(f"a frame carries at most {MAXIMUM_ARRAYS} arrays, not {len(arrays)}")
    buffers: list[Any] = []
    layout = []
    for array in arrays:
        parts = array.parts if isinstance(array, Joined) else (array,)
        first = parts[0]
        dtype = first.dtype.str.lstrip("<|=")
        for part in parts:
            if dtype not in _ALLOWED_DTYPES or not part.flags.c_contiguous:
                raise TransportError(f"a frame carries contiguous numeric arrays, not {part.dtype} {part.strides}")
            if part is not first and (part.dtype != first.dtype or part.ndim != 1 or first.ndim != 1):
                raise TransportError(f"parts {first.dtype} {first.shape} and {part.dtype} {part.shape} make no vector")
            if part.nbytes:
                buffers.append(part.reshape(-1).view(np.uint8).data)
        size_bytes = array.nbytes
        if size_bytes % ALIGNMENT_BYTES:
            buffers.append(_PADDING[size_bytes % ALIGNMENT_BYTES :])
        layout.append((dtype, list(first.shape) if len(parts) == 1 else [size_bytes // first.itemsize]))
    size_bytes = sum(len(buffer) for buffer in buffers)
    if size_bytes > MAXIMUM_FRAME_BYTES:
        raise TransportError(
            f"a frame of {size_bytes} bytes is not allowed; allowed: at most {MAXIMUM_FRAME_BYTES}; make the batch "
            "smaller or use more parameter servers"
        )
    return _encoder.encode(_Layout(msgspec.Raw(_encoder.encode(message)), layout)), buffers


def empty_body(size_bytes: int) -> Array:
    """Room for a body, uint8, so aligned that all its arrays are."""
    room = np.empty(size_bytes + ALIGNMENT_BYTES, np.uint8)
    start = -room.ctypes.data % ALIGNMENT_BYTES
    return room[start : start + size_bytes]


def decode_frame(metadata: bytes, body: Array, decoder: msgspec.msgpack.Decoder[Any]) -> tuple[Any, list[Array]]:
    """The message and read-only views of the arrays, which live as long as the body (see `empty_body`).

    Raises:
        TransportError: the metadata does not describe the body, or a dtype is not numeric.
    """
    try:
        layout = _layout_decoder.decode(metadata)
        message = decoder.decode(layout.message)
    except (msgspec.MsgspecError, ValueError) as error:
        raise TransportError(f"a frame could not be decoded: {error}") from error
    if len(layout.arrays) > MAXIMUM_ARRAYS:
        raise TransportError(f"a frame carries at most {MAXIMUM_ARRAYS} arrays, not {len(layout.arrays)}")
    body.flags.writeable = False
    arrays, at = [], 0
    for dtype, shape in layout.arrays:
        if dtype not in _ALLOWED_DTYPES:
            raise TransportError(f"a frame names the dtype {dtype!r}; allowed: {sorted(_ALLOWED_DTYPES)}")
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if any(extent < 0 for extent in shape) or at + size > body.nbytes:
            raise TransportError(f"a frame's body of {body.nbytes} bytes cannot have the shape {shape} of {dtype}")
        try:
            arrays.append(np.ndarray(shape, dtype, body, at))
        except (TypeError, ValueError, OverflowError) as error:
            raise TransportError(f"a frame names the shape {shape}, which no array has: {error}") from error
        at += size + -size % ALIGNMENT_BYTES
    if at != body.nbytes:
        raise TransportError(f"a frame's arrays take {at} bytes of its body of {body.nbytes}")
    return message, arrays
