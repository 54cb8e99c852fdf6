"""RowEncoder: raw columns of a click log become trainer-ready columns, vectorised, with bad rows marked.

A trainer-ready batch has, in this order: `label` float32, or fixed_size_list<float32>[T] in the order of `data.targets`
where a job has several labels or weights; `dense` fixed_size_list<float32>[I] in the order of `data.dense` (absent when
there are no dense features); then one column per sparse feature under its own name: int64, or list<int64> for list
features. The same encoder serves training, evaluation and the exported model.

Rows are encoded in two stages. `read` turns raw columns into numbers and ids, and finds bad rows; `finish` runs the
features' steps. A deduplicating reader looks for repeats in between, so that steps see distinct rows only.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from elastrec.platform.data.deduplicating.deduplication import Longs
from elastrec.platform.data.features.columns import Marker, read_column
from elastrec.platform.data.features.plan import Reading, columns_of, plans_of
from elastrec.platform.data.features.steps import MISSING_ID, Column, FillNull, Log1p, Step, crossed, run_steps
from elastrec.platform.data.reading.numbers import as_float64, combined, missing_of, plain_numbers
from elastrec.platform.specs.data import DENSE_COLUMN, LABEL_COLUMN, Target, TrainingData
from elastrec.platform.specs.errors import FieldProblem, MissingColumnError, SpecError

_EXPECTED_TARGET = {"binary": "0 or 1", "value": "a finite number", "weight": "a finite number from 0 on"}


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
        """The reason for one of the wrong rows."""
        return BadRow(row, self.column, _shortened(self.values[row]), self.expected)

    def expanded(self, code_B: NDArray[np.int32]) -> Mark:
        """The mark of the rows whose values are `values[code_B]`."""
        return Mark(self.column, self.values.take(pa.array(code_B)), self.wrong_B[code_B], self.expected)


@dataclass(frozen=True)
class EncodedRows:
    """Trainer-ready columns of all rows; those of bad rows hold arbitrary values.

    Attributes:
        target_BT: float32 [B, T], labels, then the weight; None without.
        dense_BI: float32 [B, I].
        ids: the sparse features, int64 values or lists of them, of which none is missing.
        marks: bad rows, in the order of the columns.
    """

    target_BT: NDArray[np.float32] | None
    dense_BI: NDArray[np.float32]
    ids: Mapping[str, Column]
    marks: Sequence[Mark]

    @cached_property
    def bad_B(self) -> NDArray[np.bool_]:
        """bool [B]: which rows are bad."""
        return _marked(self.marks, len(self.dense_BI))

    @property
    def first_bad(self) -> BadRow | None:
        """The first bad row and the reason; None: there is none."""
        firsts = [mark.bad_row(int(np.argmax(mark.wrong_B))) for mark in self.marks]
        return min(firsts, key=lambda bad: bad.row, default=None)

    @cached_property
    def batch(self) -> pa.RecordBatch:
        """The columns as a batch."""
        columns: dict[str, pa.Array] = {}
        if self.target_BT is not None:
            columns[LABEL_COLUMN] = (
                _rows_of(self.target_BT) if self.target_BT.shape[1] > 1 else pa.array(self.target_BT[:, 0])
            )
        if self.dense_BI.shape[1]:
            columns[DENSE_COLUMN] = _rows_of(self.dense_BI)
        columns |= {name: arrow_ids(column) for name, column in self.ids.items()}
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    def bad_rows(self) -> dict[int, BadRow]:
        """The reason for each bad row, by its number: that of the first column in which it is bad."""
        bad: dict[int, BadRow] = {}
        for mark in self.marks:
            for row in np.flatnonzero(mark.wrong_B).tolist():
                if row not in bad:
                    bad[row] = mark.bad_row(row)
        return bad


@dataclass(frozen=True)
class ReadRows:
    """Raw columns after `RowEncoder.read`, before any step.

    Attributes:
        target_BT: labels and weight; None without.
        columns: one for every way in which a column is read.
        raw: the raw columns.
        marks: bad rows that were found until now.
    """

    rows: int
    target_BT: NDArray[np.float32] | None
    columns: Mapping[Reading, Column]
    raw: Mapping[str, pa.Array | pa.ChunkedArray]
    marks: list[Mark] = field(default_factory=list)

    @property
    def bad_B(self) -> NDArray[np.bool_]:
        """bool [B]: which rows are bad."""
        return _marked(self.marks, self.rows)

    def take(self, rows: Longs) -> ReadRows:
        """The rows with these numbers, with sparse features only and without marks."""
        columns = {reading: column.take(rows) for reading, column in self.columns.items()}
        return ReadRows(len(rows), None, columns, {})

    def mark(self, column: str, values: pa.Array, wrong_B: NDArray[np.bool_], expected: str) -> None:
        """Marks rows as bad."""
        if wrong_B.any():
            self.marks.append(Mark(column, values, wrong_B, expected))


class _OnDemand(dict[Reading, Column]):
    """Columns that are read at their first use; those that several features use are kept."""

    def __init__(self, read: Callable[[Reading], Column], shared: Collection[Reading]) -> None:
        super().__init__()
        self._read, self._shared = read, shared

    def __missing__(self, reading: Reading) -> Column:
        column = self._read(reading)
        if reading in self._shared:
            self[reading] = column
        return column


class RowEncoder:
    """Turns raw rows into trainer-ready ones.

    Args:
        data: columns, encodings and steps.
        hash_sizes: per embedding table, ids are taken modulo this; tables not named keep their 64-bit ids.
        features: names of those that are wanted; None: all.

    Attributes:
        columns: names of the raw columns that are needed, each once, labels first.
        feature_columns: names of the raw columns of the features.
        readings: every way in which a column is read.

    Raises:
        SpecError: a sparse feature is called `label` or `dense`, or `hash_sizes` names an unknown table.
        DataError: the values of a step do not fit the feature's encoding.
    """

    def __init__(
        self,
        data: TrainingData,
        hash_sizes: Mapping[str, int] | None = None,
        *,
        features: Collection[str] | None = None,
    ) -> None:
        self._data = data
        self._dense = [each.name for each in data.dense if features is None or each.name in features]
        self._sparse = [each for each in data.sparse if features is None or each.name in features]
        self._hash_sizes = dict(hash_sizes or {})
        unknown = sorted(set(self._hash_sizes) - set(data.tables))
        if unknown:
            raise SpecError([FieldProblem("tables", repr(unknown), ", ".join(data.tables))])
        names = [*self._dense, *(feature.name for feature in self._sparse)]
        self._plans = plans_of(data, names)
        self.feature_columns = tuple(columns_of(self._plans, names))
        self.columns = (*(target.name for target in data.targets), *self.feature_columns)
        sources = [source for plan in self._plans.values() for source in plan.sources]
        counts = Counter(source for source in sources if isinstance(source, Reading))
        self.readings = tuple(counts)
        self._shared = frozenset(reading for reading, count in counts.items() if count > 1)
        self._crossed = frozenset(source for source in sources if isinstance(source, str))

    def encode(self, rows: pa.Table | pa.RecordBatch, *, with_label: bool = True) -> EncodedRows:
        """Encode raw rows [B]; bad ones are marked, never dropped.

        Args:
            rows: raw columns; numbers and ids may also come as text.
            with_label: without, there is no label column (rows to be scored), and labels and weight are not read.

        Raises:
            MissingColumnError: a column is missing.
            DataError: a column's type can never be what the feature needs.
        """
        # Column by column, each through its steps while it lies in the processor's cache.
        rows_read, read = self._begin(rows, with_label=with_label)
        return self.finish(replace(rows_read, columns=_OnDemand(read, self._shared)))

    def read(self, rows: pa.Table | pa.RecordBatch, *, with_label: bool = True) -> ReadRows:
        """The first stage of `encode`; see there."""
        rows_read, read = self._begin(rows, with_label=with_label)
        return replace(rows_read, columns={reading: read(reading) for reading in self.readings})

    def _begin(
        self, rows: pa.Table | pa.RecordBatch, *, with_label: bool
    ) -> tuple[ReadRows, Callable[[Reading], Column]]:
        """Rows without columns of features, and the function that reads one of these columns."""
        # Looking up a column of a table by name costs more than encoding most columns.
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        rows_read = ReadRows(rows.num_rows, None, {}, columns)
        if with_label:
            rows_read = replace(rows_read, target_BT=self._targets(columns, rows_read.mark))

        def read(reading: Reading) -> Column:
            values = _column(columns, reading.column)
            return read_column(values, reading, self._data.csv.list_separator, rows_read.mark)

        return rows_read, read

    def finish(self, read: ReadRows) -> EncodedRows:
        """The second stage of `encode`: each step runs once for each of the rows."""
        made: dict[str, Column] = {}
        numbers = [self._numbers(name, read, made) for name in self._dense]
        dense_BI = np.empty((read.rows, len(numbers)), np.float32)
        for first in range(0, read.rows, _DENSE_ROWS):
            block_BI = dense_BI[first : first + _DENSE_ROWS]
            for i, float_B in enumerate(numbers):
                block_BI[:, i] = float_B[first : first + _DENSE_ROWS]
        ids = {
            feature.name: _in_range(self._feature(feature.name, read, made), self._hash_sizes.get(feature.table_name))
            for feature in self._sparse
        }
        return EncodedRows(read.target_BT, dense_BI, ids, read.marks)

    def source(self, name: str, read: ReadRows) -> Column:
        """The column to which the steps of a feature without a cross are applied."""
        [source] = self._plans[name].sources
        assert isinstance(source, Reading)
        return read.columns[source]

    def _feature(self, name: str, read: ReadRows, made: dict[str, Column]) -> Column:
        """A feature after its steps; `made` contains features that crosses use, after theirs."""
        if name in made:
            return made[name]
        plan = self._plans[name]
        sources = [
            self._feature(source, read, made) if isinstance(source, str) else read.columns[source]
            for source in plan.sources
        ]
        column = run_steps(sources[0] if len(sources) == 1 else crossed(sources), plan.steps)
        if name in self._crossed:
            made[name] = column
        return column

    def _numbers(self, name: str, read: ReadRows, made: dict[str, Column]) -> NDArray[np.float32]:
        steps, source = self._plans[name].steps, self._plans[name].sources[0]
        assert isinstance(source, Reading)  # only sparse features cross
        if steps == _LOG1P and source.fill is not None and not source.is_list:
            logarithm_B = _log1p_of_counts(_column(read.raw, source.column), float(source.fill))
            if logarithm_B is not None:
                return logarithm_B
        float_B, fits = _as_float32(self._feature(name, read, made), steps)
        if not fits:
            wrong_B = ~np.isfinite(float_B)
            after = f" after {', '.join(type(step).__name__ for step in steps)}" if steps else ""
            values = _column(read.raw, source.column)
            read.mark(source.column, values, wrong_B, f"a number that fits into float32{after}")
            float_B[wrong_B] = 0.0
        return float_B

    def _targets(self, columns: Mapping[str, pa.Array | pa.ChunkedArray], mark: Marker) -> NDArray[np.float32]:
        targets = self._data.targets
        return np.stack([self._target(_column(columns, each.name), each, mark) for each in targets], axis=1)

    @staticmethod
    def _target(values: pa.Array, target: Target, mark: Marker) -> NDArray[np.float32]:
        value_B, missing_B, wrong_B = as_float64(values, target.name)
        float_B = _rounded(value_B)
        wrong_B = wrong_B | missing_B | ~_allowed(value_B, float_B, target)
        mark(target.name, values, wrong_B, _EXPECTED_TARGET[target.kind])
        float_B[wrong_B] = 0.0
        return float_B


def _marked(marks: Sequence[Mark], rows: int) -> NDArray[np.bool_]:
    marked_B = np.zeros(rows, np.bool_)
    for mark in marks:
        marked_B |= mark.wrong_B
    return marked_B


def arrow_ids(column: Column) -> pa.Array:
    """A sparse feature's ids, of which none is missing: int64, or a list of it."""
    if column.offsets is None:
        return pa.array(column.values)
    return pa.ListArray.from_arrays(pa.array(column.offsets.astype(np.int32)), pa.array(column.values))


def _rows_of(matrix: NDArray[np.float32]) -> pa.FixedSizeListArray:
    return pa.FixedSizeListArray.from_arrays(pa.array(matrix.reshape(-1)), matrix.shape[1])


def _in_range(column: Column, hash_size: int | None) -> Column:
    """A sparse feature after its steps, with the id of missing values, modulo the hash size."""
    if column.missing is not None:
        column = FillNull(MISSING_ID)(column)
    return column if hash_size is None else replace(column, values=np.remainder(column.values, np.int64(hash_size)))


# The numbers of so many rows fit into the cache of one core.
_DENSE_ROWS = 16_384
_LOG1P = (Log1p(),)
# Counts below it: a table that fits into the processor's cache.
_TABLE_COUNTS = 65_536


@functools.cache
def _log1p_table() -> NDArray[np.float32]:
    return np.log1p(np.arange(_TABLE_COUNTS, dtype=np.float64)).astype(np.float32)


def _log1p_of_counts(values: pa.Array, missing: float) -> NDArray[np.float32] | None:
    """float32 [B], log(1 + count) from a table, which is ten times as fast; None unless all counts are small."""
    count_B = plain_numbers(values)
    if count_B is None or count_B.dtype.kind != "i":
        return None
    place_B = count_B.view(f"u{count_B.dtype.itemsize}")
    if place_B.max(initial=0) >= _TABLE_COUNTS:
        return None
    float_B = _log1p_table().take(place_B, mode="clip")
    if values.null_count and missing:
        float_B[missing_of(values)] = _as_float32(run_steps(Column(np.array([missing])), _LOG1P), _LOG1P)[0]
    return float_B


def _as_float32(column: Column, steps: Sequence[Step]) -> tuple[NDArray[np.float32], bool]:
    """A dense feature after its steps, 0 where it is missing; and whether it fits into float32, else infinite."""
    float_B = _rounded(FillNull(0.0)(column).values)
    return float_B, bool(steps and steps[-1].fits_float32) or bool(np.isfinite(float_B).all())


def _rounded(value_B: NDArray[Any]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return value_B.astype(np.float32)


def _allowed(value_B: NDArray[Any], float_B: NDArray[np.float32], target: Target) -> NDArray[np.bool_]:
    """Which labels or weights may be trained on: values as they were read, and in float32."""
    allowed_B: NDArray[np.bool_]
    if target.kind == "binary":
        # Rounded to float32 a number just above 1 would be a label.
        allowed_B = (value_B == 0) | (value_B == 1)
    else:
        allowed_B = np.isfinite(float_B)
        if target.kind == "weight":
            allowed_B &= float_B >= 0
    return allowed_B


def _column(columns: Mapping[str, pa.Array | pa.ChunkedArray], name: str) -> pa.Array:
    if name not in columns:
        raise MissingColumnError(f"column {name!r} is missing; found: {', '.join(columns)}")
    return combined(columns[name])


def _shortened(value: pa.Scalar) -> str:
    try:
        shown = repr(value.as_py())
    except UnicodeDecodeError as error:
        shown = repr(error.object)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
