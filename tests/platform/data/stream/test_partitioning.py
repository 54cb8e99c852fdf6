"""Sessions go to the same partitions as with Kafka's own clients."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrec.platform.data.stream.partitioning import murmur2, partitions_of, session_keys


def by_definition(key: bytes) -> int:
    """Kafka's Utils.murmur2, byte by byte."""
    mask, mix = 0xFFFFFFFF, 0x5BD1E995
    found = 0x9747B28C ^ len(key)
    for begin in range(0, len(key) // 4 * 4, 4):
        word = int.from_bytes(key[begin : begin + 4], "little") * mix & mask
        word = (word ^ word >> 24) * mix & mask
        found = (found * mix & mask) ^ word
    rest = key[len(key) // 4 * 4 :]
    if rest:
        found = (found ^ int.from_bytes(rest, "little")) * mix & mask
    found = (found ^ found >> 13) * mix & mask
    return found ^ found >> 15


# What Kafka's own test of its clients expects.
@pytest.mark.parametrize(
    ("key", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_is_kafkas(key: bytes, signed: int) -> None:
    found = murmur2(np.frombuffer(key, np.uint8).reshape(1, -1))
    assert int(found.view(np.int32)[0]) == signed == int(np.uint32(by_definition(key)).view(np.int32))


@given(st.lists(st.binary(max_size=20), min_size=1, unique=True), st.integers(1, 64))
def test_keys_of_any_length_are_hashed_together_as_one_by_one(keys: list[bytes], partitions: int) -> None:
    expected = [(by_definition(key) & 0x7FFFFFFF) % partitions for key in keys]
    assert partitions_of(keys, partitions).tolist() == expected


def test_a_sessions_key_is_its_text() -> None:
    assert session_keys(pa.array([7, -12, 7]))[0] == [b"7", b"-12"]
    keys, code_B = session_keys(pa.array(["ä", "b", "ä"]))
    assert keys == ["ä".encode(), b"b"] and code_B.tolist() == [0, 1, 0]


def test_sessions_are_spread_evenly() -> None:
    rows_P = np.bincount(partitions_of([str(n).encode() for n in range(16_000)], 16))
    assert rows_P.min() > 850 and rows_P.max() < 1_150
