"""One virtual bucket of a store: copied in parts while it is written to, listed by version, moved, dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from elastrec.platform.specs.errors import CheckpointError, ElastrecError
from elastrec.trainers.parameter_server.storage.kernels.arrays import (
    CELL_VERSION,
    COUNT,
    FROZEN,
    LOG_FROM,
    LOGGING,
    VERSION,
    Shelf,
)
from elastrec.trainers.parameter_server.storage.kernels.changes import changed_places, copy_before, copy_cells, gather
from elastrec.trainers.parameter_server.storage.loading import look_up_cells

if TYPE_CHECKING:
    from elastrec.trainers.parameter_server.storage.store import RowStore

Array = np.ndarray[Any, Any]

COPY_STEP_CELLS = 16_384
"""Copied under one lock: about half a millisecond."""
_STEP_BYTES = 2**20
"""Copied under one lock where cells are wide."""
PART_BYTES = 2**24
"""Of one part of a bucket; both servers hold it in memory."""
_LISTED_PARTS = 8
"""A listing is in one answer, however long: a quarter of a frame at most."""


class ThawedError(CheckpointError):
    """A copy was given up while it was made."""


@dataclass(frozen=True)
class Changes:
    """What a bucket holds, or what has changed in it since a version; or the next part of either.

    Attributes:
        is_whole: the receiver empties its bucket first; else it removes `deleted` and then enters the others.
        version: of the bucket when the listing began: changes since then are later ones, and a part that was copied
            after them has them already.
        rows, candidates: [n, W], [c, 5] uint32 cells.
        deleted: [d, 4] uint32: ids (two words), version, table.
        left: rows and candidates of the bucket that are still to be copied; what was passed here is complete at
            (0, 0).
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
        """How often the bucket was marked or frozen, wherever it lay."""
        return int(self._store.marks[self.number, VERSION])

    @property
    def is_frozen(self) -> bool:
        return bool(self._store.marks[self.number, FROZEN] >= 0)

    def mark(self) -> int:
        """The version that the bucket has had so far. From now on changes are listed at what they cost."""
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
        """What has changed after `mark` returned this version, and a mark; -1: everything.

        It is everything also where the log does not reach back that far: it was never begun, or had become longer than
        a quarter of the bucket; and where the listing would be longer than some parts. Everything comes in parts.

        Args:
            left: of the part before this one, with its version as `since`: its next part. (0, 0): no part is missing.
            part_bytes: of cells in a part; one cell in any case.

        Raises:
            ElastrecError: the bucket is frozen, and its changes are not logged: only once it is thawed is there a
                version from which they are.
        """
        with self._store.locked(self.number):
            marks, version = self._store.marks[self.number], since
            is_logged = since >= 0 and bool(marks[LOGGING]) and since >= marks[LOG_FROM]
            is_next = is_logged and left != (0, 0)
            if is_logged and not is_next:
                listing = self._listing(since, _LISTED_PARTS * part_bytes)
                if listing is not None:
                    return listing
            if not is_next:
                if self.is_frozen and not marks[LOGGING]:
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

    def _listing(self, since: int, most_bytes: int) -> Changes | None:
        """What has changed after a version that the logs reach back to, and a mark; None: more than so many bytes."""
        places = [self._changed_places(shelf, since) for shelf in self._shelves]
        deleted = self._deleted(since)
        pools = [shelf.pool for shelf in self._shelves]
        if deleted.nbytes + sum(4 * pool.shape.width * len(each) for pool, each in zip(pools, places, strict=True)) > (
            most_bytes
        ):
            return None
        cells = [np.empty((len(each), pool.shape.width), np.uint32) for pool, each in zip(pools, places, strict=True)]
        for pool, each, out in zip(pools, places, cells, strict=True):
            gather(pool, each, out)
        rows, candidates = cells
        return Changes(False, self._mark(), rows, candidates, deleted)

    def _part(self, kind: int, end: int, most_bytes: int) -> tuple[Array, int]:
        """Cells of one shelf with numbers below `end`, the last ones first, and how many numbers are left.

        A cell changes its number only when it moves into the place of a removed one, from the end: what was passed
        never comes to lie below `end`, and what lies there is not lost.
        """
        pool = self._shelves[kind].pool
        cell_bytes = 4 * pool.shape.width
        step, parts = max(1, min(COPY_STEP_CELLS, _STEP_BYTES // cell_bytes)), []
        room = 0 if most_bytes <= 0 and kind else max(1, most_bytes // cell_bytes)
        while end and room:
            part = np.empty((min(end, step, room), pool.shape.width), np.uint32)
            with self._store.locked(self.number) as stripe:
                end, copied = copy_before(pool, self.number, end, self._store.locks.words, stripe, part)
            parts.append(part[:copied])
            room -= copied
        return np.concatenate(parts) if parts else np.empty((0, pool.shape.width), np.uint32), end

    def forget_changes(self, version: int) -> None:
        """Frees what only listings since a version before this one need; those become whole.

        A save that is being copied, or may build on an earlier one, keeps what it needs.
        """
        with self._store.locked(self.number):
            self._store.cuts.trim_listed(self.number, version)

    def _changed_places(self, shelf: Shelf, since: int) -> Array:
        entries, held = (int(pool.buckets[self.number, COUNT]) for pool in (shelf.log, shelf.pool))
        places = np.empty(entries, np.int64)
        if not entries:
            return places
        return places[: changed_places(shelf, self.number, since, np.zeros(held // 64 + 1, np.uint64), places)]

    def _deleted(self, since: int) -> Array:
        tombs = self._store.tombs_memory.pool
        cells = np.empty((int(tombs.buckets[self.number, COUNT]), tombs.shape.width), np.uint32)
        found, _ = copy_cells(tombs, self.number, since, 0, cells)
        return cells[:found]

    def take_in(self, changes: Changes) -> None:
        """Takes what `changes` of the same bucket of another store lists, versions included; parts in their order.

        Raises:
            ElastrecError: the bucket is frozen, or not this store's.
            ServerMemoryError: no room for more rows.
        """
        store = self._store
        if self.is_frozen or not store.owned[self.number]:
            raise ElastrecError(f"bucket {self.number} cannot take rows in: it is frozen, or not this server's")
        if changes.is_whole and any(self._held):
            store.forget_bucket(self.number)
            self.own()
        # A part that was copied after a later mark holds later versions: no cell may have one that is yet to come.
        versions = [int(cells[:, CELL_VERSION].max()) for cells in (changes.rows, changes.candidates) if len(cells)]
        with store.locked(self.number):
            latest = max(changes.version, *versions) if versions else changes.version
            store.marks[self.number, VERSION] = max(store.marks[self.number, VERSION], latest + 1)
            if changes.is_whole:
                # At once: a run that grows is laid out anew every time.
                store.rows_memory.grow_for(self.number, len(changes.rows) + changes.left[0], store.salts)
        if len(changes.deleted):
            store.remove(look_up_cells(store, changes.deleted, None))
        for kind, cells in enumerate((changes.rows, changes.candidates)):
            if len(cells):
                store.enter(look_up_cells(store, cells, None), cells, kind=kind)

    def own(self) -> None:
        """The bucket is this store's from now on; it may be empty."""
        with self._store.locked(self.number) as stripe:
            self._store.owned[self.number] = True
            self._store.moves[stripe] += 1

    def drop(self) -> None:
        """Forgets the bucket and returns its memory; requests for it are refused until `own`."""
        self._store.forget_bucket(self.number)
