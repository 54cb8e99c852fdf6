"""Minibatches in memory as Arrow messages: columns, ids, and write protection."""

from __future__ import annotations

import numpy as np
import pytest

from elastrec.platform.data.reading.batches import JaggedIds, dense_of, ids_of, targets_of
from elastrec.platform.data.reading.laid_out import BatchForm, Run


def _filled(form: BatchForm, batches: int, rows: int) -> Run:
    run = Run(form, batches, rows)
    for room in (run.target_KBT, run.dense_KBI, run.ids_KFB):
        room[:] = np.arange(room.size).reshape(room.shape)
    return run


@pytest.mark.parametrize("rows", [1, 3, 8, 512])
@pytest.mark.parametrize("targets", [1, 2, 3])
@pytest.mark.parametrize("dense", [0, 1, 13])
@pytest.mark.parametrize("sparse", [0, 1, 26])
def test_the_columns_of_every_batch_are_what_was_written(rows: int, targets: int, dense: int, sparse: int) -> None:
    form = BatchForm(targets, dense, tuple(f"s{f}" for f in range(sparse)))
    run = _filled(form, 3, rows)
    for k, (batch, ids_FB) in enumerate(run.record_batches()):
        batch.validate(full=True)
        assert batch.schema == form.schema()
        assert np.array_equal(targets_of(batch), run.target_KBT[k])
        assert np.array_equal(dense_of(batch), run.dense_KBI[k])
        for f, name in enumerate(form.sparse):
            assert np.array_equal(batch.column(name), run.ids_KFB[k, f])
        assert np.array_equal(ids_FB, run.ids_KFB[k])


def test_the_ids_are_the_columns_own_memory_side_by_side_and_read_only() -> None:
    for batch, ids_FB in _filled(BatchForm(1, 2, ("a", "b")), 2, 4).record_batches():
        ids = JaggedIds.single(("a", "b"), ids_FB)
        assert np.array_equal(ids.values, ids_of(batch).values)
        addresses = [batch.column(name).buffers()[1].address for name in ("a", "b")]
        assert addresses == [ids.values.ctypes.data, ids.values[4:].ctypes.data]
        for array in (ids.values, ids.lengths, dense_of(batch)):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 0


def test_a_slice_of_a_batch_has_its_rows_of_each_column() -> None:
    ((batch, _),) = _filled(BatchForm(1, 2, ("a", "b")), 1, 4).record_batches()
    assert ids_of(batch.slice(1, 2)).values.tolist() == [1, 2, 5, 6]
    assert dense_of(batch.slice(1, 2)).tolist() == [[2, 3], [4, 5]]
