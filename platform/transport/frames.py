"""How a message with arrays becomes one Flight record batch, without copying the arrays.

A frame is a record batch of one row whose binary columns are the arrays' own buffers; the message and the
arrays' dtypes and shapes ride in the batch's metadata. All frames share one schema, so one long-lived
DoExchange stream carries every kind of request.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from elastrec.platform.specs.errors import TransportError

MAXIMUM_ARRAYS = 12
FRAME_SCHEMA = pa.schema([pa.field(f"a{index}", pa.large_binary()) for index in range(MAXIMUM_ARRAYS)])
# Not pa.array: it imports pandas, 0.3 s and 40 MB in every process that speaks.
_NULL = pa.nulls(1, pa.large_binary())
_ALLOWED_DTYPES = frozenset({"i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "b1"})

Array = np.ndarray[Any, Any]


class _Layout(msgspec.Struct, array_like=True):
    message: msgspec.Raw
    arrays: list[tuple[str, list[int]]]


_encoder = msgspec.msgpack.Encoder()
_layout_decoder = msgspec.msgpack.Decoder(_Layout)


def encode_frame(message: msgspec.Struct, arrays: Sequence[Array]) -> tuple[pa.RecordBatch, bytes]:
    """One record batch and its metadata. Arrays must be C-contiguous numeric numpy arrays, at most 12.

    Raises:
        TransportError: too many arrays, or an array that is not contiguous or not numeric.
    """
    if len(arrays) > MAXIMUM_ARRAYS:
        raise TransportError(f"a frame carries at most {MAXIMUM_ARRAYS} arrays, not {len(arrays)}")
    columns, layout = [], []
    for array in arrays:
        dtype = array.dtype.str.lstrip("<|=")
        if dtype not in _ALLOWED_DTYPES or not array.flags.c_contiguous:
            raise TransportError(f"a frame carries contiguous numeric arrays, not {array.dtype} {array.strides}")
        offsets = np.array([0, array.nbytes], np.int64)
        body = pa.py_buffer(array.reshape(-1).view(np.uint8)) if array.nbytes else pa.py_buffer(b"")
        columns.append(pa.LargeBinaryArray.from_buffers(pa.large_binary(), 1, [None, pa.py_buffer(offsets), body]))
        layout.append((dtype, list(array.shape)))
    columns.extend([_NULL] * (MAXIMUM_ARRAYS - len(columns)))
    metadata = _encoder.encode(_Layout(msgspec.Raw(_encoder.encode(message)), layout))
    return pa.RecordBatch.from_arrays(columns, schema=FRAME_SCHEMA), metadata


def decode_frame(
    batch: pa.RecordBatch, metadata: pa.Buffer, decoder: msgspec.msgpack.Decoder[Any]
) -> tuple[Any, list[Array]]:
    """The message and read-only views of the arrays, which live as long as the batch.

    Raises:
        TransportError: the metadata does not describe the batch, or a dtype is not numeric.
    """
    try:
        layout = _layout_decoder.decode(memoryview(metadata))
        message = decoder.decode(layout.message)
    except (msgspec.MsgspecError, ValueError) as error:
        raise TransportError(f"a frame could not be decoded: {error}") from error
    arrays = []
    for index, (dtype, shape) in enumerate(layout.arrays):
        if dtype not in _ALLOWED_DTYPES or index >= MAXIMUM_ARRAYS:
            raise TransportError(f"a frame names the dtype {dtype!r}; allowed: {sorted(_ALLOWED_DTYPES)}")
        column = batch.column(index)
        if len(column) != 1 or column.null_count:
            raise TransportError("a frame names an array that its batch does not hold")
        start, end = np.frombuffer(column.buffers()[1], np.int64, 2, column.offset * 8)
        values = column.buffers()[2]
        raw = np.frombuffer(values, np.uint8)[start:end] if values is not None else np.empty(0, np.uint8)
        expected = math.prod(shape) * np.dtype(dtype).itemsize
        if any(extent < 0 for extent in shape) or raw.nbytes != expected:
            raise TransportError(f"a frame's array of {raw.nbytes} bytes cannot have the shape {shape} of {dtype}")
        arrays.append(_aligned(raw, np.dtype(dtype)).reshape(shape))
    return message, arrays


def _aligned(raw: Array, dtype: np.dtype[Any]) -> Array:
    # Views must be aligned for numba and for vector instructions.
    if raw.ctypes.data % dtype.alignment:
        raw = raw.copy()
    return raw.view(dtype)
