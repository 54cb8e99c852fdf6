"""DIN: histories weighted by the item that is to be scored.

Zhou et al., "Deep Interest Network for Click-Through Rate Prediction", KDD 2018, https://arxiv.org/abs/1706.06978.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from elastrec.trainers.deduplication import DeduplicatedFeatures, TargetAttention, lists_of
from elastrec.trainers.models import options
from elastrec.trainers.models.parts import LogitMLP, pooled_others
from elastrec.trainers.models.schema import FeatureSchema


class Din(nn.Module):
    """Local activation units over histories, then an MLP (§4.3 and figure 2 of the paper, with ReLU for Dice).

    Shapes: dense `[B, I]`, pooled rows of the other features `[B, F - H, D]`, weighted histories `[B, H, D]`, MLP input
    `[B, F·D + I]`, logits `[B]`. With deduplicated features the parts of a history's rows that do not depend on the
    target are computed once per distinct history.

    Args:
        embedding_bag_collection: rows of D numbers.
        schema: names and sizes of the inputs.
        attention: H histories, list features, and for each the feature that it is weighed by, as a rule the item.
        attention_size: hidden units of an activation unit.
        layer_sizes: hidden layers of the MLP.
    """

    def __init__(
        self,
        embedding_bag_collection: nn.Module,
        schema: FeatureSchema,
        *,
        attention: Mapping[str, str],
        attention_size: int = 36,
        layer_sizes: Sequence[int] = (200, 80),
    ) -> None:
        super().__init__()
        self.targets = options.targets("attention", attention, schema.list_lengths, schema.sparse_names)
        size = options.whole_number("attention_size", attention_size)
        sizes = options.layer_sizes("layer_sizes", layer_sizes)
        self.embedding_bag_collection = embedding_bag_collection
        dimension = schema.embedding_dimension
        self.units = nn.ModuleList(TargetAttention(dimension, size) for _ in self.targets)
        self.mlp = LogitMLP(len(schema.sparse_names) * dimension + len(schema.dense_names), sizes)

    @staticmethod
    def row_dimension(embedding_dimension: int) -> int:
        return embedding_dimension

    def forward(self, dense_features: Tensor, sparse_features: KeyedJaggedTensor | DeduplicatedFeatures) -> Tensor:
        names, rows_BFD = pooled_others(self.embedding_bag_collection, sparse_features, self.targets)
        parts = [rows_BFD.flatten(1)]
        for unit, (history, target) in zip(self.units, self.targets.items(), strict=True):
            lists = lists_of(self.embedding_bag_collection, sparse_features, history)
            parts.append(unit(lists, rows_BFD[:, names.index(target)]))
        return self.mlp(torch.cat([*parts, dense_features], dim=1))
