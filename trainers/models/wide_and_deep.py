"""Wide & Deep: a linear model and an MLP on embeddings, trained together.

Cheng et al., "Wide & Deep Learning for Recommender Systems", DLRS 2016, https://arxiv.org/abs/1606.07792.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from elastrec.trainers.models import options
from elastrec.trainers.models.parts import FirstOrder, LogitMLP, first_and_others
from elastrec.trainers.models.schema import FeatureSchema


class WideAndDeep(nn.Module):
    """logit = wide(x) + deep(x), eq. 3 of the paper, without crossed features.

    Shapes: dense `[B, I]`, pooled rows `[B, F, 1 + D]` (wide weight, then the embedding), MLP input `[B, F·D + I]`,
    logits `[B]`. Tables may have different D.

    Args:
        embedding_bag_collection: rows of D + 1 numbers.
        schema: names and sizes of the inputs.
        layer_sizes: hidden layers of the deep part.
    """

    takes_table_dimensions = True

    def __init__(
        self,
        embedding_bag_collection: nn.Module,
        schema: FeatureSchema,
        *,
        layer_sizes: Sequence[int] = (256, 128),
    ) -> None:
        super().__init__()
        sizes = options.layer_sizes("layer_sizes", layer_sizes)
        self.embedding_bag_collection = embedding_bag_collection
        self.wide = FirstOrder(len(schema.dense_names))
        deep_in = schema.width() + len(schema.dense_names)
        self.deep = LogitMLP(deep_in, sizes)

    @staticmethod
    def row_dimension(embedding_dimension: int) -> int:
        return embedding_dimension + 1

    def forward(self, dense_features: Tensor, sparse_features: KeyedJaggedTensor) -> Tensor:
        weights_BF, deep_in_BX = first_and_others(self.embedding_bag_collection, sparse_features, dense_features)
        return self.wide(dense_features, weights_BF) + self.deep(deep_in_BX)
