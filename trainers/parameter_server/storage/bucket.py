"""One virtual bucket of a store: copied in parts while it is written to, listed by version, moved, dropped."""

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
    Pool,
    Shelf,
)
from elastrec.trainers.parameter_server.storage.kernels.changes import copy_back, copy_before, copy_logged
from elastrec.trainers.parameter_server.storage.layout import CANDIDATE_WORDS
from elastrec.trainers.parameter_server.storage.loading import ForeignCellError, look_up_cells

if TYPE_CHECKING:
    from elastrec.trainers.parameter_server.storage.store import Lookup, RowStore

Array = np.ndarray[Any, Any]

COPY_STEP_CELLS = 16_384
"""Copied under one lock: about half a millisecond."""
_STEP_BYTES = 2**20
"""Copied under one lock where cells are wide."""
PART_BYTES = 2**24
"""Of one part of a bucket; both servers hold it in memory."""
_LOG_VERSION = 1  # which word of a log's entry
_LISTED_PARTS = 8
"""A listing is in one answer, however long: a quarter of a frame at most."""


class ThawedError(CheckpointError):
    """A copy was cancelled while it was made."""


@dataclass(frozen=True)
class Changes:
    """The contents of a bucket, or its changes since a version; or the next part of either.

    Attributes:
        is_whole: the receiver empties its bucket first; else it removes `deleted` and then enters the others.
        version: of the bucket when the listing began: later changes have higher versions, and a part that was copied
            after them already contains them.
        rows, candidates: [n, W], [c, 5] uint32 cells.
        deleted: [d, 4] uint32: ids (two words), version, table.
        left: rows and candidates of the bucket that are not copied yet; (0, 0): the listing is complete.
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
    """A bucket's log, or its tombstones, at one moment.

    Attributes:
        version_word: of an entry.
        entries: how many there are; the last ones are `in_slab` of a slab, -1: there are none.
        cells: that the bucket has.
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
    """Copied under one lock."""
    return max(1, min(COPY_STEP_CELLS, _STEP_BYTES // (4 * pool.shape.width)))


class Bucket:
    """A handle; several may stand for one bucket."""

    def __init__(self, store: RowStore, number: int) -> None:
        self._store = store
        self.number = number

    @property
    def _shelves(self) -> tuple[Shelf, Shelf]:
        return self._store.rows_memory.shelf, self._store.waiting_memory.shelf

    @property
    def rows(self) -> int:
        return int(self._shelves[0].pool.buckets[self.number, COUNT])

    @property
    def version(self) -> int:
        """The number of marks and freezes of the bucket, on all servers."""
        return int(self._store.marks[self.number, VERSION])

    @property
    def is_frozen(self) -> bool:
        return bool(self._store.marks[self.number, FROZEN] >= 0)

    def mark(self) -> int:
        """Marks the bucket and returns its version so far. Later changes are logged, so that listing them is cheap."""
        with self._store.locked(self.number):
            return self._mark()

    def _mark(self) -> int:
        marks = self._store.marks[self.number]
        before = int(marks[VERSION])
        marks[VERSION] += 1
        # A copy of a frozen bucket may still need the log and the tombstones that have ended.
        if not marks[LOGGING] and not self.is_frozen:
            self._store.rows_memory.drop_log(self.number)
            self._store.waiting_memory.drop_log(self.number)
            self._store.cuts.drop_tombs(self.number)
            marks[LOGGING], marks[LOG_FROM] = 1, before
        return before

    def changes(self, since: int, left: tuple[int, int] = (0, 0), part_bytes: int = PART_BYTES) -> Changes:
        """The changes after `mark` returned this version, with a new mark; -1: everything.

        It is also everything if the log does not reach back that far (it was never begun, or had become full), or if
        the listing would be longer than some parts. Everything is listed in parts.

        Args:
            left: of the previous part, with its version as `since`, for the next part. (0, 0): no part is missing.
            part_bytes: of cells in a part; one cell in any case.

        Raises:
            ElastrecError: the bucket is frozen, and its changes are not logged; they can be logged from a version after
            its thaw on.
        """
        version, marked = since, None
        with self._store.locked(self.number):
            is_logged = self._is_logged_since(since)
            is_next = is_logged and left != (0, 0)
            if is_logged and not is_next:
                marked = self._mark(), self._logs()
        if marked is not None:
            listing = self._listing(since, *marked, _LISTED_PARTS * part_bytes)
            if listing is not None:
                return listing
        if not is_next:
            with self._store.locked(self.number):
                if self.is_frozen and not self._store.marks[self.number, LOGGING]:
                    raise ElastrecError(
                        f"bucket {self.number} is frozen, and its changes are not logged; thaw it first"
                    )
                version, left = self._mark(), self._held
        rows, rows_left = self._part(0, left[0], part_bytes)
        candidates, candidates_left = self._part(1, left[1], part_bytes - rows.nbytes)
        nothing = np.empty((0, 4), np.uint32)
        return Changes(not is_next, version, rows, candidates, nothing, (rows_left, candidates_left))

    @property
    def _held(self) -> tuple[int, int]:
        rows, candidates = (int(shelf.pool.buckets[self.number, COUNT]) for shelf in self._shelves)
        return rows, candidates

    def _is_logged_since(self, version: int) -> bool:
        """Whether the logs reach back to a version. The lock is held."""
        marks = self._store.marks[self.number]
        return version >= 0 and bool(marks[LOGGING]) and version >= marks[LOG_FROM]

    def _logs(self) -> list[_Log]:
        """Of rows, candidates and tombstones as they are now. The lock is held."""
        shelves, tombs = self._shelves, self._store.tombs_memory.pool
        pools = [(shelf.log, _LOG_VERSION) for shelf in shelves] + [(tombs, CELL_VERSION)]
        return [
            _Log.of(pool, word, self.number, cells) for (pool, word), cells in zip(pools, (*self._held, 0), strict=True)
        ]

    def _listing(self, since: int, version: int, logs: Sequence[_Log], most_bytes: int) -> Changes | None:
        """Changes after `since` up to `version`, copied in small steps.

        None: they are too many bytes, or the logs have ended during the copy. Cells that change or move during the copy
        have a later version and belong to the next listing.
        """
        rows_log, candidates_log, tombs = logs
        deleted = self._copy_back(tombs, since)
        if deleted is None:
            return None
        left_bytes, found = most_bytes - deleted.nbytes, []
        for shelf, log in zip(self._shelves, (rows_log, candidates_log), strict=True):
            entries = self._copy_back(log, since)
            cells = None if entries is None else self._copy_logged(shelf.pool, log, entries, left_bytes)
            if cells is None:
                return None
            left_bytes -= cells.nbytes
            found.append(cells)
        rows, candidates = found
        return Changes(False, version, rows, candidates, deleted)

    def _copy_back(self, log: _Log, since: int) -> Array | None:
        """Entries of a log, or tombstones, after a version; None: it has ended."""
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
        """Cells that entries of a log name; None: they are more than so many bytes.

        If the log ends during the copy, moves are not logged, but the next listing contains everything.
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
                return None  # there is no room for the next one
        return out[: progress[1]]

    def _part(self, kind: int, end: int, most_bytes: int) -> tuple[Array, int]:
        """Cells of one shelf with numbers below `end`, the last ones first, and how many numbers are left.

        A cell changes its number only when the last one moves into the place of a removed one: copied cells never get a
        number below `end`, and no cell below it is lost.
        """
        pool = self._shelves[kind].pool
        cell_bytes = 4 * pool.shape.width
        step, parts = _step_cells(pool), []
        room = 0 if most_bytes <= 0 and kind else max(1, most_bytes // cell_bytes)
        while end and room:
            part = np.empty((min(end, step, room), pool.shape.width), np.uint32)
            with self._store.locked(self.number) as stripe:
                end, copied = copy_before(pool, self.number, end, self._store.locks.words, stripe, part)
            parts.append(part[:copied])
            room -= copied
        return np.concatenate(parts) if parts else np.empty((0, pool.shape.width), np.uint32), end

    def forget_changes(self, version: int) -> None:
        """Frees logs that only listings since earlier versions need; those listings then contain everything.

        A save that is being copied, or may build on an earlier one, keeps what it needs.
        """
        with self._store.locked(self.number):
            self._store.cuts.trim_listed(self.number, version)

    def take_in(self, changes: Changes) -> None:
        """Applies a result of `changes` of the same bucket of another store, with versions; parts in their order.

        Raises:
            ElastrecError: the bucket is frozen, or not this store's.
            IncompatibleError: a cell is not of this bucket or of no table of it; nothing was changed.
            ServerMemoryError: no room for more rows.
        """
        store = self._store
        if self.is_frozen or not store.owned[self.number]:
            raise ElastrecError(f"bucket {self.number} cannot take rows in: it is frozen, or not this server's")
        rows = self._look_up("rows", changes.rows, store.layout.width)
        candidates = self._look_up("candidates", changes.candidates, CANDIDATE_WORDS)
        deleted = self._look_up("deleted", changes.deleted, DELETED_WORDS)
        if changes.is_whole and any(self._held):
            store.forget_bucket(self.number)
            self.own()
        # A part that was copied after a later mark has later versions: no cell may have a future version.
        versions = [int(cells[:, CELL_VERSION].max()) for cells in (changes.rows, changes.candidates) if len(cells)]
        with store.locked(self.number):
            latest = max(changes.version, *versions) if versions else changes.version
            store.marks[self.number, VERSION] = max(store.marks[self.number, VERSION], latest + 1)
            if changes.is_whole:
                # At once: a run that grows is laid out anew every time.
                store.rows_memory.grow_for(self.number, len(changes.rows) + changes.left[0], store.salts)
        if deleted is not None:
            store.remove(deleted)
        for kind, (lookup, cells) in enumerate(((rows, changes.rows), (candidates, changes.candidates))):
            if lookup is not None:
                store.enter(lookup, cells, kind=kind)

    def _look_up(self, what: str, cells: Array, width: int) -> Lookup | None:
        """Cells of another server; None: there are none."""
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
