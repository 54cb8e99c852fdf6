"""Storage of deduplicated feature groups: Parquet row groups with each distinct row once (RecD's IKJT, §4.2).

Of a group's features, a row group has the columns `distinct:FEATURE`, null where a row repeats an earlier one, and
`back:NUMBER`: the distance from each row to the earlier row, within the row group, that it repeats; 0 for a distinct
row. Rows keep their numbers, so that manifests, shards and offsets are those of the plain form. The names differ from
the features', so that a reader without support for this form reports missing columns instead of reading empty lists.
Lists of a fixed size are stored as lists of any size, because Arrow reads no null rows of the former from Parquet.

Comparison is exact: it includes texts, nulls and all bits of floats.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from elastrec.platform.data.deduplicating.deduplication import (
    Codes,
    check_groups,
    codes_of,
    first_rows,
    group_codes,
    list_parts,
    row_codes,
)
from elastrec.platform.data.reading.numbers import combined
from elastrec.platform.specs.errors import DataError

Groups = tuple[tuple[str, ...], ...]
METADATA_KEY = "elastrec.deduplicated"
_DISTINCT, _BACK = "distinct:", "back:"
_BITS = {2: np.int16, 4: np.int32, 8: np.int64}


def stored_schema(schema: pa.Schema, groups: Groups) -> pa.Schema:
    """The columns of a file that stores `groups` once, with the metadata by which it is recognised.

    Raises:
        DataError: a group is empty, or names an unknown feature or one twice, or a column has a reserved name.
    """
    check_groups(groups, schema.names)
    named = {name for group in groups for name in group}
    reserved = [name for name in schema.names if name.startswith((_DISTINCT, _BACK))]
    if reserved:
        raise DataError(
            f"columns: {reserved} are names of the deduplicated form; rename them, or cluster the plain log"
        )
    fields = [
        pa.field(f"{_DISTINCT}{field.name}", _stored_type(field.type)) if field.name in named else field
        for field in schema
    ]  # fmt: skip
    fields += [pa.field(f"{_BACK}{index}", pa.int32()) for index in range(len(groups))]
    metadata = {**(schema.metadata or {}), METADATA_KEY: json.dumps(groups)}
    return pa.schema(fields, metadata=metadata)


def without_repeats(table: pa.Table, groups: Groups) -> pa.Table:
    """One row group in the form of `stored_schema`.

    Raises:
        DataError: a column is of a type that cannot be compared.
    """
    rows = np.arange(table.num_rows)
    columns = dict(zip(table.column_names, table.columns, strict=True))
    backs = {}
    for index, group in enumerate(groups):
        code_B, count = group_codes([column_codes(combined(table[name]), name) for name in group])
        back_B = rows - first_rows(code_B, count)[code_B]
        # A null index gives a null row, whatever the type.
        kept = pa.array(rows, mask=back_B > 0)
        columns |= {name: _stored(combined(table[name])).take(kept) for name in group}
        backs[f"{_BACK}{index}"] = pa.array(back_B.astype(np.int32))
    schema = stored_schema(table.schema, groups)
    return pa.Table.from_arrays([*columns.values(), *backs.values()], schema=schema)


def stored_groups(metadata: Mapping[bytes, bytes] | None) -> Groups:
    """The groups of a file, from its schema's metadata; none for a plain one.

    Raises:
        DataError: the metadata cannot be read.
    """
    text = (metadata or {}).get(METADATA_KEY.encode())
    if text is None:
        return ()
    try:
        return tuple(tuple(str(name) for name in group) for group in json.loads(text))
    except (ValueError, TypeError) as error:
        raise DataError(f"{METADATA_KEY}: {text!r} cannot be read ({error}); write the file again") from error


def plain_schema(schema: pa.Schema, groups: Groups) -> pa.Schema:
    """The columns that a file would have without deduplication."""
    if not groups:
        return schema
    return pa.schema(
        [field.with_name(field.name.removeprefix(_DISTINCT)) for field in schema if not field.name.startswith(_BACK)]
    )


def stored_names(features: Sequence[str], groups: Groups) -> list[str]:
    """The file's columns with these features."""
    named = {name for group in groups for name in group}
    return [f"{_DISTINCT}{name}" if name in named else name for name in features]


def columns_to_read(features: Sequence[str] | None, groups: Groups) -> list[str] | None:
    """The file's columns that are needed for these features; None for all."""
    if features is None:
        return None
    backs = [f"{_BACK}{index}" for index, group in enumerate(groups) if not set(group).isdisjoint(features)]
    return stored_names(features, groups) + backs


class StoredRows:
    """Rows [B] of one row group as stored in the file; features are expanded on access.

    Args:
        table: the whole row group, with the needed columns.
        first, rows: the first one and the number of its rows.
    """

    def __init__(self, table: pa.Table, groups: Groups, first: int, rows: int) -> None:
        self._table = table
        self._first, self._rows = first, rows
        self._group_of = {name: index for index, group in enumerate(groups) for name in group}
        self._origins: dict[int, NDArray[np.int64]] = {}

    def plain(self, leave_out: frozenset[str] = frozenset()) -> pa.Table:
        """The rows [B] with all original columns, except stored features in `leave_out`."""
        columns = {}
        for name in self._table.column_names:
            feature = name.removeprefix(_DISTINCT)
            if name.startswith(_BACK) or (name != feature and feature in leave_out):
                continue
            if name == feature:
                columns[name] = self._table[name].slice(self._first, self._rows)
            else:
                columns[feature] = self._column(feature).take(pa.array(self._origin(feature)))
        return pa.table(columns)

    def codes(self, feature: str) -> Codes:
        """The codes of the rows [B]."""
        return codes_of(pa.array(self._origin(feature)))

    def picked(self, features: Sequence[str], rows: NDArray[np.int64]) -> pa.Table:
        """Columns of stored features for some of the rows, by their numbers in [0, B)."""
        return pa.table({name: self._column(name).take(pa.array(self._origin(name)[rows])) for name in features})

    def _column(self, feature: str) -> pa.Array:
        return combined(self._table[f"{_DISTINCT}{feature}"])

    def _origin(self, feature: str) -> NDArray[np.int64]:
        """Index in the row group of each row's content, int64 [B].

        Raises:
            DataError: the column refers to a row outside of the row group, or to a repeated row.
        """
        group = self._group_of[feature]
        if group not in self._origins:
            back_N = np.asarray(combined(self._table[f"{_BACK}{group}"])).astype(np.int64)
            row_N = np.arange(len(back_N)) - back_N
            if len(back_N) and (row_N.min() < 0 or back_N.min() < 0 or back_N[row_N].any()):
                raise DataError(
                    f"{_BACK}{group}: refers to a row that does not exist or is a repeat itself; write the file again"
                )
            self._origins[group] = row_N[self._first : self._first + self._rows]
        return self._origins[group]


def _stored_type(kind: pa.DataType) -> pa.DataType:
    return pa.list_(kind.value_field) if pa.types.is_fixed_size_list(kind) else kind


def _stored(column: pa.Array) -> pa.Array:
    kind = _stored_type(column.type)
    return column if kind == column.type else column.cast(kind)


def column_codes(column: pa.Array, name: str) -> Codes:
    """The codes of the rows of any column of values or of lists of them.

    Raises:
        DataError: the column is of another type.
    """
    parts = list_parts(column)
    if parts is None:
        return _value_codes(column, name)
    offsets, inner = parts
    if pa.types.is_int64(inner.type) and not inner.null_count:
        values = np.asarray(inner)
    else:
        values = _value_codes(inner, name)[0].astype(np.int64)
    return _with_nulls(row_codes(values, offsets), column)


def _value_codes(column: pa.Array, name: str) -> Codes:
    if pa.types.is_nested(column.type):
        raise DataError(f"feature {name!r}: {column.type} cannot be deduplicated; allowed: values, or lists of them")
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_floating(column.type):
        # By their bits, because Arrow treats 0.0 and -0.0 as equal.
        filled = np.asarray(pc.fill_null(column, 0.0))
        return _with_nulls(codes_of(pa.array(filled.view(_BITS[filled.dtype.itemsize]))), column)
    return codes_of(column)


def _with_nulls(codes: Codes, column: pa.Array) -> Codes:
    if not column.null_count:
        return codes
    return group_codes([codes, (np.asarray(column.is_null()).astype(np.int32), 2)])
