"""Copies the contents of stores as records do."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from elastrec.trainers.parameter_server.storage import RowStore
from elastrec.trainers.parameter_server.storage.columns import Columns, candidate_columns, row_columns
from elastrec.trainers.parameter_server.storage.copying import ROWS, Copied, copy_frozen
from elastrec.trainers.parameter_server.storage.loading import load


def copied(store: RowStore, buckets: Iterable[int] | None = None, chunk_bytes: int = 1 << 20) -> list[Copied]:
    """Freezes buckets, all by default, and copies them."""
    chosen = np.flatnonzero(store.owned) if buckets is None else np.array(list(buckets), np.int64)
    store.cuts.freeze(chosen)
    return list(copy_frozen(store, chosen, chunk_bytes))


def take(store: RowStore, chunks: Iterable[Copied]) -> None:
    """Enters copies of another store of the same plan, where the store owns their buckets."""
    for chunk in chunks:
        load(store, chunk.kind, chunk.cells.copy(), np.repeat(chunk.buckets, chunk.counts), keep_versions=False)


def columns_of(store: RowStore, kind: int = ROWS, buckets: Iterable[int] | None = None) -> Columns:
    """Columns of all rows, or candidates, with their `buckets`."""
    found = []
    for chunk in copied(store, buckets):
        if chunk.kind == kind:
            columns = row_columns(store.layout, chunk.cells) if kind == ROWS else candidate_columns(chunk.cells)
            found.append({**columns, "buckets": np.repeat(chunk.buckets, chunk.counts)})
    return {name: np.concatenate([columns[name] for columns in found]) for name in found[0]} if found else {}
