"""RowEncoder: raw columns of a click log become trainer-ready columns, vectorised, with bad rows marked.

A trainer-ready batch has, in this order: `label` float32, or fixed_size_list<float32>[T] in the order of `data.targets`
where a job has several labels or weights; `dense` fixed_size_list<float32>[I] in the order of `data.dense` (absent when
there are no dense features); then one column per sparse feature under its own name: int64, or list<int64> for list
features. The same encoder serves training, evaluation and the exported model.

Rows are encoded in two stages. `read` turns raw columns into numbers and ids, and finds bad rows; `finish` runs the
features' steps. A deduplicating reader looks for repeats in between, so that steps see distinct rows only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from elastrec.platform.data.deduplicating.deduplication import Longs
from elastrec.platform.data.features.columns import Marker, read_column
from elastrec.platform.data.features.plan import Reading, columns_of, plans_of
from elastrec.platform.data.features.steps import MISSING_ID, Column, FillNull, Step, crossed, run_steps
from elastrec.platform.data.reading.numbers import as_float64, combined, plain_numbers
from elastrec.platform.specs.data import Target, TrainingData
from elastrec.platform.specs.errors import FieldProblem, MissingColumnError, SpecError

_EXPECTED_TARGET = {"binary": "0 or 1", "value": "a finite number", "weight": "a finite number from 0 on"}

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


@dataclass(frozen=True)
class ReadRows:
    """Raw columns after `RowEncoder.read`, before any step.

    Attributes:
        target: labels and weight as they come out; None without.
        columns: every way in which a column is read, once.
        raw: the raw columns.
        bad_B, marks: what was found until now.
    """

    rows: int
    target: pa.Array | None
    columns: Mapping[Reading, Column]
    raw: Mapping[str, pa.Array | pa.ChunkedArray]
    bad_B: NDArray[np.bool_]
    marks: list[Mark] = field(default_factory=list)

    def take(self, rows: Longs) -> ReadRows:
        """The rows with these numbers as rows of sparse features alone; what is wrong with them is left behind."""
        columns = {reading: column.take(rows) for reading, column in self.columns.items()}
        return ReadRows(len(rows), None, columns, {}, np.zeros(len(rows), np.bool_))

    def mark(self, column: str, values: pa.Array, wrong_B: NDArray[np.bool_], expected: str) -> None:
        """Note rows that cannot be used."""
        if wrong_B.any():
            self.bad_B[wrong_B] = True
            self.marks.append(Mark(column, values, wrong_B, expected))


class _OnDemand(dict[Reading, Column]):
    """Columns that are read when they are first asked for; those of several features are kept."""

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
        self._names = [*self._dense, *(feature.name for feature in self._sparse)]
        self._plans = plans_of(data, self._names)
        sources = [source for plan in self._plans.values() for source in plan.sources]
        self._readings = [source for source in dict.fromkeys(sources) if isinstance(source, Reading)]
        self._shared = frozenset(reading for reading in self._readings if sources.count(reading) > 1)
        self._crossed = frozenset(source for source in sources if isinstance(source, str))

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the raw columns that are needed, each once, labels first."""
        return (*(target.name for target in self._data.targets), *self.feature_columns)

    @property
    def feature_columns(self) -> tuple[str, ...]:
        """Names of the raw columns of the features."""
        return tuple(columns_of(self._plans, self._names))

    @property
    def readings(self) -> tuple[Reading, ...]:
        """Every way in which a column is read."""
        return tuple(self._readings)

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
        found, read = self._begun(rows, with_label=with_label)
        return self.finish(replace(found, columns=_OnDemand(read, self._shared)))

    def read(self, rows: pa.Table | pa.RecordBatch, *, with_label: bool = True) -> ReadRows:
        """The first stage of `encode`, which see."""
        found, read = self._begun(rows, with_label=with_label)
        return replace(found, columns={reading: read(reading) for reading in self._readings})

    def _begun(
        self, rows: pa.Table | pa.RecordBatch, *, with_label: bool
    ) -> tuple[ReadRows, Callable[[Reading], Column]]:
        """Rows of which no feature's column is read, and what reads one."""
        # Once for all: asking a table by name costs more than most columns do.
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        found = ReadRows(rows.num_rows, None, {}, columns, np.zeros(rows.num_rows, np.bool_))
        if with_label:
            found = replace(found, target=self._targets(columns, found.mark))

        def read(reading: Reading) -> Column:
            values = _column(columns, reading.column)
            return read_column(values, reading, self._data.csv.list_separator, found.mark)

        return found, read

    def finish(self, read: ReadRows) -> EncodedRows:
        """The second stage of `encode`: each step runs once for each of the rows."""
        arrays: list[pa.Array] = []
        names: list[str] = []
        if read.target is not None:
            arrays.append(read.target)
            names.append(LABEL)
        made: dict[str, Column] = {}
        if self._dense:
            dense_BI = np.empty((read.rows, len(self._dense)), np.float32)
            for i, name in enumerate(self._dense):
                dense_BI[:, i] = self._numbers(name, read, made)
            arrays.append(pa.FixedSizeListArray.from_arrays(pa.array(dense_BI.reshape(-1)), dense_BI.shape[1]))
            names.append(DENSE)
        for feature in self._sparse:
            ids = self._made(feature.name, read, made)
            arrays.append(_ids(ids, self._hash_sizes.get(feature.table_name)))
            names.append(feature.name)
        batch = pa.RecordBatch.from_arrays(arrays, names=names)
        return EncodedRows(batch, read.bad_B, first_bad_of(read.marks), read.marks)

    def source(self, name: str, read: ReadRows) -> Column:
        """What the steps of a feature that crosses nothing begin with."""
        [source] = self._plans[name].sources
        assert isinstance(source, Reading)
        return read.columns[source]

    def _made(self, name: str, read: ReadRows, made: dict[str, Column]) -> Column:
        """A feature after its steps; `made` holds those that a cross may ask for again."""
        if name in made:
            return made[name]
        plan = self._plans[name]
        sources = [
            self._made(source, read, made) if isinstance(source, str) else read.columns[source]
            for source in plan.sources
        ]
        column = run_steps(sources[0] if len(sources) == 1 else crossed(sources), plan.steps)
        if name in self._crossed:
            made[name] = column
        return column

    def _numbers(self, name: str, read: ReadRows, made: dict[str, Column]) -> NDArray[np.float32]:
        steps = self._plans[name].steps
        float_B, fits = as_float32(self._made(name, read, made), steps)
        if not fits:
            wrong_B = ~np.isfinite(float_B)
            source = self._plans[name].sources[0]
            assert isinstance(source, Reading)  # only sparse features cross
            after = f" after {', '.join(type(step).__name__ for step in steps)}" if steps else ""
            values = _column(read.raw, source.column)
            read.mark(source.column, values, wrong_B, f"a number that fits into float32{after}")
            float_B[wrong_B] = 0.0
        return float_B

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


def first_bad_of(marks: Sequence[Mark]) -> BadRow | None:
    """The first bad row, and why; None: there is none."""
    firsts = [mark.bad_row(int(np.flatnonzero(mark.wrong_B)[0])) for mark in marks]
    return min(firsts, key=lambda bad: bad.row, default=None)


def as_float32(column: Column, steps: Sequence[Step]) -> tuple[NDArray[np.float32], bool]:
    """A dense feature after its steps, 0 where it is missing; and whether it fits into float32, else infinite."""
    float_B = _as_float32(FillNull(0.0)(column).values)
    return float_B, bool(steps and steps[-1].fits_float32) or bool(np.isfinite(float_B).all())


def _ids(column: Column, hash_size: int | None) -> pa.Array:
    """A sparse feature after its steps: int64, or a list of it."""
    ids = FillNull(MISSING_ID)(column).values if column.offsets is None else column.values
    ids = ids if hash_size is None else np.remainder(ids, np.int64(hash_size))
    if column.offsets is None:
        return pa.array(ids)
    return pa.ListArray.from_arrays(pa.array(column.offsets.astype(np.int32)), pa.array(ids))


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


def _column(columns: Mapping[str, pa.Array | pa.ChunkedArray], name: str) -> pa.Array:
    if name not in columns:
        raise MissingColumnError(f"column {name!r} is missing; found: {', '.join(columns)}")
    return combined(columns[name])


def _shown(value: pa.Scalar) -> str:
    shown = repr(value.as_py())
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
