"""Frames: encoding and decoding of a message with its arrays."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from elastrec.platform.specs.errors import TransportError
from elastrec.platform.transport.wire.frames import Packed, bytes_of, empty_body, encode_frame, read_layout
from tests.platform.transport.messages import Ask


def decode_frame(metadata: bytes, body: np.ndarray) -> tuple[Ask, list[np.ndarray]]:
    layout = read_layout(metadata)
    return layout.decode(msgspec.msgpack.Decoder(Ask)), layout.views(body)


def framed(message: msgspec.Struct, arrays: list[np.ndarray]) -> tuple[bytes, np.ndarray]:
    """Metadata and body as they arrive."""
    metadata, buffers = encode_frame(message, arrays)
    joined = b"".join(buffers)
    body = empty_body(len(joined))
    body[:] = np.frombuffer(joined, np.uint8)
    return metadata, body


_arrays = st.lists(
    hnp.arrays(
        dtype=st.sampled_from([np.int64, np.float32, np.int32, np.uint8, np.float64, np.bool_]),
        shape=hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5),
    ),
    max_size=12,
)


@settings(deadline=None, max_examples=100)
@given(arrays=_arrays, number=st.integers(-(2**63), 2**63 - 1))
def test_frames_keep_message_and_arrays(arrays: list[np.ndarray], number: int) -> None:
    metadata, body = framed(Ask(number), arrays)
    message, back = decode_frame(metadata, body)
    assert message == Ask(number)
    assert len(back) == len(arrays)
    for array, copy in zip(arrays, back, strict=True):
        assert copy.dtype == array.dtype and copy.shape == array.shape
        np.testing.assert_array_equal(copy, array)
        assert not copy.flags.writeable and copy.flags.aligned


@settings(deadline=None, max_examples=200)
@given(garbage=st.binary(max_size=200))
def test_garbage_metadata_is_refused_and_never_crashes(garbage: bytes) -> None:
    _, body = framed(Ask(1), [np.arange(3)])
    with pytest.raises(TransportError):
        decode_frame(garbage, body)


@pytest.mark.parametrize(
    "array", [np.array(["a"], object), np.arange(10)[::2], np.array(["x"]), np.zeros(1, np.complex64)]
)
def test_arrays_that_are_not_plain_numbers_are_refused(array: np.ndarray) -> None:
    with pytest.raises(TransportError, match="contiguous numeric"):
        encode_frame(Ask(1), [array])


@given(st.lists(hnp.arrays(np.float32, st.integers(0, 40)), min_size=1, max_size=6), st.integers(1, 5))
def test_vectors_in_parts_arrive_as_whole_ones(parts: list[np.ndarray], columns: int) -> None:
    packed = Packed.vectors(("f4", [bytes_of(part) for part in parts]), ("i4", []), ("f4", [bytes_of(parts[0])]))
    metadata, buffers = encode_frame(Ask(1), [np.ones((2, columns)), packed, np.arange(3), packed])
    joined = b"".join(bytes(buffer) for buffer in buffers)
    body = empty_body(len(joined))
    body[:] = np.frombuffer(joined, np.uint8)
    _, (before, *first, between, vector, nothing, part) = decode_frame(metadata, body)
    assert vector.dtype == part.dtype == np.float32 and nothing.dtype == np.int32
    np.testing.assert_array_equal(vector, np.concatenate(parts))
    np.testing.assert_array_equal(part, parts[0])
    assert len(nothing) == 0
    assert before.tolist() == np.ones((2, columns)).tolist() and between.tolist() == [0, 1, 2]
    for array, again in zip(first, (vector, nothing, part), strict=True):
        np.testing.assert_array_equal(array, again)


def test_packed_arrays_count_among_the_arrays_of_a_frame() -> None:
    packed = Packed.vectors(*[("f4", [])] * 7)
    encode_frame(Ask(1), [packed, *[np.zeros(1)] * 5])
    with pytest.raises(TransportError, match="at most 12 arrays, not 14"):
        encode_frame(Ask(1), [packed, packed])


def test_a_shape_that_does_not_match_its_bytes_is_refused() -> None:
    metadata, body = framed(Ask(1), [np.arange(4, dtype=np.int64)])
    for shape, refusal in (([2**40], "cannot have the shape"), ([-1], "cannot have the shape"), ([0], "take 0 bytes")):
        layout = msgspec.msgpack.decode(metadata)
        layout[3][0][1] = shape
        with pytest.raises(TransportError, match=refusal):
            decode_frame(msgspec.msgpack.encode(layout), body)
