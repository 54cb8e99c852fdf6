"""DeepFM: a factorization machine and an MLP on the same embeddings.

Guo et al., "DeepFM: A Factorization-Machine based Neural Network for CTR Prediction", IJCAI 2017,
https://arxiv.org/abs/1703.04247.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torchrec.modules.deepfm import DeepFM as DeepPart
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from elastrec.trainers.models import options
from elastrec.trainers.models.parts import DenseFields, FirstOrder, LogitMLP, first_and_others
from elastrec.trainers.models.schema import FeatureSchema


def second_order(fields_BND: Tensor) -> Tensor:
    """Sum of the dot products of all pairs of fields, `[B, N, D]` to `[B]` (eq. 2, in the linear-time form).

    torchrec's FactorizationMachine also sums over D before it squares, which adds products of different embedding
    dimensions that the paper's dot product does not have; hence this function.
    """
    sum_BD = fields_BND.sum(dim=1)
    return 0.5 * (sum_BD.square() - fields_BND.square().sum(dim=1)).sum(dim=1)


class DeepFM(nn.Module):
    """logit = first order + second order + deep, eq. 1 of the paper.

    Shapes: dense `[B, I]`, pooled rows `[B, F, 1 + D]` (first-order weight, then the latent vector), fields
    `[B, F + I, D]`, MLP input `[B, (F + I)·D]`, logits `[B]`.

    Args:
        embedding_bag_collection: rows of D + 1 numbers.
        schema: names and sizes of the inputs.
        layer_sizes: hidden layers of the deep part.
    """

    def __init__(
        self,
        embedding_bag_collection: nn.Module,
        schema: FeatureSchema,
        *,
        layer_sizes: Sequence[int] = (256, 128),
    ) -> None:
        super().__init__()
        sizes = options.layer_sizes("layer_sizes", layer_sizes)
        dense_count, dimension = len(schema.dense_names), schema.embedding_dimension
        self.embedding_bag_collection = embedding_bag_collection
        self.first_order = FirstOrder(dense_count)
        self.dense_fields = DenseFields(dense_count, dimension)
        self.deep = DeepPart(LogitMLP((len(schema.sparse_names) + dense_count) * dimension, sizes))

    @staticmethod
    def row_dimension(embedding_dimension: int) -> int:
        return embedding_dimension + 1

    def forward(self, dense_features: Tensor, sparse_features: KeyedJaggedTensor) -> Tensor:
        weights_BF, vectors_BX = first_and_others(self.embedding_bag_collection, sparse_features)
        vectors_BFD = vectors_BX.unflatten(1, (weights_BF.shape[1], -1))
        fields_BND = self.dense_fields(dense_features, vectors_BFD)
        first_B = self.first_order(dense_features, weights_BF)
        return first_B + second_order(fields_BND) + self.deep([fields_BND])
