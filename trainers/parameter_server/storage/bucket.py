"""One virtual bucket of a store: copied while it is written to, listed by version, moved, dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from elastrec.platform.specs.errors import CheckpointError, ElastrecError
from elastrec.trainers.parameter_server.storage.kernels.arrays import (
    COPIED,
    COUNT,
    FROZEN,
    LOG_FROM,
    LOGGING,
    VERSION,
    Shelf,
)
from elastrec.trainers.parameter_server.storage.kernels.changes import changed_places, copy_cells, copy_frozen, gather
from elastrec.trainers.parameter_server.storage.layout import ids_of, tables_of

if TYPE_CHECKING:
    from elastrec.trainers.parameter_server.storage.store import Lookup, RowStore

Array = np.ndarray[Any, Any]

COPY_STEP_CELLS = 16_384
"""Copied under one lock: about half a millisecond."""


class ThawedError(CheckpointError):
    """A copy was given up while it was made."""


@dataclass(frozen=True)
class Changes:
    """What a bucket holds, or what has changed in it since a version.

    Attributes:
        is_whole: the receiver replaces its bucket; else it removes `deleted` and then enters the others.
        version: of the bucket at the listing: changes since then are later ones.
        rows, candidates: [n, W], [c, 5] uint32 cells.
        deleted: [d, 4] uint32: ids (two words), version, table.
    """

    is_whole: bool
    version: int
    rows: Array
    candidates: Array
    deleted: Array


def _by_table(cells: Array) -> Array:
    return cells[np.argsort(tables_of(cells), kind="stable")]


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

    def freeze(self) -> None:
        """From now on `copy` gives the bucket as it is now, whatever is pushed or evicted.

        Raises:
            ElastrecError: it is frozen.
        """
        with self._store.locked(self.number):
            self._require_thawed()
            self._store.cuts.freeze_held(np.array([self.number]))

    def _require_thawed(self) -> None:
        if self.is_frozen:
            raise ElastrecError(f"bucket {self.number} is frozen already; thaw it, or wait for its copy")

    def copy(self) -> tuple[Array, Array]:
        """Cells of rows [n, W] and candidates [c, 5] of a frozen bucket as it was; once per freeze.

        Takes the lock for some thousand cells at a time, so that requests go on meanwhile.
        """
        first, second = (self._copy_shelf(shelf) for shelf in self._shelves)
        return first, second

    def _copy_shelf(self, shelf: Shelf) -> Array:
        parts = []
        state = shelf.pool.buckets[self.number]
        while True:
            with self._store.locked(self.number):
                self._require_frozen()
                left = int(state[COUNT] - state[COPIED])
                if left <= 0:
                    # Nothing more is put into the shadows: every cell was passed.
                    shadows = np.empty(
                        (int(shelf.shadows.buckets[self.number, COUNT]), shelf.pool.shape.width), np.uint32
                    )
                    copy_cells(shelf.shadows, self.number, -1, 0, shadows)
                    break
                part = np.empty((min(left, COPY_STEP_CELLS), shelf.pool.shape.width), np.uint32)
                parts.append(part[: copy_frozen(shelf, self._store.marks, self.number, part)])
        parts.append(shadows)
        filled = [part for part in parts if len(part)]
        if len(filled) == 1:
            return filled[0]
        return np.concatenate(filled) if filled else shadows

    def _require_frozen(self) -> None:
        if not self.is_frozen:
            raise ThawedError(f"bucket {self.number} was thawed while it was copied; freeze it and copy it again")

    def thaw(self) -> None:
        """Ends a freeze, copied or not; a bucket that is not frozen stays as it is."""
        self._store.cuts.thaw([self.number])

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

    def changes(self, since: int) -> Changes:
        """What has changed after `mark` returned this version, and a mark; -1: everything.

        It is whole also where the log does not reach back that far: it was never begun, or had become longer than a
        quarter of the bucket.
        """
        with self._store.locked(self.number):
            marks = self._store.marks[self.number]
            is_whole = bool(since < 0 or not marks[LOGGING] or since < marks[LOG_FROM])
            if is_whole:
                self._require_thawed()
            else:
                rows, candidates = (self._changed_of(shelf, since) for shelf in self._shelves)
            deleted = np.empty((0, 4), np.uint32) if is_whole else self._deleted(since)
            version = self._mark()
            if is_whole:
                self._store.cuts.begin_copies(np.array([self.number]))
        if is_whole:
            rows, candidates = self.copy()
            self.thaw()
        return Changes(is_whole, version, rows, candidates, deleted)

    def forget_changes(self, version: int) -> None:
        """Frees what only listings since a version before this one need; those become whole."""
        with self._store.locked(self.number):
            self._store.cuts.trim(self.number, version)

    def _changed_of(self, shelf: Shelf, since: int) -> Array:
        entries, held = (int(pool.buckets[self.number, COUNT]) for pool in (shelf.log, shelf.pool))
        if not entries:
            return np.empty((0, shelf.pool.shape.width), np.uint32)
        places = np.empty(entries, np.int64)
        found = changed_places(shelf, self.number, since, np.zeros(held // 64 + 1, np.uint64), places)
        cells = np.empty((found, shelf.pool.shape.width), np.uint32)
        gather(shelf.pool, places[:found], cells)
        return cells

    def _deleted(self, since: int) -> Array:
        tombs = self._store.tombs_memory.pool
        cells = np.empty((int(tombs.buckets[self.number, COUNT]), tombs.shape.width), np.uint32)
        found, _ = copy_cells(tombs, self.number, since, 0, cells)
        return cells[:found]

    def take_in(self, changes: Changes) -> None:
        """Takes what `changes` of the same bucket of another store lists, versions included.

        Raises:
            ElastrecError: the bucket is frozen, or not this store's.
            ServerMemoryError: no room for more rows.
        """
        store = self._store
        if self.is_frozen or not store.owned[self.number]:
            raise ElastrecError(f"bucket {self.number} cannot take rows in: it is frozen, or not this server's")
        if changes.is_whole and (self.rows or self._shelves[1].pool.buckets[self.number, COUNT]):
            store.forget_bucket(self.number)
            self.own()
        with store.locked(self.number):
            store.marks[self.number, VERSION] = max(store.marks[self.number, VERSION], changes.version + 1)
        if len(changes.deleted):
            store.remove(self._look_up(_by_table(changes.deleted)))
        for kind, cells in enumerate((changes.rows, changes.candidates)):
            if len(cells):
                ordered = _by_table(cells)
                store.enter(self._look_up(ordered), ordered, kind=kind)

    def _look_up(self, cells: Array) -> Lookup:
        counts = np.bincount(tables_of(cells), minlength=len(self._store.salts)).astype(np.int32)
        return self._store.look_up(counts, ids_of(cells))

    def own(self) -> None:
        """The bucket is this store's from now on; it may be empty."""
        with self._store.locked(self.number) as stripe:
            self._store.owned[self.number] = True
            self._store.moves[stripe] += 1

    def drop(self) -> None:
        """Forgets the bucket and returns its memory; requests for it are refused until `own`."""
        self._store.forget_bucket(self.number)
