"""Eviction of rows and candidates that were not seen for the group's `evict_after`, in short steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from elastrec.trainers.parameter_server.storage.kernels import access
from elastrec.trainers.parameter_server.storage.kernels.arrays import COUNT, REST

if TYPE_CHECKING:
    from elastrec.trainers.parameter_server.storage.store import RowStore

_STEP_ROWS = 16_384
"""Cells that are checked while a lock is held once, if no request waits for it: about half a millisecond."""


def steps(store: RowStore, now_seconds: float, may_change: Callable[[int], bool]) -> Iterator[int]:
    """See RowStore.eviction_steps."""
    if not store.evicts:
        return
    memories = store.rows_memory, store.candidates_memory
    for bucket in store.buckets_in_use():
        for kind, word in enumerate((store.layout.seen_word, REST)):
            memory, report = memories[kind], np.array([0, 0, -1, 0], np.int64)
            # Asked before each step, because a bucket may change its server between two steps.
            while may_change(bucket) and memory.indexed.pool.buckets[bucket, COUNT] and report[2]:
                before = int(report[3])
                with store.locked(bucket) as stripe:
                    access.evict(
                        memory.indexed, store.tombstones_memory.pool, store.marks, bucket, stripe, word,
                        int(now_seconds), int(store.group.evict_after_seconds), _STEP_ROWS, store.salts, kind,
                        store.entries, store.locks.words, report,
                    )  # fmt: skip
                    released = [each.take_released(stripe) for each in memories]
                    if report[0] != access.DONE:
                        store.provide(stripe, report)
                    if report[3] > before:
                        store.moves[stripe] += 1
                for each, slabs in zip(memories, released, strict=True):
                    each.give_back(slabs)
                yield int(report[3]) - before
