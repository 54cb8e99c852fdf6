"""ArtifactEmbeddings: the embedding collection of an exported model, over sorted ids and memory-mapped rows."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from elastrec.trainers.export.artifact import Artifact


class ArtifactEmbeddings(nn.Module):
    """Takes the place of torchrec's EmbeddingBagCollection when scoring; ids that were never trained count as zero.

    Args:
        tables: names, features and row dimensions R.
        artifact: where their rows are.
        sequences: features that the output leaves out, because the model asks for their `rows`.
    """

    def __init__(self, tables: list[EmbeddingBagConfig], artifact: Artifact, sequences: Sequence[str] = ()) -> None:
        super().__init__()
        self._tables = tables
        self._artifact = artifact
        # Requests of a serving process may be scored by several threads.
        self._last = threading.local()
        self._uses = [(table, name) for table in tables for name in table.feature_names]
        self._pooled = [(table, name) for table, name in self._uses if name not in sequences]
        self.widths = {name: table.embedding_dim for table, name in self._pooled}

    def embedding_bag_configs(self) -> list[EmbeddingBagConfig]:
        return self._tables

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        """Pooled rows: KeyedJaggedTensor of B bags per feature to a KeyedTensor `[B, sum of R]`."""
        jagged = features.to_dict()
        pooled: list[Tensor] = []
        for table, name in self._pooled:
            mode = "mean" if table.pooling is PoolingType.MEAN else "sum"
            values_L, offsets = jagged[name].values(), jagged[name].offsets()
            inverse_L, rows_UR = self._distinct(table, values_L)
            pooled.append(
                nn.functional.embedding_bag(
                    inverse_L, rows_UR, offsets.to(torch.int64), mode=mode, include_last_offset=True
                )
                if len(rows_UR)
                else torch.zeros(len(offsets) - 1, table.embedding_dim)
            )
        values = torch.cat(pooled, dim=1) if pooled else torch.zeros(features.stride(), 0)
        self._last.pooled = values.detach().numpy()
        return KeyedTensor(
            keys=list(self.widths),
            length_per_key=list(self.widths.values()),
            values=values,
        )

    def rows(self, features: KeyedJaggedTensor, name: str) -> Tensor:
        """One row for each id of a feature, `[L, R]`, not pooled."""
        table = next(table for table, feature in self._uses if feature == name)
        inverse_L, rows_UR = self._distinct(table, features[name].values())
        return rows_UR[inverse_L]

    def _distinct(self, table: EmbeddingBagConfig, values_L: Tensor) -> tuple[Tensor, Tensor]:
        """For each id its place among the distinct ones, and their rows `[U, R]`."""
        inverse_L, ids_U = pd.factorize(values_L.numpy())
        rows_UR, _ = self._artifact.rows(table.name, ids_U)
        return torch.from_numpy(inverse_L.astype(np.int64, copy=False)), torch.from_numpy(rows_UR)

    def last_pooled(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Pooled rows `[B, sum of R]` of this thread's latest forward, for the check against the trainer."""
        pooled: np.ndarray[Any, np.dtype[np.float32]] = self._last.pooled
        return pooled
