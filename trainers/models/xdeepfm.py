"""xDeepFM: explicit vector-wise interactions (CIN), a linear part and an MLP.

Lian et al., "xDeepFM: Combining Explicit and Implicit Feature Interactions for Recommender Systems", KDD 2018,
https://arxiv.org/abs/1803.05170.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from elastrec.trainers.models import options
from elastrec.trainers.models.parts import DenseFields, FirstOrder, LogitMLP, first_and_others
from elastrec.trainers.models.schema import FeatureSchema


class CompressedInteractionNetwork(nn.Module):
    """CIN, eq. 6-8: X^k_h = Σ_ij W^{k,h}_ij (X^{k-1}_i ∘ X^0_j); sum pooling over D of every map of every layer.

    `[B, N, D]` to `[B, Σ layer_sizes]`.

    Args:
        fields: N.
        layer_sizes: H_k, feature maps per layer.
    """

    def __init__(self, fields: int, layer_sizes: Sequence[int]) -> None:
        super().__init__()
        previous = [fields, *layer_sizes[:-1]]
        # One weight matrix [H_k, H_{k-1} · N] per layer; a 1x1 convolution over D as the paper draws it in fig. 4b.
        self.weights = nn.ParameterList(
            nn.Parameter(nn.init.xavier_uniform_(torch.empty(size, before * fields)))
            for size, before in zip(layer_sizes, previous, strict=True)
        )

    def forward(self, fields_BND: Tensor) -> Tensor:
        batch, _, dimension = fields_BND.shape
        maps_BHD, pooled = fields_BND, []
        for weight in self.weights:
            products_BPD = (maps_BHD.unsqueeze(2) * fields_BND.unsqueeze(1)).reshape(batch, -1, dimension)
            maps_BHD = torch.matmul(weight, products_BPD)
            pooled.append(maps_BHD.sum(dim=2))
        return torch.cat(pooled, dim=1)


class XDeepFM(nn.Module):
    """logit = linear + w·CIN + deep, eq. 9 of the paper (without its final sigmoid).

    Shapes: dense `[B, I]`, pooled rows `[B, F, 1 + D]` (linear weight, then the embedding), fields `[B, F + I, D]`,
    CIN output `[B, Σ cin_layer_sizes]`, logits `[B]`.

    Args:
        embedding_bag_collection: rows of D + 1 numbers.
        schema: names and sizes of the inputs.
        layer_sizes: hidden layers of the MLP.
        cin_layer_sizes: feature maps per CIN layer.
    """

    def __init__(
        self,
        embedding_bag_collection: nn.Module,
        schema: FeatureSchema,
        *,
        layer_sizes: Sequence[int] = (256, 128),
        cin_layer_sizes: Sequence[int] = (32, 32),
    ) -> None:
        super().__init__()
        sizes = options.layer_sizes("layer_sizes", layer_sizes)
        cin_sizes = options.layer_sizes("cin_layer_sizes", cin_layer_sizes)
        dense_count, dimension = len(schema.dense_names), schema.embedding_dimension
        fields = len(schema.sparse_names) + dense_count
        self.embedding_bag_collection = embedding_bag_collection
        self.linear = FirstOrder(dense_count)
        self.dense_fields = DenseFields(dense_count, dimension)
        self.cin = CompressedInteractionNetwork(fields, cin_sizes)
        self.cin_output = nn.Linear(sum(cin_sizes), 1, bias=False)
        self.deep = LogitMLP(fields * dimension, sizes)

    @staticmethod
    def row_dimension(embedding_dimension: int) -> int:
        return embedding_dimension + 1

    def forward(self, dense_features: Tensor, sparse_features: KeyedJaggedTensor) -> Tensor:
        weights_BF, vectors_BX = first_and_others(self.embedding_bag_collection, sparse_features)
        vectors_BFD = vectors_BX.unflatten(1, (weights_BF.shape[1], -1))
        fields_BND = self.dense_fields(dense_features, vectors_BFD)
        linear_B = self.linear(dense_features, weights_BF)
        return linear_B + self.cin_output(self.cin(fields_BND)).squeeze(1) + self.deep(fields_BND.flatten(1))
