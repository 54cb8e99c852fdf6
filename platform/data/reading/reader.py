"""ShardReader: a shard's rows as trainer-ready batches, in an order that only the seed decides.

Memory is bounded by a window of WINDOW_ROWS rows. A shard that fits into one window is shuffled as a whole; a larger
one has its windows shuffled, and the rows inside each. A position counts rows of the shuffled shard, bad rows included,
so that `offset` resumes exactly where another reader stopped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from elastrec.platform.data.entries import DataManifest
from elastrec.platform.data.reading.encode import EncodedRows, RowEncoder
from elastrec.platform.data.reading.plain_window import PlainWindow, PlainWindows
from elastrec.platform.data.reading.raw import RawReader, RawRows
from elastrec.platform.specs.data import BadRows, TrainingData
from elastrec.platform.specs.errors import DataError

WINDOW_ROWS = 262_144


class ShardReader:
    """Reads shards of one manifest. Not for several threads at once.

    Args:
        data: the columns; see `elastrec.platform.data.reading.encode` for the form of a batch.
        manifest: of the same data.
        hash_sizes: per embedding table, ids are taken modulo this.

    Raises:
        SpecError: a feature's name is reserved, or `hash_sizes` names an unknown table.
        DataError: the user's transform cannot be imported.
    """

    def __init__(
        self, data: TrainingData, manifest: DataManifest, *, hash_sizes: Mapping[str, int] | None = None
    ) -> None:
        self.data = data
        self.manifest = manifest
        self._encoder = RowEncoder(data, hash_sizes)
        self._raw = RawReader(data, manifest)
        self._ledger = BadRowLedger(data.bad_rows)
        self._plain = PlainWindows(data, hash_sizes or {}) if PlainWindows.can_be_plain(data) else None

    @property
    def skipped_rows(self) -> int:
        """Different bad rows left out so far by this reader."""
        return self._ledger.rows

    def read(
        self, start: int, length: int, *, seed: int, shuffle: bool, offset: int = 0, batch_size: int
    ) -> Iterator[pa.RecordBatch]:
        """Batches of at most `batch_size` rows; smaller where bad rows were skipped, and the last of the shard.

        Args:
            start, length: the shard's rows in the manifest.
            seed: of the shuffle.
            offset: positions of the (shuffled) shard to leave out: they were trained before.

        Raises:
            DataError: a bad row (or one too many, with `skip`), or a file that cannot be read.
        """
        for batch, _ in self.read_with_offsets(
            start, length, seed=seed, shuffle=shuffle, offset=offset, batch_size=batch_size
        ):
            if batch.num_rows:
                yield batch

    def read_with_offsets(
        self, start: int, length: int, *, seed: int, shuffle: bool, offset: int = 0, batch_size: int
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """As `read`, each batch with the position after its last row; the last position is always `length`.

        A batch whose rows are all bad comes out with no rows, so that its position is not lost.
        """
        if not 0 <= offset <= length:
            raise DataError(f"offset: {offset} is not allowed; allowed: 0 to the shard's length {length}")
        if batch_size < 1:
            raise DataError(f"batch_size: {batch_size} is not allowed; allowed: 1 and above")
        pending: deque[_Rest] = deque()
        held, position, passed = 0, offset, 0
        for first, count, rng in _windows(length, seed if shuffle else None):
            if passed + count <= offset:
                passed += count
                continue
            begin = max(0, offset - passed)
            passed += count
            order = None if rng is None else rng.permutation(count)
            pieces = self._raw.read(start + first, count, together=self._plain is not None)
            pending.extend(self._rests(pieces, count, order, begin, _sizes(count - begin, held, batch_size)))
            held += count - begin
            while held >= batch_size or (held and passed == length):
                taken = min(batch_size, held)
                position += taken
                held -= taken
                yield _first_rows(pending, taken), position

    def read_raw(self, start: int, length: int) -> Iterator[pa.Table]:
        """The rows as the files hold them, in file order, columns of the job only, before any user's transform."""
        for piece in self._raw.read(start, length, transformed=False):
            yield piece.table

    def close(self) -> None:
        """Let go of open files and cached rows."""
        self._raw.close()

    def _rests(
        self,
        pieces: Iterator[RawRows],
        count: int,
        order: NDArray[np.int64] | None,
        begin: int,
        sizes: Sequence[tuple[int, int]],
    ) -> Iterable[_Rest]:
        """Rows of a window from `begin` on: in minibatches as `sizes` says where the rows allow it, else all in one."""
        held: list[RawRows] = []
        if self._plain is not None:
            window = PlainWindow(self._plain, count)
            for piece in pieces:
                held.append(piece)
                if not self._plain.fits(piece.table.schema):
                    # The data will not change: from now on read it in pieces that fit the general way.
                    self._plain = None
                    break
                if not window.add(piece.table):
                    break
            else:
                # The window alone holds the columns, and lets go of each as soon as it has moved it.
                held.clear()
                del piece
                order = np.arange(count) if order is None else order
                return [_Rest(batch, None, 0) for batch in window.batches(order[begin:], sizes)]
        batch, bad_B = self._window(chain(held, pieces), order)
        return [_Rest(batch, bad_B if bad_B.any() else None, begin)]

    def _window(
        self, pieces: Iterable[RawRows], order: NDArray[np.int64] | None
    ) -> tuple[pa.RecordBatch, NDArray[np.bool_]]:
        batches, bad = [], []
        for piece in pieces:
            try:
                encoded = piece.explained(self._encoder.encode(piece.table))
            except DataError as error:
                raise DataError(f"{piece.file.uri}: {error}") from error
            self._ledger.judge(piece.file.uri, piece.first_row, encoded)
            batches.append(encoded.batch)
            bad.append(encoded.bad_B)
        if order is not None:
            bad_B = np.concatenate(bad)
            return _reordered(batches, order), bad_B[order] if bad_B.any() else bad_B
        return pa.concat_batches(batches), np.concatenate(bad)


class BadRowLedger:
    """Counts bad rows, each once however often it is read, and refuses where the job file says so."""

    def __init__(self, policy: BadRows) -> None:
        self._policy = policy
        self._seen: set[tuple[str, int]] = set()

    @property
    def rows(self) -> int:
        return len(self._seen)

    def judge(self, uri: str, first_row: int, encoded: EncodedRows) -> None:
        """Look at rows of one file, of which the first is number `first_row`.

        Raises:
            DataError: there is a bad row and the policy is `fail`, or one more than `at_most`.
        """
        reason = encoded.first_bad
        if reason is None:
            return
        text = f"{uri}: row {first_row + reason.row}, {reason.reason}"
        if self._policy.policy == "fail":
            raise DataError(f"{text}; fix the file, or allow such rows with data.bad_rows.policy: skip")
        self._seen.update((uri, first_row + row) for row in np.flatnonzero(encoded.bad_B).tolist())
        if len(self._seen) > self._policy.at_most:
            raise DataError(
                f"{len(self._seen)} bad rows, data.bad_rows.at_most allows {self._policy.at_most}; one of them: {text}"
            )


def _windows(length: int, seed: int | None) -> Iterator[tuple[int, int, np.random.Generator | None]]:
    """(first row, rows, generator of the inner shuffle) in the order in which the windows are read."""
    starts = list(range(0, length, WINDOW_ROWS))
    order = np.arange(len(starts))
    if seed is not None and len(starts) > 1:
        order = np.random.default_rng(seed).permutation(len(starts))
    for index in order.tolist():
        rng = None if seed is None else np.random.default_rng([seed, index])
        yield starts[index], min(WINDOW_ROWS, length - starts[index]), rng


def _sizes(count: int, held: int, batch_size: int) -> list[tuple[int, int]]:
    """How `count` rows are cut into minibatches when `held` rows (fewer than a minibatch's) wait: (minibatches, rows).

    The first completes what waits, the last waits in its turn.
    """
    first = min(count, batch_size - held) if held else 0
    whole, last = divmod(count - first, batch_size)
    return [(n, rows) for n, rows in ((1, first), (whole, batch_size), (1, last)) if n and rows]


def _reordered(batches: list[pa.RecordBatch], order: NDArray[np.int64]) -> pa.RecordBatch:
    """The batches' rows in another order; row k of the result is row order[k] of all of them.

    Pieces are joined column by column in memory that stays in the processor's cache: picking rows out of the pieces
    themselves, or scattering into fresh memory, waits for memory at every row.
    """
    schema = batches[0].schema
    columns = []
    joined: dict[int, NDArray[np.uint8]] = {}
    for index, kind in enumerate(schema.types):
        parts = [batch.column(index) for batch in batches]
        if pa.types.is_list(kind):
            columns.append(pa.concat_arrays(parts).take(pa.array(order)))
            continue
        fixed = pa.types.is_fixed_size_list(kind)
        shape = (-1, kind.list_size) if fixed else (-1,)
        flat = [np.asarray(part.flatten() if fixed else part).reshape(shape) for part in parts]
        wide = flat[0].dtype.itemsize * (kind.list_size if fixed else 1)
        room = joined.setdefault(wide, np.empty(len(order) * wide, np.uint8))
        whole = room.view(flat[0].dtype).reshape(shape)
        np.concatenate(flat, out=whole)
        # Without a check of each index, which are a permutation's: half the time.
        mixed = np.take(whole, order, axis=0, mode="clip")
        values = pa.array(mixed.reshape(-1))
        columns.append(pa.FixedSizeListArray.from_arrays(values, kind.list_size) if fixed else values)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


@dataclass
class _Rest:
    """Rows that wait to be handed out.

    Attributes:
        batch: all of the window, or one of its minibatches.
        bad_B: bool [B], rows to leave out; None when there are none.
        begin: the first row that is left.
    """

    batch: pa.RecordBatch
    bad_B: NDArray[np.bool_] | None
    begin: int


def _first_rows(pending: deque[_Rest], count: int) -> pa.RecordBatch:
    """Take `count` positions from the front, without their bad rows."""
    parts = []
    while count:
        rest = pending[0]
        begin, end = rest.begin, min(rest.begin + count, rest.batch.num_rows)
        # A slice is another batch, of which nobody knows any more how it lies in memory.
        part = rest.batch if end - begin == rest.batch.num_rows else rest.batch.slice(begin, end - begin)
        if rest.bad_B is not None and (bad := rest.bad_B[begin:end]).any():
            part = part.filter(pa.array(~bad))
        parts.append(part)
        count -= end - begin
        rest.begin = end
        if end == rest.batch.num_rows:
            pending.popleft()
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)
