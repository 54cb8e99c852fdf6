"""DeduplicatedRows: feature groups are encoded once per distinct row, and minibatches contain them in that form.

Repeats are found in the raw columns of each piece, or, if these are not plain numbers, in the encoded columns: the
features' steps run once for each distinct row (RecD's O3 and O4, §4.2–4.3). After that, a row of a group is a number in
a column of the window. Clustered rows are shuffled by session.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from elastrec.platform.data.clustering.session_order import session_order
from elastrec.platform.data.deduplicating.deduplicated_batch import plain_part, with_groups
from elastrec.platform.data.deduplicating.deduplication import (
    InverseJagged,
    Longs,
    Values,
    check_groups,
    first_rows,
    group_codes,
    jagged_parts,
    joined,
    row_codes,
    take_rows,
)
from elastrec.platform.data.features.steps import Column
from elastrec.platform.data.reading.encode import EncodedRows, Mark, RowEncoder
from elastrec.platform.data.reading.numbers import combined
from elastrec.platform.data.reading.raw import RawRows
from elastrec.platform.specs.data import DENSE_COLUMN, GROUP_PREFIX, LABEL_COLUMN, TrainingData
from elastrec.platform.specs.errors import DataError

Parts = tuple[tuple[Values, Longs], ...]
"""Distinct rows of one group: per feature, values and offsets."""


class DeduplicatedRows:
    """A `RowStage` whose minibatches are those of `deduplicate_batch`.

    Without a shuffle, expanded batches have the same rows as plain ones. A shuffle moves whole sessions instead of rows
    if the data has a session column. Equal rows of a batch may be two distinct rows if they were read in two pieces;
    this is rare, because row groups of clustered files end with a session.

    Args:
        groups: features that share an inverse lookup, at least one group.
        hash_sizes: per embedding table, ids are taken modulo this.

    Raises:
        SpecError: see `RowEncoder`.
        DataError: a group is empty, or names a feature twice or one that is not a sparse feature.
    """

    def __init__(
        self, data: TrainingData, groups: Sequence[Sequence[str]], hash_sizes: Mapping[str, int] | None = None
    ) -> None:
        features = {feature.name: feature for feature in data.sparse}
        named = [name for group in groups for name in group]
        check_groups(groups, list(features))
        self.groups = tuple(tuple(group) for group in groups)
        self.session = data.session
        plain = [feature.name for feature in data.described_features if feature.name not in named]
        self.plain = RowEncoder(data, hash_sizes, features=plain)
        self.encoders = [RowEncoder(data, hash_sizes, features=group) for group in self.groups]
        self.readings = tuple(dict.fromkeys(each for one in (self.plain, *self.encoders) for each in one.readings))
        self.extra_columns = (self.session,) if self.session else ()
        grouped = {column for encoder in self.encoders for column in encoder.feature_columns}
        self.kept_columns = frozenset(grouped - {*self.plain.columns, self.session})
        self.are_lists = {LABEL_COLUMN: False, **({DENSE_COLUMN: False} if data.dense else {})}
        self.are_lists |= {feature.name: feature.is_list for feature in data.sparse}

    def start(self) -> DeduplicatedShard:
        """See `PlainRows`, as for all methods that both have."""
        return DeduplicatedShard(self)

    def distinct(self, piece: RawRows, names: Sequence[str]) -> tuple[pa.Table, NDArray[np.int32] | None]:
        """The distinct rows of raw columns and each row's number; all rows and None if they are not plain numbers."""
        stored = {name for name in names if name not in piece.table.column_names}
        if piece.stored is not None and stored == set(names):
            # The file contains the repeats.
            code_B, count = group_codes([piece.stored.codes(name) for name in names])
            return piece.stored.picked(names, first_rows(code_B, count)), code_B
        columns = piece.table.select([name for name in names if name not in stored])
        if piece.stored is not None and stored:
            whole = piece.stored.picked(sorted(stored), np.arange(piece.table.num_rows))
            for name in whole.column_names:
                columns = columns.append_column(name, whole[name])
        try:
            parts = [jagged_parts(combined(columns[name]), name) for name in names]
        except DataError:
            # Text, nulls and other types must be encoded before they can be compared.
            return columns, None
        code_B, count = group_codes([row_codes(*part) for part in parts])
        return columns.combine_chunks().take(pa.array(first_rows(code_B, count))), code_B

    def finish(self, batch: pa.RecordBatch, pools: Sequence[_Pool]) -> pa.RecordBatch:
        """The batch in which the distinct rows of each group replace their numbers."""
        groups = []
        for g, (keys, pool) in enumerate(zip(self.groups, pools, strict=True)):
            encoded = batch.column(f"{GROUP_PREFIX}{g}").dictionary_encode()
            groups.append(pool.taken(keys, np.asarray(encoded.dictionary), np.asarray(encoded.indices)))
        return with_groups(plain_part(batch), groups, self.are_lists)


class DeduplicatedShard:
    """The rows of one shard on their way to windows and out of them."""

    def __init__(self, stage: DeduplicatedRows) -> None:
        self._stage = stage
        self._pools = [_Pool() for _ in stage.groups]
        self._sessions: list[pa.Array] = []

    def encode(self, piece: RawRows) -> EncodedRows:
        """Plain columns, per group the number of each row, and the bad rows of all of them."""
        rows = self._stage.plain.encode(piece.table)
        marks, ids = list(rows.marks), dict(rows.ids)
        for g, (encoder, pool) in enumerate(zip(self._stage.encoders, self._pools, strict=True)):
            code_B, parts, group_marks = self._distinct(piece, encoder, self._stage.groups[g])
            ids[f"{GROUP_PREFIX}{g}"] = Column(code_B.astype(np.int64) + pool.add(parts))
            marks += group_marks
        if self._stage.session:
            self._sessions.append(self._session_of(piece, self._stage.session))
        return EncodedRows(rows.target_BT, rows.dense_BI, ids, marks)

    def _distinct(
        self, piece: RawRows, encoder: RowEncoder, group: Sequence[str]
    ) -> tuple[NDArray[np.int32], Parts, Sequence[Mark]]:
        """Each row's number, the distinct rows of a group, and the bad rows."""
        raw, code_B = self._stage.distinct(piece, encoder.feature_columns)
        read = encoder.read(raw, with_label=False)
        marks = read.marks
        if code_B is None:
            # Bad rows keep their positions; repeats are known only now.
            code_B, count = group_codes([code for column in read.columns.values() for code in column.codes()])
            read = read.take(first_rows(code_B, count))
        else:
            marks = [mark.expanded(code_B) for mark in marks]
        ids = encoder.finish(read).ids
        return code_B, tuple((ids[name].values, ids[name].bounds) for name in group), marks

    @staticmethod
    def _session_of(piece: RawRows, session: str) -> pa.Array:
        if session not in piece.table.column_names:
            raise DataError(
                f"the session column {session!r} is missing; found: {', '.join(piece.table.column_names)}; correct "
                "data.session, or keep it in data.transform"
            )
        return combined(piece.table[session])

    def end_window(self, order_N: NDArray[np.int64] | None) -> NDArray[np.int64] | None:
        """A shuffle moves sessions if there are any."""
        for pool in self._pools:
            pool.end_window()
        sessions, self._sessions = self._sessions, []
        if order_N is None or not sessions:
            return order_N
        return session_order(sessions, order_N)

    def finish(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """See `DeduplicatedRows.finish`."""
        return self._stage.finish(batch, self._pools)


class _Pool:
    """The distinct rows of one group that minibatches still need; numbers continue from window to window."""

    def __init__(self) -> None:
        self._end = 0
        self._pieces: list[Parts] = []
        self._windows: deque[tuple[int, Parts]] = deque()
        """The number of the first distinct row of each window, and the rows."""

    def add(self, parts: Parts) -> int:
        """Adds the distinct rows of a piece; returns the number of the first of them."""
        base, self._end = self._end, self._end + len(parts[0][1]) - 1
        self._pieces.append(parts)
        return base

    def end_window(self) -> None:
        """Makes the rows since the last window a window."""
        parts = tuple(joined(pieces) for pieces in zip(*self._pieces, strict=True))
        self._windows.append((self._end - len(parts[0][1]) + 1, parts))
        self._pieces = []

    def taken(self, keys: tuple[str, ...], code_U: NDArray[np.int64], inverse_B: NDArray[np.int32]) -> InverseJagged:
        """The rows with these numbers. Windows are consumed in order, so that earlier ones are dropped."""
        while len(code_U) and len(self._windows) > 1 and self._windows[1][0] <= code_U.min():
            self._windows.popleft()
        row_U = code_U - self._windows[0][0]
        features = zip(*(parts for _, parts in self._windows), strict=True)
        return InverseJagged(keys, *joined([take_rows(*joined(parts), row_U) for parts in features]), inverse_B)
