"""Cuts of a store: the state of many buckets at one moment, and the versions on which a delta save can build."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from elastrec.platform.specs.errors import ElastrecError
from elastrec.trainers.parameter_server.storage.indexed_pools import IndexedPoolMemory, detach
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
from elastrec.trainers.parameter_server.storage.kernels.pools import drop_first_slabs
from elastrec.trainers.parameter_server.storage.memory import PoolMemory

Array = np.ndarray[Any, Any]

_NEVER = np.iinfo(np.int64).max
_REMEMBERED = 4
"""Number of saves whose versions are kept. The last saves may not have become complete records."""


class Cuts:
    """The cuts of one store, which shares its memory and arrays; `RowStore` describes these.

    Args:
        memories: the memory of rows and of candidates.

    Attributes:
        logs: whether a freeze begins a log of later changes, so that the next save can be a delta.
        frozen_rows: [T] int64, rows by table at the last freeze.
    """

    def __init__(
        self,
        memories: tuple[IndexedPoolMemory, IndexedPoolMemory],
        tombstones: PoolMemory,
        marks: Array,
        stripe_of: Array,
        locks: Locks,
        entries: Array,
    ) -> None:
        self._memories, self._tombstones, self._marks = memories, tombstones, marks
        self._stripe_of, self._locks, self._entries = stripe_of, locks, entries
        self.logs = False
        self.frozen_rows = np.zeros(entries.shape[1], np.int64)
        # [V] int64, the version from which a bucket's changes were logged when it was frozen.
        self._logged_from = np.full(len(marks), _NEVER, np.int64)
        # The version of each bucket [V] int64 in a save, by the save's cut.
        self._saved: dict[str, Array] = {}

    def freeze(self, buckets: Sequence[int] | Array) -> None:
        """Freezes buckets: a copy then has their present contents, although requests continue to change them.

        The contents of all buckets are of one moment if no request is served during this call.

        Raises:
            ElastrecError: a bucket is already frozen. None was changed, unless another thread froze some concurrently.
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
        """Freezes buckets [n] at the version before the present one. Their stripe's lock is held."""
        self._marks[buckets, FROZEN] = self._marks[buckets, VERSION] - 1
        for memory in self._memories:
            memory.indexed.pool.buckets[buckets, COPIED] = 0

    def _begin_logs(self, buckets: Array) -> None:
        """Begins a log of changes after the present version of each bucket. The lock of their stripe is held."""
        for memory in self._memories:
            for bucket in buckets[memory.indexed.log.buckets[buckets, COUNT] > 0].tolist():
                memory.drop_log(bucket)
        for bucket in buckets[self._tombstones.pool.buckets[buckets, COUNT] > 0].tolist():
            self.drop_tombstones(bucket)
        self._marks[buckets, LOGGING], self._marks[buckets, LOG_FROM] = 1, self._marks[buckets, VERSION]

    def thaw(self, buckets: Sequence[int] | Array) -> None:
        """Thaws buckets, copied or not. Buckets that are not frozen do not change."""
        chosen = np.asarray(buckets, np.int64)
        stripes = self._stripe_of[chosen]
        for stripe in np.unique(stripes).tolist():
            mine = chosen[stripes == stripe]
            with self._locks.held(stripe):
                mine = mine[self._marks[mine, FROZEN] >= 0]
                self._marks[mine, FROZEN] = -1
                for memory in self._memories:
                    for bucket in mine[memory.indexed.shadows.buckets[mine, COUNT] > 0].tolist():
                        memory.drop_shadows(bucket)

    def remember(self, cut: str, buckets: Array) -> None:
        """Keeps the versions of frozen buckets in a full or delta save, on which a later delta can build."""
        versions = np.full(len(self._marks), _NEVER, np.int64)
        versions[buckets] = self._marks[buckets, FROZEN]
        self._saved = {**dict(list(self._saved.items())[1 - _REMEMBERED :]), cut: versions}

    def since(self, cut: str, buckets: Array) -> Array:
        """Versions [b] of frozen buckets at an earlier cut; -1: the changes since then are not completely known."""
        versions = self._saved.get(cut)
        if versions is None:
            return np.full(len(buckets), -1, np.int64)
        of_cut = versions[buckets]
        return np.where((of_cut < _NEVER) & (self._logged_from[buckets] <= of_cut), of_cut, -1)

    def forget_changes(self, cut: str) -> None:
        """Frees logs of changes before a cut: no later save builds on an earlier cut."""
        versions = self._saved.get(cut)
        if versions is None:
            return
        pools = (*(memory.log.pool for memory in self._memories), self._tombstones.pool)
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
        """Frees log entries and tombstones of buckets [b] up to versions [b]. The lock of their stripe is held."""
        self._marks[buckets, LOG_FROM] = np.maximum(self._marks[buckets, LOG_FROM], versions)
        # Frees the slabs whose entries all have this version or an earlier one.
        for memory, word in (*((memory.log, 1) for memory in self._memories), (self._tombstones, CELL_VERSION)):
            pool = memory.pool
            slabs = np.empty(int((-(-pool.buckets[buckets, COUNT] // pool.shape.per_slab)).sum()), np.int32)
            memory.free(slabs[: drop_first_slabs(pool, buckets, word, versions, slabs)].tolist())

    def drop_tombstones(self, bucket: int) -> None:
        """Frees a bucket's tombstones. The lock is held."""
        slabs, _ = detach(self._tombstones.pool, bucket)
        self._tombstones.free(slabs.tolist())

    def forget_bucket(self, bucket: int) -> None:
        """Clears the versions, tombstones and saved versions of a dropped bucket. The lock is held."""
        self._marks[bucket] = 0
        self._marks[bucket, FROZEN] = -1
        self.drop_tombstones(bucket)
        for versions in self._saved.values():
            versions[bucket] = _NEVER
