"""Converts record batches to torch inputs: dense matrix, KeyedJaggedTensor, labels, without unnecessary copies."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from elastrec.platform.data.reading.batches import JaggedIds, dense_of, ids_of, targets_of
from elastrec.platform.specs.data import GROUP_PREFIX, LABEL_COLUMN
from elastrec.trainers.deduplication.features import DeduplicatedFeatures


class Inputs(NamedTuple):
    """One minibatch: dense `[B, I]` float32, sparse features (ids int64), labels, then the weight `[B, T]` float32."""

    dense_BI: Tensor
    sparse: KeyedJaggedTensor | DeduplicatedFeatures
    target_BT: Tensor


def inputs_of(batch: pa.RecordBatch, ids: JaggedIds | None = None) -> Inputs:
    """The torch form of a trainer-ready batch; T is 0 when the batch has no labels (rows to be scored).

    Groups that a deduplicating reader has deduplicated stay so.

    Args:
        ids: `ids_of(batch)`, if available.
    """
    deduplicated = any(name.startswith(GROUP_PREFIX) for name in batch.schema.names)
    with warnings.catch_warnings():
        # torch warns because Arrow's buffers are read-only; inputs are never written to.
        warnings.simplefilter("ignore", UserWarning)
        sparse = (
            DeduplicatedFeatures.from_batch(batch) if deduplicated else _jagged(ids or ids_of(batch), batch.num_rows)
        )
        dense = torch.from_numpy(dense_of(batch))
        targets = targets_of(batch) if LABEL_COLUMN in batch.schema.names else np.empty((batch.num_rows, 0), np.float32)
        return Inputs(dense, sparse, torch.from_numpy(targets))


def _jagged(jagged: JaggedIds, rows: int) -> KeyedJaggedTensor:
    return KeyedJaggedTensor(
        keys=list(jagged.keys),
        values=torch.from_numpy(jagged.values),
        lengths=torch.from_numpy(jagged.lengths.reshape(-1)),
        stride=rows,
    )
