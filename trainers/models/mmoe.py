"""MMoE: several labels predicted from shared experts, each through a mixture of its own.

Ma et al., "Modeling Task Relationships in Multi-task Learning with Multi-gate Mixture-of-Experts", KDD 2018,
https://doi.org/10.1145/3219819.3220007. With one expert it is the shared-bottom model of the paper's §3.1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchrec.modules.mlp import MLP
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from elastrec.trainers.models import options
from elastrec.trainers.models.parts import LogitMLP, beside_dense
from elastrec.trainers.models.schema import FeatureSchema


class Mmoe(nn.Module):
    """y_k = h_k(Σ_i g_k(x)_i · f_i(x)) with g_k(x) = softmax(W_gk x), eq. 6 and 7 of the paper; one k per label.

    Shapes: dense `[B, I]`, pooled rows `[B, F, D]`, x `[B, F·D + I]`, expert outputs `[B, E, X]`, outputs `[B, H]`, a
    column for each of the job's H labels.

    Args:
        embedding_bag_collection: rows of D numbers.
        schema: names and sizes of the inputs, and the labels.
        experts: E.
        expert_layer_sizes: layers of each expert f_i; the last is X.
        tower_layer_sizes: hidden layers of each tower h_k.
    """

    takes_table_dimensions = True

    def __init__(
        self,
        embedding_bag_collection: nn.Module,
        schema: FeatureSchema,
        *,
        experts: int = 4,
        expert_layer_sizes: Sequence[int] = (256, 128),
        tower_layer_sizes: Sequence[int] = (64,),
    ) -> None:
        super().__init__()
        count = options.whole_number("experts", experts)
        expert_sizes = options.layer_sizes("expert_layer_sizes", expert_layer_sizes)
        tower_sizes = options.layer_sizes("tower_layer_sizes", tower_layer_sizes)
        width = schema.width() + len(schema.dense_names)
        self.embedding_bag_collection = embedding_bag_collection
        self.experts = nn.ModuleList(MLP(width, expert_sizes, activation="relu") for _ in range(count))
        self.gates = nn.ModuleList(nn.Linear(width, count, bias=False) for _ in schema.label_names)
        self.towers = nn.ModuleList(LogitMLP(expert_sizes[-1], tower_sizes) for _ in schema.label_names)

    @staticmethod
    def row_dimension(embedding_dimension: int) -> int:
        return embedding_dimension

    def forward(self, dense_features: Tensor, sparse_features: KeyedJaggedTensor) -> Tensor:
        x_BX = beside_dense(self.embedding_bag_collection, sparse_features, dense_features)
        experts_BEX = torch.stack([expert(x_BX) for expert in self.experts], dim=1)
        outputs = []
        for gate, tower in zip(self.gates, self.towers, strict=True):
            share_BE = torch.softmax(gate(x_BX), dim=1)
            outputs.append(tower(torch.einsum("be,bex->bx", share_BE, experts_BEX)))
        return torch.stack(outputs, dim=1)
