"""PooledSequences: embedding and pooling of list features, each distinct list once (RecD's O5–O7, §5)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from elastrec.trainers.deduplication.jagged import expand_rows
from elastrec.trainers.deduplication.tensor import InverseKeyedJaggedTensor


class PooledSequences(nn.Module):
    """List features as one vector each, `[B, sum of D]`, in the order of `poolings`.

    With an InverseKeyedJaggedTensor, rows are looked up and pooled for its U distinct lists; the result alone is
    expanded to B rows, once for all features. With a KeyedJaggedTensor all B lists are computed: same values, same
    gradients.

    Args:
        embeddings: per feature a module from ids `[L]` to rows `[L, D]`; features may share one.
        poolings: per feature one of `elastrec.trainers.deduplication.pooling`.

    Raises:
        ValueError: the two do not name the same features, or none.
    """

    def __init__(self, embeddings: Mapping[str, nn.Module], poolings: Mapping[str, nn.Module]) -> None:
        super().__init__()
        if not poolings or set(embeddings) != set(poolings):
            raise ValueError(
                f"embeddings: {sorted(embeddings)} is not allowed; allowed: the features of the poolings, "
                f"{sorted(poolings)}, at least one"
            )
        self.names = tuple(poolings)
        # Module names must not hold dots, feature names may.
        self.embeddings = nn.ModuleList(embeddings[name] for name in self.names)
        self.poolings = nn.ModuleList(poolings.values())

    def forward(self, features: InverseKeyedJaggedTensor | KeyedJaggedTensor) -> Tensor:
        if isinstance(features, InverseKeyedJaggedTensor):
            return expand_rows(self._pooled(features), features.inverse_lookup)
        return self._pooled(features)

    def _pooled(self, features: InverseKeyedJaggedTensor | KeyedJaggedTensor) -> Tensor:
        pooled = []
        for name, embedding, pooling in zip(self.names, self.embeddings, self.poolings, strict=True):
            values, offsets = self._lists(features, name)
            pooled.append(pooling(embedding(values), offsets))
        return pooled[0] if len(pooled) == 1 else torch.cat(pooled, dim=1)

    @staticmethod
    def _lists(features: InverseKeyedJaggedTensor | KeyedJaggedTensor, name: str) -> tuple[Tensor, Tensor]:
        if isinstance(features, InverseKeyedJaggedTensor):
            return features.feature(name)
        jagged = features[name]
        return jagged.values(), jagged.offsets().to(torch.int64)
