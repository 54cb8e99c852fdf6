"""Cuts of a store: buckets frozen at one moment for a copy, and the versions from which a delta save is possible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from elastrec.platform.specs.errors import ElastrecError
from elastrec.trainers.parameter_server.storage.kernels.arrays import (
    CELL_VERSION,
    COPIED,
    COUNT,
    FROZEN,
    LOG_FROM,
    LOGGING,
    VERSION,
)
from elastrec.trainers.parameter_server.storage.kernels.locks import Locks
from elastrec.trainers.parameter_server.storage.kernels.pools import cut_first
from elastrec.trainers.parameter_server.storage.memory import PoolMemory
from elastrec.trainers.parameter_server.storage.shelves import ShelfMemory, detach

Array = np.ndarray[Any, Any]

_NEVER = np.iinfo(np.int64).max
_REMEMBERED = 4
"""Number of saves whose versions are kept, because the last one may not have become a record."""


class Cuts:
    """Those of one store, of whose memory and marks this is a part; `RowStore` describes the arrays.

    Args:
        shelves: of rows and of candidates.

    Attributes:
        logs: whether a freeze begins to log later changes, so that a later save can be a delta.
        frozen_rows: [T] int64, rows by table at the last freeze.
    """

    def __init__(
        self,
        shelves: tuple[ShelfMemory, ShelfMemory],
        tombs: PoolMemory,
        marks: Array,
        stripe_of: Array,
        locks: Locks,
        entries: Array,
    ) -> None:
        self._shelves, self._tombs, self._marks = shelves, tombs, marks
        self._stripe_of, self._locks, self._entries = stripe_of, locks, entries
        self.logs = False
        self.frozen_rows = np.zeros(entries.shape[1], np.int64)
        # [V] int64, since when the changes of a frozen bucket were logged when it was frozen.
        self._logged_from = np.full(len(marks), _NEVER, np.int64)
        # By save, [V] int64, the version of each bucket in it.
        self._saved: dict[str, Array] = {}

    def freeze(self, buckets: Sequence[int] | Array) -> None:
        """Freezes these buckets: a copy gives their present contents, whatever is pushed or evicted later.

        The contents are of one moment if nothing is pushed or evicted during this call.

        Raises:
            ElastrecError: one of them is frozen; none was changed, unless another thread freezes them at the same time.
        """
        marks, chosen = self._marks, np.asarray(buckets, np.int64)
        if (marks[chosen, FROZEN] >= 0).any():
            raise ElastrecError("a bucket is frozen already; thaw it, or wait for its copy")
        stripes = self._stripe_of[chosen]
        self.frozen_rows[:] = 0
        for stripe in np.unique(stripes).tolist():
            with self._locks.held(stripe):
                mine = chosen[stripes == stripe]
                self.frozen_rows += self._entries[mine, :, 0].sum(axis=0)
                self._logged_from[mine] = np.where(marks[mine, LOGGING] > 0, marks[mine, LOG_FROM], _NEVER)
                if self.logs:
                    self._begin_logs(mine[marks[mine, LOGGING] == 0])
                self.freeze_held(mine)

    def freeze_held(self, buckets: Array) -> None:
        """Freezes buckets [n] of one stripe, whose lock is held."""
        self._marks[buckets, VERSION] += 1
        self.begin_copies(buckets)

    def begin_copies(self, buckets: Array) -> None:
        """Buckets [n] whose version was raised are frozen as they were before. Their stripe's lock is held."""
        self._marks[buckets, FROZEN] = self._marks[buckets, VERSION] - 1
        for memory in self._shelves:
            memory.shelf.pool.buckets[buckets, COPIED] = 0

    def _begin_logs(self, buckets: Array) -> None:
        """Begins to log changes after this version of each bucket. The lock of their stripe is held."""
        for memory in self._shelves:
            for bucket in buckets[memory.shelf.log.buckets[buckets, COUNT] > 0].tolist():
                memory.drop_log(bucket)
        for bucket in buckets[self._tombs.pool.buckets[buckets, COUNT] > 0].tolist():
            self.drop_tombs(bucket)
        self._marks[buckets, LOGGING], self._marks[buckets, LOG_FROM] = 1, self._marks[buckets, VERSION]

    def thaw(self, buckets: Sequence[int] | Array) -> None:
        """Ends a freeze, with or without a copy; buckets that are not frozen do not change."""
        chosen = np.asarray(buckets, np.int64)
        stripes = self._stripe_of[chosen]
        for stripe in np.unique(stripes).tolist():
            mine = chosen[stripes == stripe]
            with self._locks.held(stripe):
                mine = mine[self._marks[mine, FROZEN] >= 0]
                self._marks[mine, FROZEN] = -1
                for memory in self._shelves:
                    for bucket in mine[memory.shelf.shadows.buckets[mine, COUNT] > 0].tolist():
                        memory.drop_shadows(bucket)

    def remember(self, cut: str, buckets: Array) -> None:
        """Records a save of frozen buckets, full or delta: later changes since it can be requested."""
        versions = np.full(len(self._marks), _NEVER, np.int64)
        versions[buckets] = self._marks[buckets, FROZEN]
        self._saved = {**dict(list(self._saved.items())[1 - _REMEMBERED :]), cut: versions}

    def since(self, cut: str, buckets: Array) -> Array:
        """[b] versions of frozen buckets at a kept cut; -1: later deletions are not known."""
        versions = self._saved.get(cut)
        if versions is None:
            return np.full(len(buckets), -1, np.int64)
        of_cut = versions[buckets]
        return np.where((of_cut < _NEVER) & (self._logged_from[buckets] <= of_cut), of_cut, -1)

    def forget_changes(self, cut: str) -> None:
        """Changes since a cut earlier than this one will not be requested any more."""
        versions = self._saved.get(cut)
        if versions is None:
            return
        pools = (*(memory.log.pool for memory in self._shelves), self._tombs.pool)
        is_long = np.any([pool.buckets[:, COUNT] > pool.shape.per_slab for pool in pools], axis=0)
        chosen = np.flatnonzero(is_long & (versions < _NEVER))
        stripes = self._stripe_of[chosen]
        for stripe in np.unique(stripes).tolist():
            mine = chosen[stripes == stripe]
            with self._locks.held(stripe):
                self.trim(mine, versions[mine])

    def trim_listed(self, bucket: int, version: int) -> None:
        """See Bucket.forget_changes. The lock is held."""
        if self._marks[bucket, FROZEN] >= 0:
            return
        if self.logs:
            version = min([version, *(int(versions[bucket]) for versions in self._saved.values())])
        if version > self._marks[bucket, LOG_FROM]:
            self.trim(np.array([bucket], np.int64), np.array([version], np.int64))

    def trim(self, buckets: Array, versions: Array) -> None:
        """Frees logs that only listings since before versions [b] of buckets [b] of one stripe need. Its lock is
        held."""
        self._marks[buckets, LOG_FROM] = np.maximum(self._marks[buckets, LOG_FROM], versions)
        # Slabs whose entries are all of this version or before.
        for memory, word in (*((memory.log, 1) for memory in self._shelves), (self._tombs, CELL_VERSION)):
            pool = memory.pool
            slabs = np.empty(int((-(-pool.buckets[buckets, COUNT] // pool.shape.per_slab)).sum()), np.int32)
            memory.free(slabs[: cut_first(pool, buckets, word, versions, slabs)].tolist())

    def drop_tombs(self, bucket: int) -> None:
        """Frees a bucket's tombstones. The lock is held."""
        slabs, _ = detach(self._tombs.pool, bucket)
        self._tombs.free(slabs.tolist())

    def forget_bucket(self, bucket: int) -> None:
        """Clears the versions, tombstones and saves of a dropped bucket. The lock is held."""
        self._marks[bucket] = 0
        self._marks[bucket, FROZEN] = -1
        self.drop_tombs(bucket)
        for versions in self._saved.values():
            versions[bucket] = _NEVER
