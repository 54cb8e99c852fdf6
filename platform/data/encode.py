"""RowEncoder: raw columns of a click log become trainer-ready columns, vectorised, with bad rows marked.

A trainer-ready batch has, in this order: `label` float32; `dense` fixed_size_list<float32>[I] in the order of
`data.dense` (absent when there are no dense features); then one column per sparse feature under its own name: int64, or
list<int64> for list features. The same encoder serves training, evaluation and the exported model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from elastrec.platform.data.ids import encode_ids, integer_ids
from elastrec.platform.data.numbers import as_float64, combined, is_text, plain_numbers, usable_numbers
from elastrec.platform.specs.data import DenseFeature, SparseFeature, TrainingData
from elastrec.platform.specs.errors import DataError, FieldProblem, SpecError

MISSING_ID = int.from_bytes(b"missing")
"""The id of an empty scalar category: 30,796,717,039,906,407. A table with `hash_size` takes it modulo that, too."""

_EXPECTED = {"integer": "64-bit integers", "hexadecimal": "1 to 16 hexadecimal digits", "string": "text"}

LABEL = "label"
DENSE = "dense"


@dataclass(frozen=True)
class BadRow:
    """Why one row cannot be used; `column` is empty when the line as a whole is wrong."""

    row: int
    column: str
    found: str
    expected: str

    @property
    def reason(self) -> str:
        where = f"column {self.column!r}" if self.column else "the whole line"
        return f"{where}: found {self.found}, expected {self.expected}"


@dataclass(frozen=True)
class EncodedRows:
    """Attributes:
    batch: trainer-ready columns of all rows; those of bad rows hold arbitrary values.
    bad_B: bool [B].
    first_bad: the first reason found, or None.
    """

    batch: pa.RecordBatch
    bad_B: NDArray[np.bool_]
    first_bad: BadRow | None


class RowEncoder:
    """Turns raw rows into trainer-ready ones.

    Args:
        data: columns and encodings.
        hash_sizes: per embedding table, ids are taken modulo this; tables not named keep their 64-bit ids.

    Raises:
        SpecError: a sparse feature is called `label` or `dense`, or `hash_sizes` names an unknown table.
    """

    def __init__(self, data: TrainingData, hash_sizes: Mapping[str, int] | None = None) -> None:
        self._data = data
        self._hash_sizes = dict(hash_sizes or {})
        problems = [
            FieldProblem(f"data.sparse[{i}].name", repr(feature.name), f"anything but {LABEL} and {DENSE}")
            for i, feature in enumerate(data.sparse)
            if feature.name in (LABEL, DENSE)
        ]
        unknown = sorted(set(self._hash_sizes) - set(data.tables))
        if unknown:
            problems.append(FieldProblem("tables", repr(unknown), ", ".join(data.tables)))
        if problems:
            raise SpecError(problems)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the raw columns that are needed, label first."""
        data = self._data
        return (data.label, *(feature.name for feature in data.dense), *(feature.name for feature in data.sparse))

    def encode(self, rows: pa.Table | pa.RecordBatch, *, with_label: bool = True) -> EncodedRows:
        """Encode raw rows [B]; bad ones are marked, never dropped.

        Args:
            rows: raw columns; numbers and ids may also come as text.
            with_label: without, there is no label column (rows to be scored).

        Raises:
            DataError: a column is missing or its type can never be what the feature needs.
        """
        bad_B = np.zeros(rows.num_rows, np.bool_)
        first: list[BadRow] = []

        def mark(column: str, values: pa.Array, wrong_B: NDArray[np.bool_], expected: str) -> None:
            if wrong_B.any():
                bad_B[wrong_B] = True
                row = int(np.flatnonzero(wrong_B)[0])
                first.append(BadRow(row, column, _shown(values[row]), expected))

        # Once for all: asking a table by name costs more than most columns do.
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        arrays: list[pa.Array] = []
        names: list[str] = []
        if with_label:
            arrays.append(self._label(_column(columns, self._data.label), mark))
            names.append(LABEL)
        if self._data.dense:
            dense_BI = np.empty((rows.num_rows, len(self._data.dense)), np.float32)
            for i, feature in enumerate(self._data.dense):
                dense_BI[:, i] = self._dense(_column(columns, feature.name), feature, mark)
            arrays.append(pa.FixedSizeListArray.from_arrays(pa.array(dense_BI.reshape(-1)), dense_BI.shape[1]))
            names.append(DENSE)
        for sparse in self._data.sparse:
            arrays.append(self._sparse(_column(columns, sparse.name), sparse, mark))
            names.append(sparse.name)
        batch = pa.RecordBatch.from_arrays(arrays, names=names)
        return EncodedRows(batch, bad_B, min(first, key=lambda bad: bad.row, default=None))

    def _label(self, values: pa.Array, mark: Mark) -> pa.Array:
        label_B = usable_label(values)
        if label_B is not None:
            return pa.array(label_B)
        value_B, missing_B, wrong_B = as_float64(values, self._data.label)
        mark(self._data.label, values, wrong_B | missing_B | ((value_B != 0) & (value_B != 1)), "0 or 1")
        return pa.array(value_B.astype(np.float32))

    def _dense(self, values: pa.Array, feature: DenseFeature, mark: Mark) -> NDArray[np.float32]:
        value_B = usable_numbers(values, feature.missing)
        if value_B is None:
            value_B, missing_B, wrong_B = as_float64(values, feature.name)
            if missing_B.any():
                value_B = np.where(missing_B, feature.missing, value_B)
            wrong_B = wrong_B | ~np.isfinite(value_B)
            mark(feature.name, values, wrong_B, "a finite number, or empty")
            if wrong_B.any():
                value_B = np.where(wrong_B, 0.0, value_B)
        float_B, fits = transformed(value_B, feature)
        if not fits:
            wrong_B = ~np.isfinite(float_B)
            mark(feature.name, values, wrong_B, f"a number that fits into float32 after transform: {feature.transform}")
            float_B[wrong_B] = 0.0
        return float_B

    def _sparse(self, values: pa.Array, feature: SparseFeature, mark: Mark) -> pa.Array:
        hash_size = self._hash_sizes.get(feature.table_name)
        encoding = encoding_of(feature, values.type)
        if encoding == "integer" and not feature.is_list:
            if pa.types.is_int64(values.type) and not values.null_count and hash_size is None:
                return values
            plain_B = integer_ids(values, MISSING_ID)
            if plain_B is not None:
                return pa.array(_modulo(plain_B, hash_size))
        if feature.is_list:
            offsets, elements = _list_parts(values, feature, self._data.csv.list_separator)
            encoding = encoding_of(feature, elements.type)
            id_L, missing_L, wrong_L = encode_ids(elements, encoding, feature.name)
            length_B = np.diff(offsets)
            row_L = np.repeat(np.arange(len(values)), length_B)
            wrong_B = np.zeros(len(values), np.bool_)
            wrong_B[row_L[wrong_L]] = True
            mark(feature.name, values, wrong_B, f"a list of {_EXPECTED[encoding]}")
            keep_L = ~missing_L
            # Position counted from the list's end, over ids that exist.
            kept = np.concatenate(([0], np.cumsum(keep_L)))
            keep_L &= kept[offsets[1:]][row_L] - kept[:-1] <= feature.max_length
            length_B = np.bincount(row_L[keep_L], minlength=len(values))
            id_L = _modulo(id_L[keep_L], hash_size)
            kept_offsets = np.concatenate(([0], np.cumsum(length_B))).astype(np.int32)
            return pa.ListArray.from_arrays(pa.array(kept_offsets), pa.array(id_L))
        id_B, missing_B, wrong_B = encode_ids(values, encoding, feature.name)
        mark(feature.name, values, wrong_B, f"{_EXPECTED[encoding]}, or empty")
        if missing_B.any():
            id_B = np.where(missing_B, np.int64(MISSING_ID), id_B)
        return pa.array(_modulo(id_B, hash_size))


def encoding_of(feature: SparseFeature, type_: pa.DataType) -> str:
    """How ids come out of single values of this type."""
    if feature.raw_encoding is not None:
        if pa.types.is_dictionary(type_):
            type_ = type_.value_type
        if is_text(type_):
            return feature.raw_encoding
    return feature.encoding


def usable_label(values: pa.Array) -> NDArray[np.float32] | None:
    """Labels float32 [B]; None when one may be bad or the type needs more."""
    plain_B = plain_numbers(values)
    if plain_B is None or values.null_count or not ((plain_B == 0) | (plain_B == 1)).all():
        return None
    return plain_B.astype(np.float32)


def transformed(value_B: NDArray[np.float64], feature: DenseFeature) -> tuple[NDArray[np.float32], bool]:
    """The feature's transform of finite values float64 [B]; and whether all of them fit into float32, else infinite."""
    if feature.transform == "log1p":  # at most 710
        if value_B.min(initial=0.0) >= 0:
            return np.log1p(value_B).astype(np.float32), True
        return np.copysign(np.log1p(np.abs(value_B)), value_B).astype(np.float32), True
    with np.errstate(over="ignore"):
        if feature.transform == "standardize":
            value_B = (value_B - feature.mean) / feature.scale
        float_B = value_B.astype(np.float32)
    return float_B, bool(np.isfinite(float_B).all())


Mark = Callable[[str, pa.Array, NDArray[np.bool_], str], None]


def _modulo(ids: NDArray[np.int64], hash_size: int | None) -> NDArray[np.int64]:
    return ids if hash_size is None else np.remainder(ids, np.int64(hash_size))


def _column(columns: Mapping[str, pa.Array | pa.ChunkedArray], name: str) -> pa.Array:
    if name not in columns:
        raise DataError(f"column {name!r} is missing; found: {', '.join(columns)}")
    return combined(columns[name])


def _list_parts(values: pa.Array, feature: SparseFeature, separator: str) -> tuple[NDArray[np.int64], pa.Array]:
    """Offsets int64 [B + 1] (beginning at 0) and elements [L] of a list column."""
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        values = pa.compute.split_pattern(values, separator)
    elif pa.types.is_fixed_size_list(values.type):
        values = values.cast(pa.large_list(values.type.value_type))
    elif pa.types.is_null(values.type):
        return np.zeros(len(values) + 1, np.int64), pa.nulls(0, pa.int64())
    if not (pa.types.is_list(values.type) or pa.types.is_large_list(values.type)):
        raise DataError(
            f"column {feature.name!r}: found {values.type}, expected a list; set is_list: false for single values"
        )
    lengths = np.asarray(pa.compute.fill_null(pa.compute.list_value_length(values), 0), np.int64)
    # flatten() leaves out what lies under null lists, so lengths and elements agree.
    return np.concatenate(([0], np.cumsum(lengths))), values.flatten()


def _shown(value: pa.Scalar) -> str:
    shown = repr(value.as_py())
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
