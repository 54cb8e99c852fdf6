"""The counted bytes from the reader equal those of Arrow for the same minibatch."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from elastrec.platform.data.deduplicating.deduplicated_batch import deduplicate_batch
from elastrec.trainers.worker.inputs import inputs_of
from elastrec.trainers.worker.traffic import read_bytes


@pytest.mark.parametrize("groups", [[], [["user"]], [["cart"]], [["user", "cart"]], [["user"], ["cart"]]], ids=str)
def test_bytes_are_those_of_the_batch_and_of_its_plain_form(groups: list[list[str]]) -> None:
    session = np.repeat(np.arange(20), 16)
    plain = pa.RecordBatch.from_pydict(
        {
            "label": pa.array(np.zeros(len(session), np.float32)),
            "dense": pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(2 * len(session), np.float32)), 2),
            "item": pa.array(np.arange(len(session))),
            "user": pa.array(session),
            "cart": pa.array([[s] * (s % 7) for s in session], pa.list_(pa.int64())),
        }
    )
    batch = deduplicate_batch(plain, groups)
    found, would_be = read_bytes(inputs_of(batch), {"cart"})
    assert would_be == plain.nbytes
    assert found == pytest.approx(batch.nbytes, rel=0.01)
    assert found < would_be or not groups
