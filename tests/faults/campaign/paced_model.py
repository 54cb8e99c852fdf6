"""The model of campaign jobs, a user's model by import path: a linear part and one hidden layer, with pauses."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from elastrec.trainers.models.parts import LogitMLP, pooled_rows
from elastrec.trainers.models.schema import FeatureSchema


class PacedModel(nn.Module):
    """logit = sum of the first numbers of the rows + MLP of the others and the dense features.

    Args:
        embedding_bag_collection: rows of at least two numbers.
        schema: names and sizes of the inputs.
        pause_seconds: pause of each training step, in which no core is used, so that the job lasts long enough for
            faults.
        pause_while: path of a file; steps pause only while it exists. Empty: always.
        waits_for: path of a folder; while it exists, a registered worker does not begin its first shard until the
            folder has a file with the name of its pod. Empty: workers do not wait.
    """

    def __init__(
        self,
        embedding_bag_collection: nn.Module,
        schema: FeatureSchema,
        *,
        pause_seconds: float = 0.0,
        pause_while: str = "",
        waits_for: str = "",
    ) -> None:
        super().__init__()
        while (
            waits_for and Path(waits_for).exists() and not Path(waits_for, os.environ.get("ELASTREC_POD", "")).is_file()
        ):
            time.sleep(0.1)
        self.embedding_bag_collection = embedding_bag_collection
        self.pause_seconds, self.pause_while = pause_seconds, pause_while
        deep_in = len(schema.sparse_names) * (schema.embedding_dimension - 1) + len(schema.dense_names)
        self.deep = LogitMLP(deep_in, [16])

    def forward(self, dense_features: Tensor, sparse_features: KeyedJaggedTensor) -> Tensor:
        if self.training and (not self.pause_while or Path(self.pause_while).exists()):
            time.sleep(self.pause_seconds)
        rows_BFR = pooled_rows(self.embedding_bag_collection, sparse_features)
        deep_in_BX = torch.cat([rows_BFR[:, :, 1:].flatten(1), dense_features], dim=1)
        return rows_BFR[:, :, 0].sum(dim=1) + self.deep(deep_in_BX)
