"""PlainWindows: rows of numbers become minibatches with each column moved once, from where the file's decoder left it.

The usual log, of scalar columns of numbers without a bad row, needs none of what the general way can do: no column is
built that is not handed out, and shuffled rows go right to their places in their minibatches. Values and order are
those of the general way, which takes over wherever a window is anything else.

Legend of shapes: N rows of the window, P rows of a piece, Q rows of the minibatches to be made, T labels and weights,
I dense features.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from elastrec.platform.data.features.plan import FeaturePlan, Reading, plans_of
from elastrec.platform.data.features.steps import MISSING_ID, Column, Log1p, Step, run_steps
from elastrec.platform.data.reading.encode import as_float32, usable_target
from elastrec.platform.data.reading.laid_out import BatchForm, Run
from elastrec.platform.data.reading.numbers import combined, is_plain_number, plain_numbers, usable_numbers, valid_bytes
from elastrec.platform.specs.data import TrainingData

T = TypeVar("T", bound=np.generic)


class PlainWindows:
    """What the windows of one job have in common.

    Args:
        data: whose sparse features are scalar integers, see `can_be_plain`.
        hash_sizes: per embedding table, ids are taken modulo this.
    """

    def __init__(self, data: TrainingData, hash_sizes: Mapping[str, int]) -> None:
        self.data = data
        self.form = BatchForm(len(data.targets), len(data.dense), tuple(feature.name for feature in data.sparse))
        self.dense = [_Dense.of(plan) for plan in plans_of(data, [feature.name for feature in data.dense]).values()]
        self.hash_sizes = [hash_sizes.get(feature.table_name) for feature in data.sparse]

    @staticmethod
    def can_be_plain(data: TrainingData) -> bool:
        """Whether windows of the job may consist of numbers alone, each column one feature without steps of its own."""
        plain = all(feature.encoding == "integer" and not feature.is_list for feature in data.sparse)
        return plain and not data.features and not any(each.column for each in data.described_features)

    def fits(self, schema: pa.Schema) -> bool:
        """Whether raw columns are all there, and hold numbers: integers where ids are wanted."""
        kinds = dict(zip(schema.names, schema.types, strict=True))
        numbers = [*(target.name for target in self.data.targets), *(feature.name for feature in self.data.dense)]
        return all(name in kinds and is_plain_number(kinds[name]) for name in numbers) and all(
            name in kinds and is_plain_number(kinds[name]) and pa.types.is_integer(kinds[name])
            for name in self.form.sparse
        )


class PlainWindow:
    """One window: give it all pieces in order, then ask for its minibatches.

    Args:
        rows: N, of all pieces together.
    """

    def __init__(self, windows: PlainWindows, rows: int) -> None:
        self._windows = windows
        self._rows = 0
        self._target_NT = np.empty((rows, windows.form.targets), np.float32)
        self._dense_NI = np.empty((rows, windows.form.dense), np.float32)
        self._ids: list[list[pa.Array]] = [[] for _ in windows.form.sparse]

    def add(self, piece: pa.Table | pa.RecordBatch) -> bool:
        """Take raw rows [P] that `PlainWindows.fits`; False when one may be bad: then the window is of no use."""
        data, begin = self._windows.data, self._rows
        columns = dict(zip(piece.schema.names, map(combined, piece.columns), strict=True))
        self._rows = begin + piece.num_rows
        for t, target in enumerate(data.targets):
            target_P = usable_target(columns[target.name], target)
            if target_P is None:
                return False
            self._target_NT[begin : self._rows, t] = target_P
        # Side by side in memory, all features of a row have to be in the cache; ids are moved one feature at a time.
        for first in range(0, piece.num_rows, _DENSE_ROWS):
            room_PI = self._dense_NI[begin + first : min(begin + first + _DENSE_ROWS, self._rows)]
            for i, dense in enumerate(self._windows.dense):
                values = columns[dense.column].slice(first, len(room_PI))
                if not _write(values, dense, room_PI, i):
                    return False
        for ids, sparse in zip(self._ids, data.sparse, strict=True):
            ids.append(columns[sparse.name])
        return True

    def batches(self, order_Q: NDArray[np.int64], sizes: Sequence[tuple[int, int]]) -> list[pa.RecordBatch]:
        """The minibatches; afterwards the window is empty.

        Args:
            order_Q: of each of their rows, its number in the window.
            sizes: how many minibatches of how many rows come one after the other; rows add up to Q.
        """
        windows = self._windows
        runs = [Run(windows.form, batches, rows) for batches, rows in sizes]
        _place(self._target_NT, order_Q, [run.target_KBT for run in runs])
        _place(self._dense_NI, order_Q, [run.dense_KBI for run in runs])
        del self._target_NT, self._dense_NI
        id_N = np.empty(self._rows, np.int64)
        place_Q = order_Q.astype(np.uint32)
        for f, hash_size in enumerate(windows.hash_sizes):
            _join(self._ids[f], id_N)
            self._ids[f].clear()
            if hash_size is not None:
                np.remainder(id_N, np.int64(hash_size), out=id_N)
            begin = 0
            for run in runs:
                _kernels().spread(id_N, place_Q[begin : begin + run.batches * run.rows], run.ids_KFB[:, f])
                begin += run.batches * run.rows
        return [batch for run in runs for batch in run.record_batches()]


# Their dense features fit into the cache of one core.
_DENSE_ROWS = 16_384
_COUNTS = (pa.int32(), pa.int64())
# Counts below it: a table that fits into the processor's cache.
_TABLE_COUNTS = 65_536


@functools.cache
def _log1p_table() -> NDArray[np.int32]:
    """float32 log(1 + count) for counts below `_TABLE_COUNTS`, seen as int32."""
    return np.log1p(np.arange(_TABLE_COUNTS, dtype=np.float64)).astype(np.float32).view(np.int32)


@functools.cache
def _kernels() -> ModuleType:
    from elastrec.platform.data.reading import kernels

    return kernels


@dataclass(frozen=True)
class _Dense:
    """A dense feature whose empty fields are filled as they are read.

    Attributes:
        empty: what an empty field becomes, float32 seen as int32, where counts may be looked up.
    """

    column: str
    fill: float
    steps: tuple[Step, ...]
    empty: np.int32 | None

    @staticmethod
    def of(plan: FeaturePlan) -> _Dense:
        [reading] = plan.sources
        assert isinstance(reading, Reading) and reading.fill is not None, "short forms fill what is empty"
        empty = None
        if plan.steps == (Log1p(),):
            empty = as_float32(run_steps(Column(np.array([reading.fill])), plan.steps), plan.steps)[0].view(np.int32)[0]
        return _Dense(reading.column, float(reading.fill), plan.steps, empty)


def _write(values: pa.Array, dense: _Dense, room_PI: NDArray[np.float32], i: int) -> bool:
    """Write a dense feature to its column; False when a field may be wrong."""
    if dense.empty is not None and values.type in _COUNTS:
        bits_PI = room_PI.view(np.int32)
        if _kernels().look_up(plain_numbers(values), valid_bytes(values), _log1p_table(), dense.empty, bits_PI, i):
            return True
    value_P = usable_numbers(values, dense.fill)
    if value_P is None:
        return False
    room_PI[:, i], fits = as_float32(run_steps(Column(value_P), dense.steps), dense.steps)
    return fits


def _join(parts: Sequence[pa.Array], id_N: NDArray[np.int64]) -> None:
    """All ids of a feature side by side: picked from the parts themselves, each would wait for memory."""
    begin = 0
    for values in parts:
        id_P = id_N[begin : begin + len(values)]
        plain_P = plain_numbers(values)
        assert plain_P is not None  # `add` looked
        np.copyto(id_P, plain_P, casting="unsafe")
        if values.null_count:
            # As with numbers: no branch.
            id_P ^= MISSING_ID
            id_P &= valid_bytes(values)
            id_P ^= MISSING_ID
        begin += len(values)


def _place(source_N: NDArray[T], order_Q: NDArray[np.int64], rooms: Sequence[NDArray[T]]) -> None:
    """Rows of one column to their places in the minibatches."""
    begin = 0
    for room_KB in rooms:
        for room_B in room_KB:
            end = begin + len(room_B)
            # Without a check of each index, which are a permutation's: half the time.
            np.take(source_N, order_Q[begin:end], axis=0, mode="clip", out=room_B)
            begin = end
