"""DCN-v2: explicit bounded-degree crosses of the whole input vector, beside or before an MLP.

Wang et al., "DCN V2: Improved Deep & Cross Network and Practical Lessons for Web-scale Learning to Rank Systems",
WWW 2021, https://arxiv.org/abs/2008.13535.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchrec.modules.crossnet import CrossNet, LowRankCrossNet
from torchrec.modules.mlp import MLP
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from elastrec.trainers.models import options
from elastrec.trainers.models.parts import beside_dense
from elastrec.trainers.models.schema import FeatureSchema


class DcnV2(nn.Module):
    """Cross layers x_{l+1} = x_0 ∘ (W x_l + b) + x_l (eq. 1, or U·V of rank r in W's place, eq. 2) and an MLP.

    `stacked` feeds the crosses to the MLP, `parallel` sets both side by side (fig. 1).

    Shapes: dense `[B, I]`, pooled rows `[B, F, D]`, x_0 `[B, F·D + I]`, logits `[B]`.

    Args:
        embedding_bag_collection: rows of D numbers.
        schema: names and sizes of the inputs.
        layer_sizes: hidden layers of the MLP.
        cross_layers: number of cross layers.
        low_rank: r of the cross matrices; 0 takes full matrices.
        structure: `stacked` or `parallel`.
    """

    takes_table_dimensions = True

    def __init__(
        self,
        embedding_bag_collection: nn.Module,
        schema: FeatureSchema,
        *,
        layer_sizes: Sequence[int] = (256, 128),
        cross_layers: int = 3,
        low_rank: int = 32,
        structure: str = "parallel",
    ) -> None:
        super().__init__()
        sizes = options.layer_sizes("layer_sizes", layer_sizes)
        layers = options.whole_number("cross_layers", cross_layers)
        rank = options.whole_number("low_rank", low_rank, at_least=0)
        self.stacked = options.one_of("structure", structure, ("stacked", "parallel")) == "stacked"
        width = schema.width() + len(schema.dense_names)
        self.embedding_bag_collection = embedding_bag_collection
        self.cross = LowRankCrossNet(width, layers, rank) if rank else CrossNet(width, layers)
        self.deep = MLP(width, sizes, activation="relu")
        self.output = nn.Linear(sizes[-1] if self.stacked else sizes[-1] + width, 1)

    @staticmethod
    def row_dimension(embedding_dimension: int) -> int:
        return embedding_dimension

    def forward(self, dense_features: Tensor, sparse_features: KeyedJaggedTensor) -> Tensor:
        x0_BX = beside_dense(self.embedding_bag_collection, sparse_features, dense_features)
        crosses_BX = self.cross(x0_BX)
        if self.stacked:
            return self.output(self.deep(crosses_BX)).squeeze(1)
        return self.output(torch.cat([crosses_BX, self.deep(x0_BX)], dim=1)).squeeze(1)
