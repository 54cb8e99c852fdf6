"""RowEncoder: raw columns of a click log become trainer-ready columns, vectorised, with bad rows marked.

A trainer-ready batch has, in this order: `label` float32, or fixed_size_list<float32>[T] in the order of `data.targets`
where a job has several labels or weights; `dense` fixed_size_list<float32>[I] in the order of `data.dense` (absent when
there are no dense features); then one column per sparse feature under its own name: int64, or list<int64> for list
features. The same encoder serves training, evaluation and the exported model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from elastrec.platform.data.reading.ids import encode_ids, integer_ids
from elastrec.platform.data.reading.numbers import as_float64, combined, is_text, plain_numbers, usable_numbers
from elastrec.platform.specs.data import DenseFeature, SparseFeature, Target, TrainingData
from elastrec.platform.specs.errors import DataError, FieldProblem, MissingColumnError, SpecError

MISSING_ID = int.from_bytes(b"missing")
"""The id of an empty scalar category: 30,796,717,039,906,407. A table with `hash_size` takes it modulo that, too."""

_EXPECTED_TARGET = {"binary": "0 or 1", "value": "a finite number", "weight": "a finite number from 0 on"}
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


class Mark(NamedTuple):
    """Rows of one column that cannot be used: `wrong_B` bool [B] of `values` [B]."""

    column: str
    values: pa.Array
    wrong_B: NDArray[np.bool_]
    expected: str

    def bad_row(self, row: int) -> BadRow:
        """Why a row that is wrong here is bad."""
        return BadRow(row, self.column, _shown(self.values[row]), self.expected)


@dataclass(frozen=True)
class EncodedRows:
    """Attributes:
    batch: trainer-ready columns of all rows; those of bad rows hold arbitrary values.
    bad_B: bool [B].
    first_bad: the first reason found, or None.
    marks: all that was found, in the order of the columns.
    """

    batch: pa.RecordBatch
    bad_B: NDArray[np.bool_]
    first_bad: BadRow | None
    marks: Sequence[Mark] = ()

    def bad_rows(self) -> dict[int, BadRow]:
        """Why each bad row is bad, by its number; of a row that is bad in several columns the first of them."""
        found: dict[int, BadRow] = {}
        for mark in self.marks:
            for row in np.flatnonzero(mark.wrong_B).tolist():
                if row not in found:
                    found[row] = mark.bad_row(row)
        return found


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
        """Names of the raw columns that are needed, labels first."""
        data = self._data
        names = [*(target.name for target in data.targets), *(feature.name for feature in data.dense)]
        return (*names, *(feature.name for feature in data.sparse))

    def encode(self, rows: pa.Table | pa.RecordBatch, *, with_label: bool = True) -> EncodedRows:
        """Encode raw rows [B]; bad ones are marked, never dropped.

        Args:
            rows: raw columns; numbers and ids may also come as text.
            with_label: without, there is no label column (rows to be scored), and labels and weight are not read.

        Raises:
            MissingColumnError: a column is missing.
            DataError: a column's type can never be what the feature needs.
        """
        bad_B = np.zeros(rows.num_rows, np.bool_)
        marks: list[Mark] = []

        def mark(column: str, values: pa.Array, wrong_B: NDArray[np.bool_], expected: str) -> None:
            if wrong_B.any():
                bad_B[wrong_B] = True
                marks.append(Mark(column, values, wrong_B, expected))

        # Once for all: asking a table by name costs more than most columns do.
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        arrays: list[pa.Array] = []
        names: list[str] = []
        if with_label:
            arrays.append(self._targets(columns, mark))
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
        firsts = [each.bad_row(int(np.flatnonzero(each.wrong_B)[0])) for each in marks]
        return EncodedRows(batch, bad_B, min(firsts, key=lambda bad: bad.row, default=None), marks)

    def _targets(self, columns: Mapping[str, pa.Array | pa.ChunkedArray], mark: Marker) -> pa.Array:
        found = [self._target(_column(columns, target.name), target, mark) for target in self._data.targets]
        if len(found) == 1:
            return pa.array(found[0])
        target_BT = np.stack(found, axis=1)
        return pa.FixedSizeListArray.from_arrays(pa.array(target_BT.reshape(-1)), target_BT.shape[1])

    @staticmethod
    def _target(values: pa.Array, target: Target, mark: Marker) -> NDArray[np.float32]:
        target_B = usable_target(values, target)
        if target_B is not None:
            return target_B
        value_B, missing_B, wrong_B = as_float64(values, target.name)
        float_B = _as_float32(value_B)
        wrong_B = wrong_B | missing_B | ~_allowed(value_B if target.kind == "binary" else float_B, target)
        mark(target.name, values, wrong_B, _EXPECTED_TARGET[target.kind])
        float_B[wrong_B] = 0.0
        return float_B

    def _dense(self, values: pa.Array, feature: DenseFeature, mark: Marker) -> NDArray[np.float32]:
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

    def _sparse(self, values: pa.Array, feature: SparseFeature, mark: Marker) -> pa.Array:
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


def usable_target(values: pa.Array, target: Target) -> NDArray[np.float32] | None:
    """Labels or weights float32 [B]; None when one may be bad or the type needs more."""
    plain_B = plain_numbers(values)
    if plain_B is None or values.null_count:
        return None
    float_B = _as_float32(plain_B)
    # Rounded to float32 a number just above 1 would be a label.
    judged_B = plain_B if target.kind == "binary" else float_B
    return float_B if _allowed(judged_B, target).all() else None


def _as_float32(value_B: NDArray[Any]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return value_B.astype(np.float32)


def _allowed(value_B: NDArray[Any], target: Target) -> NDArray[np.bool_]:
    allowed_B: NDArray[np.bool_]
    if target.kind == "binary":
        allowed_B = (value_B == 0) | (value_B == 1)
    else:
        allowed_B = np.isfinite(value_B)
        if target.kind == "weight":
            allowed_B &= value_B >= 0
    return allowed_B


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


Marker = Callable[[str, pa.Array, NDArray[np.bool_], str], None]


def _modulo(ids: NDArray[np.int64], hash_size: int | None) -> NDArray[np.int64]:
    return ids if hash_size is None else np.remainder(ids, np.int64(hash_size))


def _column(columns: Mapping[str, pa.Array | pa.ChunkedArray], name: str) -> pa.Array:
    if name not in columns:
        raise MissingColumnError(f"column {name!r} is missing; found: {', '.join(columns)}")
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
