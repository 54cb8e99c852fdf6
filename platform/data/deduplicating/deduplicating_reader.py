"""DeduplicatingReader: a shard's rows with feature groups in their deduplicated form, encoded once per distinct row.

Repeats are found in the raw columns of each piece that is read, or, where these are no plain numbers, in what they
encode to: the features' steps run once for each distinct row (RecD's O3 and O4, §4.2–4.3). From there on a row is a
number: shuffling and cutting into batches move numbers. Clustered rows are shuffled by session.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from elastrec.platform.data.clustering.session_order import session_order
from elastrec.platform.data.deduplicating.deduplicated_batch import PREFIX, with_groups
from elastrec.platform.data.deduplicating.deduplication import (
    InverseJagged,
    Longs,
    Values,
    first_rows,
    group_codes,
    jagged_parts,
    row_codes,
    take_rows,
)
from elastrec.platform.data.entries import DataManifest
from elastrec.platform.data.features.steps import Column
from elastrec.platform.data.reading.encode import DENSE, LABEL, EncodedRows, RowEncoder, first_bad_of
from elastrec.platform.data.reading.numbers import combined
from elastrec.platform.data.reading.raw import RawReader, RawRows
from elastrec.platform.data.reading.reader import ShardReader, _reordered
from elastrec.platform.specs.data import TrainingData
from elastrec.platform.specs.errors import DataError


@dataclass(frozen=True)
class _Pool:
    """Distinct rows of one group in one window.

    Attributes:
        base: number of the first of them; numbers go on from window to window.
        parts: per feature, values and offsets.
    """

    base: int
    parts: tuple[tuple[Values, Longs], ...]

    @property
    def end(self) -> int:
        return self.base + len(self.parts[0][1]) - 1


class DeduplicatingReader(ShardReader):
    """As `ShardReader`, but batches are those of `deduplicate_batch`.

    Expanded batches hold the rows that ShardReader would give without a shuffle. With one, whole sessions change their
    places, not rows, where the data names a session column. Equal rows of a batch may come as two distinct ones when
    they were read in two pieces; clustered files end their row groups with a session, so that this is rare.

    Args:
        data, manifest, hash_sizes: as for `ShardReader`.
        groups: features that share an inverse lookup, at least one group.

    Raises:
        SpecError, DataError: as `ShardReader`; or the groups are empty, or name a feature twice or one that is not
            among the sparse features.
    """

    def __init__(
        self,
        data: TrainingData,
        manifest: DataManifest,
        *,
        groups: Sequence[Sequence[str]],
        hash_sizes: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(data, manifest, hash_sizes=hash_sizes)
        features = {feature.name: feature for feature in data.sparse}
        named = [name for group in groups for name in group]
        wrong = sorted({name for name in named if name not in features or named.count(name) > 1})
        if wrong or not groups or not all(groups):
            raise DataError(
                f"groups: {wrong or [list(group) for group in groups]} is not allowed; allowed: groups of one or more "
                f"of {', '.join(features)}, each at most once"
            )
        self._groups = tuple(tuple(group) for group in groups)
        plain = [feature.name for feature in data.described_features if feature.name not in named]
        self._encoder = RowEncoder(data, hash_sizes, features=plain)
        # Groups are no columns of numbers, however plain their features are.
        self._plain = None
        self._group_encoders = [RowEncoder(data, hash_sizes, features=group) for group in self._groups]
        grouped = {column for encoder in self._group_encoders for column in encoder.feature_columns}
        self._raw = RawReader(
            data,
            manifest,
            extra=[data.session] if data.session else [],
            keep=frozenset(grouped - {*self._encoder.columns, data.session}),
        )
        label = "float" if len(data.targets) == 1 else f"fixed_size_list[{len(data.targets)}]"
        self._kinds = {LABEL: label, **({DENSE: f"fixed_size_list[{len(data.dense)}]"} if data.dense else {})}
        self._kinds |= {f.name: "list<int64>" if f.is_list else "int64" for f in data.sparse}
        self._pools: list[list[_Pool]] = []

    def read_with_offsets(
        self, start: int, length: int, *, seed: int, shuffle: bool, offset: int = 0, batch_size: int
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """As `ShardReader.read_with_offsets`, in the deduplicated form."""
        pools: list[list[_Pool]] = [[] for _ in self._groups]
        plain = super().read_with_offsets(
            start, length, seed=seed, shuffle=shuffle, offset=offset, batch_size=batch_size
        )
        while True:
            # Two shards may be read in turns by one reader: each has its own distinct rows.
            self._pools = pools
            batch, position = next(plain, (None, 0))
            if batch is None:
                return
            yield self._finished(batch), position

    def _window(
        self, pieces: Iterable[RawRows], order: NDArray[np.int64] | None
    ) -> tuple[pa.RecordBatch, NDArray[np.bool_]]:
        batches, bad, sessions = [], [], []
        found: list[list[tuple[tuple[Values, Longs], ...]]] = [[] for _ in self._groups]
        bases = [pools[-1].end if pools else 0 for pools in self._pools]
        ends = list(bases)
        for piece in pieces:
            encoded, codes, parts = self._encoded(piece)
            self._ledger.judge(piece.file.uri, piece.first_row, encoded)
            batch = encoded.batch
            for g, (code_B, distinct) in enumerate(zip(codes, parts, strict=True)):
                batch = batch.append_column(f"{PREFIX}{g}", pa.array(code_B.astype(np.int64) + ends[g]))
                found[g].append(distinct)
                ends[g] += len(distinct[0][1]) - 1
            batches.append(batch)
            bad.append(encoded.bad_B)
            if self.data.session and order is not None:
                sessions.append(self._sessions(piece))
        for pools, base, rows in zip(self._pools, bases, found, strict=True):
            pools.append(_Pool(base, tuple(_stacked([piece[k] for piece in rows]) for k in range(len(rows[0])))))
        bad_B = np.concatenate(bad)
        if order is None:
            return pa.concat_batches(batches), bad_B
        if sessions:
            order = session_order(pa.chunked_array(sessions), order)
        return _reordered(batches, order), bad_B[order]

    def _sessions(self, piece: RawRows) -> pa.Array:
        if self.data.session not in piece.table.column_names:
            raise DataError(
                f"{piece.file.uri}: the session column {self.data.session!r} is missing; found: "
                f"{', '.join(piece.table.column_names)}; correct data.session, or keep it in data.transform"
            )
        return combined(piece.table[self.data.session])

    def _encoded(
        self, piece: RawRows
    ) -> tuple[EncodedRows, list[NDArray[np.int32]], list[tuple[tuple[Values, Longs], ...]]]:
        """Plain columns, and per group the number of each row and the distinct rows; bad rows of all together."""
        try:
            whole = self._encoder.encode(piece.table)
            bad_B, firsts = whole.bad_B.copy(), [whole.first_bad] if whole.first_bad else []
            codes, parts = [], []
            for group, encoder in zip(self._groups, self._group_encoders, strict=True):
                raw, code_B = self._distinct(piece, encoder.feature_columns)
                read = encoder.read(raw, with_label=False)
                if code_B is None:
                    # Bad rows stand where they stood; what repeats is known only now.
                    found_B, first_bad = read.bad_B, first_bad_of(read.marks)
                    code_B, count = group_codes([code for column in read.columns.values() for code in _codes(column)])
                    read = read.take(first_rows(code_B, count))
                else:
                    found_B, first_bad = read.bad_B[code_B], first_bad_of(read.marks)
                    if first_bad is not None:
                        first_bad = replace(first_bad, row=int(np.argmax(found_B)))
                bad_B |= found_B
                if first_bad is not None:
                    firsts.append(first_bad)
                encoded = encoder.finish(read)
                codes.append(code_B)
                parts.append(tuple(jagged_parts(encoded.batch.column(name), name) for name in group))
        except DataError as error:
            raise DataError(f"{piece.file.uri}: {error}") from error
        first = min(firsts, key=lambda bad: bad.row, default=None)
        return piece.explained(EncodedRows(whole.batch, bad_B, first)), codes, parts

    @staticmethod
    def _distinct(piece: RawRows, names: tuple[str, ...]) -> tuple[pa.Table, NDArray[np.int32] | None]:
        """The distinct rows of raw columns and each row's number; all rows and None where they are no plain numbers."""
        stored = {name for name in names if name not in piece.table.column_names}
        if piece.stored is not None and stored == set(names):
            # The file says what repeats.
            code_B, count = group_codes([piece.stored.codes(name) for name in names])
            return piece.stored.picked(names, first_rows(code_B, count)), code_B
        columns = piece.table.select([name for name in names if name not in stored])
        if piece.stored is not None and stored:
            whole = piece.stored.picked(sorted(stored), np.arange(piece.table.num_rows))
            for name in whole.column_names:
                columns = columns.append_column(name, whole[name])
        parts = {}
        for name in names:
            column = combined(columns[name])
            try:
                parts[name] = jagged_parts(column, name)
            except DataError:
                # Text, nulls and other types have to be encoded before their content can be compared.
                return columns, None
        code_B, count = group_codes([row_codes(*part) for part in parts.values()])
        return columns.combine_chunks().take(pa.array(first_rows(code_B, count))), code_B

    def _finished(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch whose groups are numbers gets their distinct rows."""
        groups = []
        for g, keys in enumerate(self._groups):
            code_B = np.asarray(batch.column(f"{PREFIX}{g}"))
            encoded = pa.array(code_B).dictionary_encode()
            code_U = np.asarray(encoded.dictionary)
            # Windows are consumed in order: what lies before this batch's rows is not needed any more.
            if len(code_U):
                while self._pools[g][0].end <= code_U.min() and len(self._pools[g]) > 1:
                    self._pools[g].pop(0)
            groups.append(_picked(self._pools[g], keys, code_U, np.asarray(encoded.indices)))
        plain = batch.select([name for name in batch.schema.names if not name.startswith(PREFIX)])
        return with_groups(plain, groups, self._kinds)


def _codes(column: Column) -> list[tuple[NDArray[np.int32], int]]:
    """Numbers of a column's rows and how many there are; where values are missing, of what is missing, too."""
    offsets = np.arange(column.rows + 1, dtype=np.int64) if column.offsets is None else column.offsets
    codes = [row_codes(column.values, offsets)]
    return codes if column.missing is None else [*codes, (column.missing.astype(np.int32), 2)]


def _stacked(parts: Sequence[tuple[Values, Longs]]) -> tuple[Values, Longs]:
    """One feature's distinct rows of all pieces, one after the other."""
    begins = np.cumsum([0, *(len(values) for values, _ in parts)])
    offsets = [offsets[1:] + begin for (_, offsets), begin in zip(parts, begins, strict=False)]
    return np.concatenate([values for values, _ in parts]), np.concatenate([np.zeros(1, np.int64), *offsets])


def _picked(
    pools: Sequence[_Pool], keys: tuple[str, ...], code_U: NDArray[np.int64], inverse_B: NDArray[np.int32]
) -> InverseJagged:
    base = pools[0].base
    parts = []
    for k in range(len(keys)):
        values, offsets = pools[0].parts[k] if len(pools) == 1 else _stacked([pool.parts[k] for pool in pools])
        parts.append(take_rows(values, offsets, code_U - base))
    return InverseJagged(keys, *_stacked(parts), inverse_B)
