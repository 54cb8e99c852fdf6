"""Minibatches: positions, numpy views and the prefetching thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from elastrec.platform.data import (
    InProcessSource,
    Prefetched,
    ShardReader,
    build_manifest,
    dense_of,
    ids_of,
    label_of,
)
from elastrec.platform.transport.job_messages import Shard
from tests.platform.data.rows import data, table, write_parquet


def _shard(offset: int) -> Shard:
    return Shard(kind="train", epoch=0, index=3, start=20, length=70, offset=offset, attempt=1, seed=5, shuffle=True)


def test_minibatches_know_where_they_end_in_the_shard(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", table(100))
    of = data(tmp_path)
    source = InProcessSource(ShardReader(of, build_manifest(of)), batch_size=32)
    whole = list(source.batches(_shard(0)))
    assert [minibatch.end_offset for minibatch in whole] == [32, 64, 70]
    rest = list(source.batches(_shard(32)))
    assert [(m.batch, m.end_offset) for m in rest] == [(m.batch, m.end_offset) for m in whole[1:]]
    assert rest[0].shard == _shard(32)
    assert list(source.batches(_shard(70))) == []
    source.close()


def test_columns_become_numpy_arrays_feature_by_feature(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", table(100))
    of = data(tmp_path)
    batch = list(ShardReader(of, build_manifest(of)).read(0, 8, seed=0, shuffle=False, batch_size=4))[1]
    assert label_of(batch).tolist() == [0, 0, 1, 0]
    assert dense_of(batch).tolist() == [[4], [5], [6], [7]]
    ids = ids_of(batch)
    assert (ids.keys, ids.scalar) == (("row", "many"), False)
    assert ids.lengths.tolist() == [[1, 1, 1, 1], [1, 2, 0, 1]]
    assert ids.values.tolist() == [4, 5, 6, 7, 4, 5, 5, 7]
    assert ids.lengths.dtype == np.int32 and ids.values.dtype == np.int64


def test_scalar_features_come_as_one_block() -> None:
    batch = pa.record_batch({"label": pa.array([1.0, 0.0], pa.float32()), "a": [1, 2], "b": [3, 4]})
    ids = ids_of(batch.slice(1))
    assert ids.scalar and ids.values.reshape(2, 1).tolist() == [[2], [4]]
    assert dense_of(batch).shape == (2, 0)


def test_prefetching_keeps_order_and_passes_the_error_on_in_its_place() -> None:
    def items() -> Iterator[int]:
        yield from range(50)
        raise ValueError("broken row")

    seen = []
    with Prefetched(items(), depth=2) as fetched, pytest.raises(ValueError, match="broken row"):
        for item in fetched:
            seen.append(item)
    assert seen == list(range(50))


def test_prefetching_runs_only_so_far_ahead_and_stops_when_closed() -> None:
    made: list[int] = []
    closed = threading.Event()
    third = threading.Event()

    def items() -> Iterator[int]:
        try:
            for item in range(1000):
                made.append(item)
                if item == 3:
                    third.set()
                yield item
        finally:
            closed.set()

    fetched = Prefetched(items(), depth=2)
    assert next(fetched) == 0
    assert third.wait(10)
    fetched.close()
    fetched.close()
    assert len(made) <= 4
    assert closed.is_set()
    assert list(fetched) == []
