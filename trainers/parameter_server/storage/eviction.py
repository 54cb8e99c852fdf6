"""Evicts rows that were not seen for long, in steps so small that no request waits for one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from elastrec.trainers.parameter_server.storage.kernels import access
from elastrec.trainers.parameter_server.storage.kernels.arrays import COUNT, REST

if TYPE_CHECKING:
    from elastrec.trainers.parameter_server.storage.store import RowStore

_STEP_ROWS = 16_384
"""Cells per lock if no request waits for it: half a millisecond, slightly more if all of them are evicted."""


def steps(store: RowStore, now_seconds: float) -> Iterator[int]:
    """See RowStore.eviction_steps."""
    if not store.evicts:
        return
    memories = store.rows_memory, store.waiting_memory
    for bucket in store.buckets_in_use():
        for kind, word in enumerate((store.layout.seen_word, REST)):
            memory, report = memories[kind], np.array([0, 0, -1, 0], np.int64)
            while memory.shelf.pool.buckets[bucket, COUNT] and report[2]:
                before = int(report[3])
                with store.locked(bucket) as stripe:
                    access.evict(
                        memory.shelf, store.tombs_memory.pool, store.marks, bucket, stripe, word, int(now_seconds),
                        int(store.group.evict_after_seconds), _STEP_ROWS, store.salts, kind, store.entries,
                        store.locks.words, report,
                    )  # fmt: skip
                    released = [each.take_released(stripe) for each in memories]
                    if report[0] != access.DONE:
                        store.provide(stripe, report)
                    if report[3] > before:
                        store.moves[stripe] += 1
                for each, slabs in zip(memories, released, strict=True):
                    each.give_back(slabs)
                yield int(report[3]) - before
