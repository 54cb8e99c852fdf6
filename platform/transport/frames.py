"""How a message with arrays becomes bytes on a connection, without copying the arrays.

A frame is a header, metadata (the message, and the arrays' dtypes and shapes), and a body: the arrays' own bytes, each
beginning at a multiple of 64. Nothing here touches a socket.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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


class _Layout(msgspec.Struct, array_like=True):
    message: msgspec.Raw
    arrays: list[tuple[str, list[int]]]


_encoder = msgspec.msgpack.Encoder()
_layout_decoder = msgspec.msgpack.Decoder(_Layout)


def encode_frame(message: msgspec.Struct, arrays: Sequence[Array]) -> tuple[bytes, list[Any]]:
    """Metadata and the buffers that make up the body, views of the arrays among them.

    Arrays must be C-contiguous numeric numpy arrays, at most 12.

    Raises:
        TransportError: too many arrays, or an array that is not contiguous or not numeric.
    """
    if len(arrays) > MAXIMUM_ARRAYS:
        raise TransportError(f"a frame carries at most {MAXIMUM_ARRAYS} arrays, not {len(arrays)}")
    buffers: list[Any] = []
    layout = []
    for array in arrays:
        dtype = array.dtype.str.lstrip("<|=")
        if dtype not in _ALLOWED_DTYPES or not array.flags.c_contiguous:
            raise TransportError(f"a frame carries contiguous numeric arrays, not {array.dtype} {array.strides}")
        if array.nbytes:
            buffers.append(array.reshape(-1).view(np.uint8).data)
            if array.nbytes % ALIGNMENT_BYTES:
                buffers.append(_PADDING[array.nbytes % ALIGNMENT_BYTES :])
        layout.append((dtype, list(array.shape)))
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
