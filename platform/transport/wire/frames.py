"""The encoding of messages on a connection, without copying their arrays.

A frame is a header, metadata (the message, its kind and key, the arrays' dtypes and shapes), and a body: the arrays'
own bytes, each beginning at a multiple of 64. A call is a frame without arrays. Nothing here touches a socket.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import msgspec
import numpy as np

from elastrec.platform.specs.errors import TransportError

MAXIMUM_ARRAYS = 12
MAXIMUM_CALL_BYTES = 2**26
"""Limit of a frame's metadata, and so of a call; both sides refuse larger ones."""
MAXIMUM_FRAME_BYTES = 2**29
"""Limit of all arrays of one frame together; both sides refuse larger ones."""
ALIGNMENT_BYTES = 64
_ALLOWED_DTYPES = {
    name: np.dtype(name) for name in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "b1")
}
_ITEM_BYTES = {name: dtype.itemsize for name, dtype in _ALLOWED_DTYPES.items()}
_PADDINGS = [bytes(-over % ALIGNMENT_BYTES) for over in range(ALIGNMENT_BYTES)]  # by bytes behind the last multiple

Array = np.ndarray[Any, Any]


class Packed(NamedTuple):
    """Arrays as the bytes of a frame; packed once, they may be sent in several frames.

    Attributes:
        arrays: dtype and shape of each.
        buffers: their bytes, each array's followed by its padding; the arrays must not change until they are sent.
        size_bytes: of all buffers together.
    """

    arrays: list[tuple[str, list[int]]]
    buffers: list[Any]
    size_bytes: int

    @classmethod
    def of(cls, array: Array) -> Packed:
        """A C-contiguous numeric array, which is not copied. Raises TransportError if it is not one."""
        dtype = _name_of(array.dtype)
        if dtype not in _ALLOWED_DTYPES or not array.flags.c_contiguous:
            raise TransportError(f"a frame carries contiguous numeric arrays, not {array.dtype} {array.strides}")
        size_bytes = array.nbytes
        buffers: list[Any] = [array.data.cast("B")] if size_bytes else []
        if over := size_bytes % ALIGNMENT_BYTES:
            buffers.append(_PADDINGS[over])
            size_bytes += ALIGNMENT_BYTES - over
        return cls([(dtype, list(array.shape))], buffers, size_bytes)

    @classmethod
    def vectors(cls, *vectors: tuple[str, Sequence[memoryview]]) -> Packed:
        """Vectors, each in parts that need not be adjacent in memory, which are not copied.

        Args:
            vectors: the dtype of each, as frames name it, and its bytes, in parts that begin and end with an element.
        """
        layout: list[tuple[str, list[int]]] = []
        buffers: list[Any] = []
        total_bytes = 0
        for dtype, parts in vectors:
            size_bytes = 0
            for part in parts:
                if part:
                    buffers.append(part)
                    size_bytes += len(part)
            layout.append((dtype, [size_bytes // _ITEM_BYTES[dtype]]))
            if over := size_bytes % ALIGNMENT_BYTES:
                buffers.append(_PADDINGS[over])
                size_bytes += ALIGNMENT_BYTES - over
            total_bytes += size_bytes
        return cls(layout, buffers, total_bytes)


class Layout(msgspec.Struct, array_like=True):
    """A frame's metadata.

    Attributes:
        kind: of the message (see `kind_of`).
        key: of a call that must not be executed twice; empty: repetition is allowed.
        arrays: dtype and shape of each.
    """

    kind: str
    key: str
    message: msgspec.Raw
    arrays: list[tuple[str, list[int]]]

    def decode(self, decoder: msgspec.msgpack.Decoder[Any]) -> Any:
        """The message. Raises TransportError if it does not have the decoder's type."""
        try:
            return decoder.decode(self.message)
        except (msgspec.MsgspecError, ValueError) as error:
            raise TransportError(f"message {self.kind!r} could not be decoded: {error}") from error

    def views(self, body: Array) -> list[Array]:
        """Read-only views of the arrays, which live as long as the body (see `empty_body`).

        Raises:
            TransportError: the layout does not describe the body, or a dtype is not numeric.
        """
        if len(self.arrays) > MAXIMUM_ARRAYS:
            raise TransportError(f"a frame carries at most {MAXIMUM_ARRAYS} arrays, not {len(self.arrays)}")
        body.setflags(write=False)
        arrays, at = [], 0
        for dtype, shape in self.arrays:
            kind = _ALLOWED_DTYPES.get(dtype)
            if kind is None:
                raise TransportError(f"a frame names the dtype {dtype!r}; allowed: {sorted(_ALLOWED_DTYPES)}")
            size, is_negative = kind.itemsize, False
            for extent in shape:
                size *= extent
                is_negative |= extent < 0
            if is_negative or at + size > body.nbytes:
                raise TransportError(f"a frame's body of {body.nbytes} bytes cannot have the shape {shape} of {dtype}")
            try:
                arrays.append(np.ndarray(shape, kind, body, at))
            except (TypeError, ValueError, OverflowError) as error:
                raise TransportError(f"a frame names the shape {shape}, which no array has: {error}") from error
            at += size + -size % ALIGNMENT_BYTES
        if at != body.nbytes:
            raise TransportError(f"a frame's arrays take {at} bytes of its body of {body.nbytes}")
        return arrays


class Encoded(msgspec.Struct, frozen=True):
    """An encoded message, for a handler that gives many calls the same answer."""

    kind: str
    message: msgspec.Raw

    @classmethod
    def of(cls, message: msgspec.Struct) -> Encoded:
        return cls(kind_of(type(message)), msgspec.Raw(_encoder.encode(message)))


_encoder = msgspec.msgpack.Encoder()
_layout_decoder = msgspec.msgpack.Decoder(Layout)


@cache
def kind_of(message: type[msgspec.Struct]) -> str:
    """The name of a message type in frames: its tag, or the name of the class."""
    return str(message.__struct_config__.tag or message.__name__)


def read_layout(metadata: bytes | bytearray) -> Layout:
    """Decodes a layout. Raises TransportError if it is not one."""
    try:
        return _layout_decoder.decode(metadata)
    except (msgspec.MsgspecError, ValueError) as error:
        raise TransportError(f"a frame could not be decoded: {error}") from error


def encode_frame(
    message: msgspec.Struct, arrays: Sequence[Array | Packed] = (), *, key: str = ""
) -> tuple[bytes, list[Any]]:
    """Metadata and the buffers of the body, including views of the arrays.

    Raises:
        TransportError: the message or the arrays are too large, there are more than 12 arrays, or one is not contiguous
            or not numeric.
    """
    layout: list[tuple[str, list[int]]] = []
    buffers: list[Any] = []
    total_bytes = 0
    for array in arrays:
        packed = array if isinstance(array, Packed) else Packed.of(array)
        layout += packed.arrays
        buffers += packed.buffers
        total_bytes += packed.size_bytes
    if len(layout) > MAXIMUM_ARRAYS:
        raise TransportError(f"a frame carries at most {MAXIMUM_ARRAYS} arrays, not {len(layout)}")
    if total_bytes > MAXIMUM_FRAME_BYTES:
        raise TransportError(
            f"a frame of {total_bytes} bytes is not allowed; allowed: at most {MAXIMUM_FRAME_BYTES}; make the batch "
            "smaller or use more parameter servers"
        )
    encoded = message if isinstance(message, Encoded) else Encoded.of(message)
    metadata = _encoder.encode(Layout(encoded.kind, key, encoded.message, layout))
    if len(metadata) > MAXIMUM_CALL_BYTES:
        raise TransportError(
            f"message {encoded.kind!r} of {len(metadata)} bytes is not allowed; allowed: at most "
            f"{MAXIMUM_CALL_BYTES} bytes"
        )
    return metadata, buffers


@cache
def _name_of(dtype: np.dtype[Any]) -> str:
    return dtype.str.lstrip("<|=")


def padding_of(size_bytes: int) -> bytes:
    """What follows an array of this size in a body."""
    return _PADDINGS[size_bytes % ALIGNMENT_BYTES]


def bytes_of(array: Array) -> memoryview:
    """The bytes of a contiguous array, which is not copied."""
    return array.data.cast("B") if array.size else memoryview(b"")


def empty_body(size_bytes: int) -> Array:
    """Memory for a body, uint8, aligned so that all of its arrays are aligned."""
    if not size_bytes:
        return np.empty(0, np.uint8)
    room = np.empty(size_bytes + ALIGNMENT_BYTES, np.uint8)
    # Unlike `room.ctypes.data`, this makes no object of several classes.
    start = -ctypes.addressof(ctypes.c_char.from_buffer(room.data)) % ALIGNMENT_BYTES
    return room[start : start + size_bytes]
