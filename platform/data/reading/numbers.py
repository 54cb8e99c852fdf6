"""Numbers out of any Arrow column that may hold them, with missing and wrong fields distinguished."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from elastrec.platform.specs.errors import DataError

_TEXT = {kind.id for kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.string_view())}
_NUMBER = r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$"


def combined(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """One contiguous array; dictionaries are not decoded."""
    if isinstance(values, pa.ChunkedArray):
        return values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()
    return values


def is_text(type_: pa.DataType) -> bool:
    return type_.id in _TEXT


def without_views(kind: pa.DataType) -> pa.DataType:
    """The type with `string` and `binary` for `string_view` and `binary_view`, also within lists and structs.

    Polars and other writers put views into the Arrow schema of their Parquet files. pyarrow cannot take, sort or
    compare them, and Parquet itself does not know them.
    """
    if pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_list(kind):
        return pa.list_(_field_without_views(kind.value_field))
    if pa.types.is_large_list(kind):
        return pa.large_list(_field_without_views(kind.value_field))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_field_without_views(kind.value_field), kind.list_size)
    if pa.types.is_struct(kind):
        return pa.struct([_field_without_views(field) for field in kind])
    return kind


def _field_without_views(field: pa.Field) -> pa.Field:
    return field.with_type(without_views(field.type))


def schema_without_views(schema: pa.Schema) -> pa.Schema:
    """See `without_views`; metadata stay."""
    return pa.schema([_field_without_views(field) for field in schema], metadata=schema.metadata)


# pyarrow's to_pandas_dtype imports pandas.
_PLAIN: dict[int, np.dtype[Any]] = {
    pa.type_for_alias(name).id: np.dtype(name)
    for name in (
        "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64",
    )
}  # fmt: skip


def missing_of(values: pa.Array) -> NDArray[np.bool_]:
    """bool [B]: where the field is empty."""
    if not values.null_count:
        return np.zeros(len(values), np.bool_)
    return np.logical_not(_validity(values).view(np.bool_))


def _validity(values: pa.Array) -> NDArray[np.uint8]:
    """uint8 [B]: 0 where the field is empty, else 1."""
    bitmap = values.buffers()[0]
    if bitmap is None:  # types such as unions have no bitmap of nulls
        return np.asarray(values.is_valid()).view(np.uint8)
    begin, skipped = divmod(values.offset, 8)
    bits = np.frombuffer(bitmap, np.uint8, (skipped + len(values) + 7) // 8, begin)
    return np.unpackbits(bits, count=skipped + len(values), bitorder="little")[skipped:]


def plain_numbers(values: pa.Array) -> NDArray[Any] | None:
    """A column of integers or floats, [B], 0 where the field is empty; None for other types.

    Without nulls, it is the column's own memory, read-only.
    """
    dtype = _PLAIN.get(values.type.id)
    if dtype is None:
        return None
    data = values.buffers()[1]
    if data is None:
        return np.frombuffer(bytes(len(values) * dtype.itemsize), dtype)
    plain_B = np.frombuffer(data, dtype, len(values), values.offset * dtype.itemsize)
    plain_B.flags.writeable = False
    if not values.null_count:
        return plain_B
    # By a bitwise AND with 0 or -1: an unpredictable branch would cost three times as much.
    valid_B = np.negative(_validity(values).view(np.int8))
    return np.bitwise_and(plain_B.view(f"i{dtype.itemsize}"), valid_B).view(dtype)


def as_float64(values: pa.Array, column: str) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
    """Values float64 [B] (0 where missing or wrong), missing bool [B], wrong bool [B] (text that is no number, NaN).

    Raises:
        DataError: the column's type holds no numbers.
    """
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if is_text(values.type):
        return _parse(values)
    value_B = plain_numbers(values)
    if value_B is None:
        convertible = (pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal, pa.types.is_null)
        if not any(fits(values.type) for fits in convertible):
            raise DataError(f"column {column!r}: found {values.type}, expected numbers")
        value_B = np.asarray(pc.fill_null(values.cast(pa.float64(), safe=False), 0.0))
    return value_B.astype(np.float64, copy=False), missing_of(values), np.isnan(value_B)


def trimmed(values: pa.Array) -> pa.StringArray:
    """Text without white space around it; null where nothing is left. Bytes that are no UTF-8 become U+FFFD."""
    try:
        text = pc.utf8_trim_whitespace(values.cast(pa.string()))
    except pa.ArrowInvalid:
        # Parquet files may contain such text, because not every writer checks it.
        raw = values.cast(pa.large_binary()).to_pylist()
        decoded = [None if each is None else each.decode(errors="replace") for each in raw]
        text = pc.utf8_trim_whitespace(pa.array(decoded, pa.string()))
    return pc.if_else(pc.equal(text, ""), None, text)


def _parse(values: pa.Array) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
    text = trimmed(values)
    missing_B = missing_of(text)
    number = pc.fill_null(pc.match_substring_regex(text, _NUMBER), True)
    wrong_B = ~np.asarray(number)
    text = pc.if_else(number, text, None)
    # Arrow's parser does not accept a leading plus sign.
    text = pc.utf8_ltrim(text, "+")
    value_B = np.asarray(pc.fill_null(text.cast(pa.float64()), 0.0))
    return value_B, missing_B, wrong_B
