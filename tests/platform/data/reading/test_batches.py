"""The columns of a minibatch as numpy arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from elastrec.platform.data.manifest import build_manifest
from elastrec.platform.data.reading.batches import dense_of, ids_of, targets_of
from elastrec.platform.data.reading.reader import ShardReader
from tests.platform.data.rows import data, table, write_parquet


def test_columns_become_numpy_arrays_feature_by_feature(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", table(100))
    of = data(tmp_path)
    batch = list(ShardReader(of, build_manifest(of)).read(0, 8, seed=0, shuffle=False, batch_size=4))[1]
    assert targets_of(batch)[:, 0].tolist() == [0, 0, 1, 0]
    assert dense_of(batch).tolist() == [[4], [5], [6], [7]]
    ids = ids_of(batch)
    assert (ids.keys, ids.scalar) == (("row", "many"), False)
    assert ids.lengths.tolist() == [[1, 1, 1, 1], [1, 2, 0, 1]]
    assert ids.values.tolist() == [4, 5, 6, 7, 4, 5, 5, 7]
    assert ids.lengths.dtype == np.int32 and ids.values.dtype == np.int64


def test_scalar_features_are_one_block() -> None:
    batch = pa.record_batch({"label": pa.array([1.0, 0.0], pa.float32()), "a": [1, 2], "b": [3, 4]})
    ids = ids_of(batch.slice(1))
    assert ids.scalar and ids.values.reshape(2, 1).tolist() == [[2], [4]]
    assert dense_of(batch).shape == (2, 0)
