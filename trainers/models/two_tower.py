"""Two towers: one vector for the user or query, one for the item; the logit is their product.

Yi et al., "Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations", RecSys 2019, §3,
https://doi.org/10.1145/3298689.3346996. Trained here on the labels of the log's own rows, not with the paper's softmax
over the other items of a batch, so that no correction for popular items is needed (§3.2).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchrec.modules.mlp import MLP
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from elastrec.trainers.models import options
from elastrec.trainers.models.schema import FeatureSchema


class TwoTower(nn.Module):
    """logit = u(x) · v(y) + b with towers u and v of an MLP each (§3.1); the item's tower can be computed beforehand.

    Shapes: dense `[B, I]`, pooled rows `[B, F, D]`, query input `[B, (F − G)·D + I − J]`, item input `[B, G·D + J]`,
    vectors `[B, V]`, logits `[B]`.

    Args:
        embedding_bag_collection: rows of D numbers.
        schema: names and sizes of the inputs.
        item_features: names of G sparse and J dense features that describe the item; all others describe the query.
        layer_sizes: hidden layers of both towers.
        vector_size: V.
    """

    takes_table_dimensions = True

    def __init__(
        self,
        embedding_bag_collection: nn.Module,
        schema: FeatureSchema,
        *,
        item_features: Sequence[str],
        layer_sizes: Sequence[int] = (256, 128),
        vector_size: int = 64,
    ) -> None:
        super().__init__()
        items = options.some_features("item_features", item_features, (*schema.sparse_names, *schema.dense_names))
        hidden = options.layer_sizes("layer_sizes", layer_sizes)
        size = options.whole_number("vector_size", vector_size)
        self.embedding_bag_collection = embedding_bag_collection
        self._sparse = tuple(
            [name for name in schema.sparse_names if (name in items) == side] for side in (False, True)
        )
        dense = [[i for i, name in enumerate(schema.dense_names) if (name in items) == side] for side in (False, True)]
        self.register_buffer("_query_dense", torch.tensor(dense[0], dtype=torch.int64), persistent=False)
        self.register_buffer("_item_dense", torch.tensor(dense[1], dtype=torch.int64), persistent=False)
        widths = [schema.width(names) + len(numbers) for names, numbers in zip(self._sparse, dense, strict=True)]
        self.query, self.item = (
            nn.Sequential(MLP(width, hidden, activation="relu"), nn.Linear(hidden[-1], size)) for width in widths
        )
        self.bias = nn.Parameter(torch.zeros(1))

    @staticmethod
    def row_dimension(embedding_dimension: int) -> int:
        return embedding_dimension

    def forward(self, dense_features: Tensor, sparse_features: KeyedJaggedTensor) -> Tensor:
        pooled = self.embedding_bag_collection(sparse_features).to_dict()
        query_names, item_names = self._sparse
        query_BX = [*(pooled[name] for name in query_names), dense_features.index_select(1, self._query_dense)]
        item_BX = [*(pooled[name] for name in item_names), dense_features.index_select(1, self._item_dense)]
        query_BV, item_BV = self.query(torch.cat(query_BX, dim=1)), self.item(torch.cat(item_BX, dim=1))
        return (query_BV * item_BV).sum(dim=1) + self.bias
