"""Minibatches that lie in memory as Arrow messages: their columns, their flat ids, and who may write to them."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from elastrec.platform.data import dense_of, ids_of, targets_of
from elastrec.platform.data.reading import laid_out
from elastrec.platform.data.reading.laid_out import BatchForm, Run, flat_ids


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
    for k, batch in enumerate(run.record_batches()):
        batch.validate(full=True)
        assert batch.schema == form.schema()
        assert np.array_equal(targets_of(batch), run.target_KBT[k])
        assert np.array_equal(dense_of(batch), run.dense_KBI[k])
        for f, name in enumerate(form.sparse):
            assert np.array_equal(batch.column(name), run.ids_KFB[k, f])
        ids_L = flat_ids(batch)
        assert ids_L is not None and np.array_equal(ids_L, run.ids_KFB[k].reshape(-1))


def test_flat_ids_are_the_columns_own_memory_and_nobody_writes_to_it() -> None:
    run = _filled(BatchForm(1, 2, ("a", "b")), 2, 4)
    for batch in run.record_batches():
        ids = ids_of(batch)
        addresses = [batch.column(name).buffers()[1].address for name in ("a", "b")]
        assert addresses == [ids.values.ctypes.data, ids.values[4:].ctypes.data]
        for array in (ids.values, ids.lengths, dense_of(batch)):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 0


def test_a_slice_and_a_copy_of_a_batch_have_no_flat_ids_but_the_same_ids() -> None:
    (batch,) = _filled(BatchForm(1, 2, ("a", "b")), 1, 4).record_batches()
    assert flat_ids(batch.slice(0, 4)) is None
    assert ids_of(batch.slice(1, 2)).values.tolist() == [1, 2, 5, 6]
    assert np.array_equal(ids_of(batch.slice(0, 4)).values, ids_of(batch).values)


def test_what_is_known_of_a_batch_goes_with_it() -> None:
    gc.collect()
    before = len(laid_out._flat_ids)
    batches = list(_filled(BatchForm(1, 2, ("a", "b")), 5, 4).record_batches())
    ids_L = flat_ids(batches[4])
    assert len(laid_out._flat_ids) == before + 5
    del batches
    gc.collect()
    assert len(laid_out._flat_ids) == before
    assert ids_L is not None and ids_L.tolist() == [32, 33, 34, 35, 36, 37, 38, 39]
