"""One virtual bucket of a store: its changes since a version, and its transfer between stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from elastrec.checkpoints.rows import cell_ids, cell_tables
from elastrec.platform.specs.errors import CheckpointError, ElastrecError, IncompatibleError
from elastrec.trainers.parameter_server.storage.columns import DELETED_WORDS
from elastrec.trainers.parameter_server.storage.kernels.arrays import (
    CELL_VERSION,
    COUNT,
    FROZEN,
    LAST,
    LOG_FROM,
    LOGGING,
    VERSION,
    IndexedPool,
    Pool,
)
from elastrec.trainers.parameter_server.storage.kernels.changes import copy_back, copy_before, copy_logged
from elastrec.trainers.parameter_server.storage.layout import CANDIDATE_WORDS
from elastrec.trainers.parameter_server.storage.loading import ForeignCellError, look_up_cells

if TYPE_CHECKING:
    from elastrec.trainers.parameter_server.storage.store import Lookup, RowStore

Array = np.ndarray[Any, Any]

COPY_STEP_CELLS = 16_384
"""Cells that are copied while a lock is held once: about half a millisecond."""
_STEP_BYTES = 2**20
"""The same limit in bytes, for wide cells."""
PART_BYTES = 2**22
"""Size of one part of a bucket, which both servers hold in memory.

Memory of this size is used again for the next part. Larger parts need more pages that the process did not have, and
supplying and clearing pages was half of what copying cost a server of 0.04 cores.
"""
_LOG_VERSION = 1  # the word of a log entry that holds the version
LISTED_PARTS = 32
"""Largest listing of changes, in parts. It is sent in one answer, so this is at most a quarter of a frame."""


class ThawedError(CheckpointError):
    """A bucket was thawed while it was copied, so the copy is incomplete."""


@dataclass(frozen=True)
class Changes:
    """The contents of a bucket, or the next part of them, or the changes of a bucket since a version.

    Attributes:
        is_whole: True: the receiver empties its bucket first. False: it removes the ids of `deleted`, then inserts
            `rows` and `candidates`.
        version: version of the bucket when the listing began. Later changes have higher versions; a part that is copied
            after such a change already contains it.
        rows, candidates: [n, W], [c, 5] uint32 cells.
        deleted: [d, 4] uint32 tombstones: id (two words), version, table.
        left: numbers of rows and candidates that are still to be copied; (0, 0): the listing is complete.
    """

    is_whole: bool
    version: int
    rows: Array
    candidates: Array
    deleted: Array
    left: tuple[int, int] = (0, 0)

    @property
    def size_bytes(self) -> int:
        return self.rows.nbytes + self.candidates.nbytes + self.deleted.nbytes


@dataclass(frozen=True)
class _Log:
    """The extent of a bucket's log, or of its tombstones, at one moment.

    Attributes:
        version_word: the word of an entry that holds the version.
        entries: number of entries.
        slab, in_slab: the last slab (-1: no entries) and the number of entries in it.
        cells: number of the bucket's cells.
    """

    pool: Pool
    version_word: int
    entries: int
    slab: int
    in_slab: int
    cells: int

    @classmethod
    def of(cls, pool: Pool, version_word: int, bucket: int, cells: int) -> _Log:
        entries = int(pool.buckets[bucket, COUNT])
        if not entries:
            return cls(pool, version_word, 0, -1, 0, cells)
        in_slab = (entries - 1) % pool.shape.per_slab + 1
        return cls(pool, version_word, entries, int(pool.buckets[bucket, LAST]), in_slab, cells)


def _step_cells(pool: Pool) -> int:
    """Cells that are copied while a lock is held once."""
    return max(1, min(COPY_STEP_CELLS, _STEP_BYTES // (4 * pool.shape.width)))


class Bucket:
    """A handle to a bucket of a store. Several handles to one bucket may exist; the state is in the store."""

    def __init__(self, store: RowStore, number: int) -> None:
        self._store = store
        self.number = number

    @property
    def _indexed_pools(self) -> tuple[IndexedPool, IndexedPool]:
        return self._store.rows_memory.indexed, self._store.candidates_memory.indexed

    @property
    def rows(self) -> int:
        return int(self._indexed_pools[0].pool.buckets[self.number, COUNT])

    @property
    def size_bytes(self) -> int:
        """Bytes of its rows and candidates, which a copy of the bucket contains."""
        pools = [indexed.pool for indexed in self._indexed_pools]
        return sum(4 * pool.shape.width * count for pool, count in zip(pools, self._cell_counts, strict=True))

    @property
    def version(self) -> int:
        """The number of marks and freezes of the bucket so far, on all servers that have owned it."""
        return int(self._store.marks[self.number, VERSION])

    @property
    def is_frozen(self) -> bool:
        return bool(self._store.marks[self.number, FROZEN] >= 0)

    def mark(self) -> int:
        """Raises the bucket's version and returns the earlier one. Later changes are logged, to be listed."""
        with self._store.locked(self.number):
            return self._mark()

    def _mark(self) -> int:
        marks = self._store.marks[self.number]
        before = int(marks[VERSION])
        marks[VERSION] += 1
        # A copy of a frozen bucket may still need the old log and tombstones.
        if not marks[LOGGING] and not self.is_frozen:
            self._store.rows_memory.drop_log(self.number)
            self._store.candidates_memory.drop_log(self.number)
            self._store.cuts.drop_tombstones(self.number)
            marks[LOGGING], marks[LOG_FROM] = 1, before
        return before

    def changes(self, since: int, left: tuple[int, int] = (0, 0), part_bytes: int = PART_BYTES) -> Changes:
        """Lists the changes since `mark` returned the version `since`, and marks the bucket again.

        The whole bucket is listed instead, in parts, if `since` is -1, if the log does not reach back to `since` (none
        was begun, or it ended because it was full), or if the changes are larger than `LISTED_PARTS` parts.

        Args:
            left: for the next part of a whole bucket: `left` of the previous part, with its version as `since`. (0, 0)
                begins a new listing.
            part_bytes: size of the cells in a part; a part has at least one cell.

        Raises:
            ElastrecError: the bucket is frozen and its changes are not logged. Thaw it first.
        """
        version, marked = since, None
        with self._store.locked(self.number):
            is_logged = self._is_logged_since(since)
            is_next = is_logged and left != (0, 0)
            if is_logged and not is_next:
                marked = self._mark(), self._logs()
        if marked is not None:
            listing = self._listing(since, *marked, LISTED_PARTS * part_bytes)
            if listing is not None:
                return listing
        if not is_next:
            with self._store.locked(self.number):
                if self.is_frozen and not self._store.marks[self.number, LOGGING]:
                    raise ElastrecError(
                        f"bucket {self.number} is frozen, and its changes are not logged; thaw it first"
                    )
                version, left = self._mark(), self._cell_counts
        rows, rows_left = self._part(0, left[0], part_bytes)
        candidates, candidates_left = self._part(1, left[1], part_bytes - rows.nbytes)
        nothing = np.empty((0, 4), np.uint32)
        return Changes(not is_next, version, rows, candidates, nothing, (rows_left, candidates_left))

    @property
    def _cell_counts(self) -> tuple[int, int]:
        """Numbers of rows and candidates."""
        rows, candidates = (int(indexed.pool.buckets[self.number, COUNT]) for indexed in self._indexed_pools)
        return rows, candidates

    def _is_logged_since(self, version: int) -> bool:
        """Whether the logs reach back to a version. The lock is held."""
        marks = self._store.marks[self.number]
        return version >= 0 and bool(marks[LOGGING]) and version >= marks[LOG_FROM]

    def _logs(self) -> list[_Log]:
        """The extents of the logs of rows and of candidates, and of the tombstones. The lock is held."""
        indexed_pools, tombstones = self._indexed_pools, self._store.tombstones_memory.pool
        pools = [(indexed.log, _LOG_VERSION) for indexed in indexed_pools] + [(tombstones, CELL_VERSION)]
        return [
            _Log.of(pool, word, self.number, cells)
            for (pool, word), cells in zip(pools, (*self._cell_counts, 0), strict=True)
        ]

    def _listing(self, since: int, version: int, logs: Sequence[_Log], most_bytes: int) -> Changes | None:
        """Copies the changes after `since` up to `version`, in small steps.

        Returns None if they are larger than `most_bytes`, or if the logs ended during the copy. Cells that change or
        move during the copy have a later version and belong to the next listing.
        """
        rows_log, candidates_log, tombstones = logs
        deleted = self._copy_back(tombstones, since)
        if deleted is None:
            return None
        left_bytes, listed = most_bytes - deleted.nbytes, []
        for indexed, log in zip(self._indexed_pools, (rows_log, candidates_log), strict=True):
            entries = self._copy_back(log, since)
            cells = None if entries is None else self._copy_logged(indexed.pool, log, entries, left_bytes)
            if cells is None:
                return None
            left_bytes -= cells.nbytes
            listed.append(cells)
        rows, candidates = listed
        return Changes(False, version, rows, candidates, deleted)

    def _copy_back(self, log: _Log, since: int) -> Array | None:
        """Copies the entries of a log, or the tombstones, after a version; None: the log ended during the copy."""
        cursor, is_over = np.array([log.slab, log.in_slab, 0], np.int64), False
        out = np.empty((log.entries, log.pool.shape.width), np.uint32)
        while not is_over:
            with self._store.locked(self.number) as stripe:
                if not self._is_logged_since(since):
                    return None
                is_over = copy_back(
                    log.pool, log.version_word, since, self._store.locks.words, stripe, COPY_STEP_CELLS, cursor, out
                )
        return out[: cursor[2]]

    def _copy_logged(self, pool: Pool, log: _Log, entries: Array, most_bytes: int) -> Array | None:
        """Copies the cells that log entries name; None: they are larger than `most_bytes`.

        If the log ends during the copy, later moves are not logged, and cells may be missing. The next listing then
        contains the whole bucket.
        """
        cell_bytes = 4 * pool.shape.width
        out = np.empty((min(len(entries), max(0, most_bytes) // cell_bytes), pool.shape.width), np.uint32)
        seen, progress = np.zeros(log.cells // 64 + 1, np.uint64), np.zeros(2, np.int64)
        step, is_over = _step_cells(pool), False
        while not is_over:
            before = int(progress[0])
            with self._store.locked(self.number) as stripe:
                is_over = copy_logged(
                    pool, self.number, entries, self._store.locks.words, stripe, step, seen, progress, out
                )
            if progress[0] == before and not is_over:
                return None  # no room for the next cell
        return out[: progress[1]]

    def _part(self, kind: int, end: int, most_bytes: int) -> tuple[Array, int]:
        """Copies cells with numbers below `end`, highest first; returns them and the number below which cells remain.

        A cell changes its number only to a lower one, when it is the last and moves into the place of a removed cell.
        So no cell below `end` is missed, but one that was copied may be copied again.

        Args:
            kind: 0: rows; 1: candidates.
        """
        pool = self._indexed_pools[kind].pool
        cell_bytes = 4 * pool.shape.width
        step, filled = _step_cells(pool), 0
        room = 0 if most_bytes <= 0 and kind else max(1, most_bytes // cell_bytes)
        out = np.empty((min(end, room), pool.shape.width), np.uint32)
        while end and filled < len(out):
            with self._store.locked(self.number) as stripe:
                end, copied = copy_before(
                    pool, self.number, end, self._store.locks.words, stripe, out[filled : filled + min(end, step)]
                )
            filled += copied
        return out[:filled], end

    def forget_changes(self, version: int) -> None:
        """Frees log entries and tombstones that only listings since versions before `version` need.

        Such a listing then contains the whole bucket. What a save needs, in progress or as a delta of an earlier save,
        is kept.
        """
        with self._store.locked(self.number):
            self._store.cuts.trim_listed(self.number, version)

    def take_in(self, changes: Changes) -> None:
        """Applies changes that another store listed for this bucket. Parts of a bucket are applied in their order.

        Raises:
            ElastrecError: the bucket is frozen, or this store does not own it.
            IncompatibleError: a cell does not belong to this bucket, or to none of its tables; nothing was changed.
            ServerMemoryError: no room for more rows.
        """
        store = self._store
        if self.is_frozen or not store.owned[self.number]:
            raise ElastrecError(f"bucket {self.number} cannot take rows in: it is frozen, or another server owns it")
        rows = self._look_up("rows", changes.rows, store.layout.width)
        candidates = self._look_up("candidates", changes.candidates, CANDIDATE_WORDS)
        deleted = self._look_up("deleted", changes.deleted, DELETED_WORDS)
        if changes.is_whole and any(self._cell_counts):
            store.forget_bucket(self.number)
            self.own()
        # A part that was copied after a later mark has later versions. No cell may be newer than its bucket.
        versions = [int(cells[:, CELL_VERSION].max()) for cells in (changes.rows, changes.candidates) if len(cells)]
        with store.locked(self.number):
            latest = max(changes.version, *versions) if versions else changes.version
            store.marks[self.number, VERSION] = max(store.marks[self.number, VERSION], latest + 1)
            if changes.is_whole:
                # At once, because each growth of an index run inserts all cells again.
                store.rows_memory.grow_for(self.number, len(changes.rows) + changes.left[0], store.salts)
        if deleted is not None:
            store.remove(deleted)
        for kind, (lookup, cells) in enumerate(((rows, changes.rows), (candidates, changes.candidates))):
            if lookup is not None:
                store.insert(lookup, cells, kind=kind)

    def _look_up(self, what: str, cells: Array, width: int) -> Lookup | None:
        """A lookup of cells from another server; None: there are no cells."""
        if not len(cells):
            return None
        if cells.dtype != np.uint32 or cells.shape != (len(cells), width):
            raise IncompatibleError(
                f"bucket {self.number}: {what} came as {cells.dtype} {list(cells.shape)}; allowed: uint32 "
                f"[{len(cells)}, {width}]; {IncompatibleError.remedy}"
            )
        try:
            return look_up_cells(self._store, cells, np.full(len(cells), self.number, np.int32))
        except ForeignCellError as error:
            tables, cell = len(self._store.salts), cells[error.number : error.number + 1]
            raise IncompatibleError(
                f"bucket {self.number}: {what}, cell {error.number}: id {int(cell_ids(cell)[0])} of table "
                f"{int(cell_tables(cell)[0])} is not allowed; allowed: ids of this bucket in the tables 0 to "
                f"{tables - 1}; {IncompatibleError.remedy}"
            ) from error

    def own(self) -> None:
        """Makes the bucket owned by this store; it may be empty."""
        with self._store.locked(self.number) as stripe:
            self._store.owned[self.number] = True
            self._store.moves[stripe] += 1

    def drop(self) -> None:
        """Drops the bucket and frees its memory; requests for it are refused until `own`."""
        self._store.forget_bucket(self.number)
