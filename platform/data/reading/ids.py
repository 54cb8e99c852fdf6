"""64-bit ids out of integer, hexadecimal and text columns, without a loop over rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from elastrec.platform.data.reading.numbers import as_float64, is_text, missing_of, plain_numbers, trimmed
from elastrec.platform.specs.errors import DataError

Ids = tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]]

_INTEGER = r"^[+-]?\d+(\.0*)?$"


def encode_ids(values: pa.Array, encoding: str, column: str) -> Ids:
    """Ids int64 [B] (0 where missing or wrong), missing bool [B], wrong bool [B].

    Unsigned values and hashes above 2**63 wrap to negative ids: all 64 bits count.

    Args:
        encoding: `integer` (also written `5.0` or as text), `hexadecimal` (text of 1 to 16 digits) or `string`
            (xxh3-64 of the UTF-8 bytes; empty text is missing).

    Raises:
        DataError: the column's type cannot hold such ids.
    """
    if pa.types.is_dictionary(values.type):
        return _through_dictionary(values, encoding, column)
    if pa.types.is_null(values.type):
        return np.zeros(len(values), np.int64), np.ones(len(values), np.bool_), np.zeros(len(values), np.bool_)
    if encoding == "integer":
        return _integers(values, column)
    if not is_text(values.type):
        raise DataError(
            f"column {column!r}: found {values.type}, expected text for the encoding {encoding}; "
            "use encoding: integer for numbers"
        )
    if encoding == "string":
        return _through_dictionary(values.dictionary_encode(), encoding, column)
    return _hexadecimal(values)


def _through_dictionary(values: pa.DictionaryArray, encoding: str, column: str) -> Ids:
    if encoding == "string":
        distinct = values.dictionary
        if not is_text(distinct.type):
            raise DataError(f"column {column!r}: found {distinct.type}, expected text for the encoding string")
        texts = distinct.cast(pa.large_binary()).to_pylist()
        # Empty text is an empty field, as in text files and in the other encodings.
        hashes = np.fromiter((xxhash.xxh3_64_intdigest(v) if v else 0 for v in texts), np.uint64, len(texts))
        id_U = hashes.view(np.int64)
        missing_U, wrong_U = np.array([not v for v in texts], np.bool_), np.zeros(len(texts), np.bool_)
    else:
        id_U, missing_U, wrong_U = encode_ids(values.dictionary, encoding, column)
    missing_B = missing_of(values)
    index_B = np.asarray(pc.fill_null(values.indices, 0)).astype(np.int64)
    if not len(id_U):
        return np.zeros(len(values), np.int64), missing_B, np.zeros(len(values), np.bool_)
    return (
        np.where(missing_B, 0, id_U[index_B]) if missing_B.any() else id_U[index_B],
        missing_B | missing_U[index_B],
        wrong_U[index_B] & ~missing_B,
    )


def _integers(values: pa.Array, column: str) -> Ids:
    if is_text(values.type):
        return _integers_of_text(values, column)
    missing_B = missing_of(values)
    plain_B = integer_ids(values)
    if plain_B is not None:
        return plain_B, missing_B, np.zeros(len(values), np.bool_)
    if pa.types.is_boolean(values.type):
        filled = pc.fill_null(values, False)
        return np.asarray(filled.cast(pa.int64())), missing_B, np.zeros(len(values), np.bool_)
    if not pa.types.is_floating(values.type):
        raise DataError(f"column {column!r}: found {values.type}, expected integers")
    value_B, missing_B, wrong_B = as_float64(values, column)
    # A float64 is exact up to 2**53; beyond it two ids could have become one.
    wrong_B = wrong_B | ~(np.abs(value_B) <= 2.0**53) | (np.floor(value_B) != value_B)
    return np.where(wrong_B, 0.0, value_B).astype(np.int64), missing_B, wrong_B


def integer_ids(values: pa.Array) -> NDArray[np.int64] | None:
    """Ids int64 [B] of a column of integers, 0 where the field is empty, perhaps its memory; None for other types."""
    plain_B = plain_numbers(values)
    return None if plain_B is None or plain_B.dtype.kind == "f" else plain_B.astype(np.int64, copy=False)


def _integers_of_text(values: pa.Array, column: str) -> Ids:
    try:
        text = values.cast(pa.string())
        # Arrow would read hexadecimal digits after `0x`, which are no integers, whatever the other rows hold.
        if not _may_have_x(text):
            return _integers(text.cast(pa.int64()), column)
    except pa.ArrowInvalid:
        pass
    text = trimmed(values)
    missing_B = missing_of(text)
    integral = pc.fill_null(pc.match_substring_regex(text, _INTEGER), True)
    wrong_B = ~np.asarray(integral)
    text = pc.if_else(integral, text, None)
    text = pc.replace_substring_regex(pc.utf8_ltrim(text, "+"), r"\.0*$", "")
    try:
        return np.asarray(pc.fill_null(text.cast(pa.int64()), 0)), missing_B, wrong_B
    except pa.ArrowInvalid:
        # Some value needs all 64 bits or more: rare enough to look at each distinct one.
        coded = text.dictionary_encode()
        exact = [int(v) if v is not None else 0 for v in coded.dictionary.to_pylist()]
        fits_U = np.array([-(2**63) <= v < 2**64 for v in exact], np.bool_)
        id_U = np.array([v % 2**64 if ok else 0 for v, ok in zip(exact, fits_U, strict=True)], np.uint64)
        index_B = np.asarray(pc.fill_null(coded.indices, 0))
        empty_B = missing_of(coded)
        id_B = np.where(empty_B, 0, id_U.view(np.int64)[index_B])
        return id_B, missing_B, wrong_B | (~fits_U[index_B] & ~empty_B)


def _may_have_x(text: pa.StringArray) -> bool:
    """Whether an x or X is among the texts, or in the place of an empty one."""
    _, offset_buffer, data_buffer = text.buffers()
    if data_buffer is None or not len(text):
        return False
    offsets = np.frombuffer(offset_buffer, np.int32)
    begin, end = offsets[text.offset], offsets[text.offset + len(text)]
    return bool((np.frombuffer(data_buffer, np.uint8)[begin:end] | 0x20 == ord("x")).any())


_IS_DIGIT = np.zeros(256, np.bool_)
_IS_DIGIT[np.frombuffer(b"0123456789abcdefABCDEF", np.uint8)] = True


def _hexadecimal(values: pa.Array) -> Ids:
    if pa.types.is_string_view(values.type):
        values = values.cast(pa.string())
    numbers = _of_one_length(values)
    if numbers is not None:
        return numbers
    text = pc.if_else(pc.equal(pc.binary_length(values), 0), None, values)
    missing_B = missing_of(text)
    try:
        return _of_digits(text), missing_B, np.zeros(len(values), np.bool_)
    except pa.ArrowInvalid:
        fits = pc.fill_null(pc.match_substring_regex(text, "^[0-9a-fA-F]{1,16}$"), True)
        return _of_digits(pc.if_else(fits, text, None)), missing_B, ~np.asarray(fits)


def _of_digits(text: pa.Array) -> NDArray[np.int64]:
    """Numbers int64 [B], 0 where the field is empty.

    Raises:
        pyarrow.ArrowInvalid: some text is not 1 to 16 digits.
    """
    prefixed = pc.binary_join_element_wise("0x", text.cast(pa.string()), "")
    return np.asarray(pc.fill_null(prefixed.cast(pa.uint64()), 0)).view(np.int64)


def _of_one_length(values: pa.Array) -> Ids | None:
    """Numbers of adjacent texts of one length or nothing, as in a Criteo log; None for other columns."""
    wide = pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type)
    _, offset_buffer, data_buffer = values.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64 if wide else np.int32)
    offsets = offsets[values.offset : values.offset + len(values) + 1]
    length_B = np.diff(offsets)
    missing_B = missing_of(values) | (length_B == 0)
    begin, end, filled = int(offsets[0]), int(offsets[-1]), len(values) - int(np.count_nonzero(missing_B))
    length = (end - begin) // max(filled, 1)
    # Empty fields may still cover bytes; then the numbers are not adjacent.
    if not 0 < length <= 16 or end - begin != length * filled or not ((length_B == length) | missing_B).all():
        return None
    raw = np.frombuffer(data_buffer, np.uint8)[begin:end]
    if not _IS_DIGIT[raw].all():
        return None
    words = 1 if length <= 8 else 2
    if length != 8 * words:
        padded = np.full((filled, 8 * words), ord("0"), np.uint8)
        padded[:, 8 * words - length :] = raw.reshape(filled, length)
        raw = padded.reshape(-1)
    word = raw.view("<u8").byteswap()
    # All digits of a word at once: '0'-'9' are 0x30-0x39; 'a'-'f' and 'A'-'F' have bit 6 set and a low nibble of 1-6.
    word = (word & 0x0F0F0F0F0F0F0F0F) + 9 * ((word >> 6) & 0x0101010101010101)
    word = (word | (word >> 4)) & 0x00FF00FF00FF00FF
    word = (word | (word >> 8)) & 0x0000FFFF0000FFFF
    word = (word | (word >> 16)) & 0xFFFFFFFF
    if words == 2:
        word = (word[::2] << 32) | word[1::2]
    id_B = word.view(np.int64)
    if filled < len(values):
        id_B = np.zeros(len(values), np.int64)
        id_B[~missing_B] = word.view(np.int64)
    return id_B, missing_B, np.zeros(len(values), np.bool_)
