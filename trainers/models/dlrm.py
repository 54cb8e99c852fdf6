"""DLRM: dot products of all pairs of embeddings and of the dense features' vector.

Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation Systems", 2019,
https://arxiv.org/abs/1906.00091. Both MLPs are torchrec's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchrec.modules.mlp import MLP
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from elastrec.trainers.models import options
from elastrec.trainers.models.parts import pooled_rows
from elastrec.trainers.models.schema import FeatureSchema


class PairwiseProducts(nn.Module):
    """Dense vector and the dot products of all pairs, `[B, D]` and `[B, F, D]` to `[B, D + F + F·(F − 1)/2]`.

    The result of torchrec's InteractionArch, element by element; selecting the pairs from flattened products makes
    its backward pass half as expensive as theirs, which scatters through two index tensors.

    Args:
        fields: F, without the dense vector.
    """

    def __init__(self, fields: int) -> None:
        super().__init__()
        first, second = torch.triu_indices(fields + 1, fields + 1, offset=1)
        self.register_buffer("_pairs", first * (fields + 1) + second, persistent=False)

    def forward(self, dense_BD: Tensor, rows_BFD: Tensor) -> Tensor:
        vectors_BND = torch.cat([dense_BD.unsqueeze(1), rows_BFD], dim=1)
        products_BNN = torch.bmm(vectors_BND, vectors_BND.transpose(1, 2))
        pairs_BP = products_BNN.flatten(1).index_select(1, self._pairs)
        return torch.cat([dense_BD, pairs_BP], dim=1)


class Dlrm(nn.Module):
    """Bottom MLP, pairwise dot products, top MLP (§2.2 of the paper).

    Shapes: dense `[B, I]`, bottom output `[B, D]`, pooled rows `[B, F, D]`, interactions
    `[B, D + F + F·(F − 1)/2]`, logits `[B]`. Without dense features the bottom MLP of nothing is a constant: a
    learned vector `[D]` stands in its place.

    Args:
        embedding_bag_collection: rows of D numbers.
        schema: names and sizes of the inputs.
        bottom_layer_sizes: hidden layers of the bottom MLP; a layer of D is added.
        top_layer_sizes: hidden layers of the top MLP; a layer of 1 is added.
    """

    def __init__(
        self,
        embedding_bag_collection: nn.Module,
        schema: FeatureSchema,
        *,
        bottom_layer_sizes: Sequence[int] = (128, 64),
        top_layer_sizes: Sequence[int] = (256, 128),
    ) -> None:
        super().__init__()
        bottom_sizes = options.layer_sizes("bottom_layer_sizes", bottom_layer_sizes)
        top_sizes = options.layer_sizes("top_layer_sizes", top_layer_sizes)
        fields, dimension = len(schema.sparse_names), schema.embedding_dimension
        self.embedding_bag_collection = embedding_bag_collection
        # Parameters have the names that they have in torchrec's DenseArch and OverArch.
        self.bottom: nn.Module | None = None
        if schema.dense_names:
            bottom = MLP(len(schema.dense_names), [*bottom_sizes, dimension], activation="relu")
            self.bottom = nn.Sequential(OrderedDict(model=bottom))
        else:
            self.constant_D = nn.Parameter(torch.empty(dimension).uniform_(-(dimension**-0.5), dimension**-0.5))
        self.interaction = PairwiseProducts(fields)
        hidden = MLP(dimension + fields + fields * (fields - 1) // 2, top_sizes, activation="relu")
        self.top = nn.Sequential(OrderedDict(model=nn.Sequential(hidden, nn.Linear(top_sizes[-1], 1))))

    @staticmethod
    def row_dimension(embedding_dimension: int) -> int:
        return embedding_dimension

    def forward(self, dense_features: Tensor, sparse_features: KeyedJaggedTensor) -> Tensor:
        rows_BFD = pooled_rows(self.embedding_bag_collection, sparse_features)
        if self.bottom is not None:
            dense_BD = self.bottom(dense_features)
        else:
            dense_BD = self.constant_D.expand(rows_BFD.shape[0], -1)
        # Under autocast the bottom MLP gives bfloat16 while the rows are float32.
        logits_B1: Tensor = self.top(self.interaction(dense_BD.to(rows_BFD.dtype), rows_BFD))
        return logits_B1.squeeze(1)
