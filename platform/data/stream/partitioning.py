"""The partition of a topic for each session, by Kafka's rule for keys, vectorised.

As in Kafka's Java client, it is murmur2 of the key's bytes without its sign, modulo the number of partitions. Other
producers that use the session as key (with librdkafka: `partitioner=murmur2`) choose the same partitions.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_SEED, _MIX = np.uint32(0x9747B28C), np.uint32(0x5BD1E995)


def session_keys(sessions: pa.Array) -> tuple[list[bytes], NDArray[np.int32]]:
    """The distinct keys of a column [B] of integers or texts without nulls, and the number of each row's, int32 [B]."""
    encoded = sessions.dictionary_encode()
    keys: list[bytes] = encoded.dictionary.cast(pa.string()).cast(pa.binary()).to_pylist()
    return keys, np.asarray(encoded.indices)


def partitions_of(keys: list[bytes], partitions: int) -> NDArray[np.int32]:
    """The partition of each key, int32 [U], from 0 to `partitions` - 1."""
    hash_U = np.empty(len(keys), np.uint32)
    length_U = np.fromiter((len(key) for key in keys), np.int64, len(keys))
    for length in np.unique(length_U).tolist():
        chosen = np.flatnonzero(length_U == length)
        text = b"".join(keys[index] for index in chosen.tolist())
        hash_U[chosen] = murmur2(np.frombuffer(text, np.uint8).reshape(len(chosen), length))
    return ((hash_U & np.uint32(0x7FFFFFFF)) % np.uint32(partitions)).astype(np.int32)


def murmur2(byte_UK: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Kafka's 32-bit murmur2 of U keys of K bytes each, uint32 [U]."""
    count, length = byte_UK.shape
    hash_U = np.full(count, _SEED ^ np.uint32(length), np.uint32)
    whole = length // 4 * 4
    word_UW = np.ascontiguousarray(byte_UK[:, :whole]).view("<u4")
    for index in range(whole // 4):
        word_U = word_UW[:, index] * _MIX
        word_U ^= word_U >> np.uint32(24)
        hash_U = hash_U * _MIX ^ word_U * _MIX
    if whole < length:
        for index in range(whole, length):
            hash_U ^= byte_UK[:, index].astype(np.uint32) << np.uint32(8 * (index - whole))
        hash_U *= _MIX
    hash_U ^= hash_U >> np.uint32(13)
    hash_U *= _MIX
    hash_U ^= hash_U >> np.uint32(15)
    return hash_U
