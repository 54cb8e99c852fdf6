"""A behaviour sequence transformer: histories read by a transformer encoder, then an MLP.

After Chen et al., "Behavior Sequence Transformer for E-commerce Recommendation in Alibaba", DLP-KDD 2019,
https://arxiv.org/abs/1905.06874. There the target item is the last element of the sequence; here it meets the history
in the MLP, so that a history is read once for all rows that have it (RecD §5).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from elastrec.platform.specs.errors import FieldProblem, SpecError
from elastrec.trainers.deduplication import DeduplicatedFeatures, TransformerPooling, lists_of, pool_lists
from elastrec.trainers.models import options
from elastrec.trainers.models.parts import LogitMLP, pooled_others
from elastrec.trainers.models.schema import FeatureSchema


class Bst(nn.Module):
    """Transformer encoders over histories with learned positions, then an MLP (§2.2 and §2.3 of the paper).

    Shapes: dense `[B, I]`, pooled rows of the other features `[B, F - H, D]`, pooled histories `[B, H·D]`, MLP input
    `[B, F·D + I]`, logits `[B]`.

    Args:
        embedding_bag_collection: rows of D numbers.
        schema: names and sizes of the inputs; a history has as many positions as its `max_length`.
        sequences: H histories, list features; each has an encoder of its own.
        heads: of the attention; divides D.
        blocks: layers of an encoder.
        layer_sizes: hidden layers of the MLP.
    """

    def __init__(
        self,
        embedding_bag_collection: nn.Module,
        schema: FeatureSchema,
        *,
        sequences: Sequence[str],
        heads: int = 2,
        blocks: int = 1,
        layer_sizes: Sequence[int] = (256, 128),
    ) -> None:
        super().__init__()
        self.sequences = options.list_features("sequences", sequences, schema.list_lengths)
        dimension = schema.embedding_dimension
        if dimension % options.whole_number("heads", heads):
            allowed = f"a divisor of the embedding dimension {dimension}"
            raise SpecError([FieldProblem("spec.model.options.heads", str(heads), allowed)])
        layers = options.whole_number("blocks", blocks)
        sizes = options.layer_sizes("layer_sizes", layer_sizes)
        self.embedding_bag_collection = embedding_bag_collection
        self.encoders = nn.ModuleList(
            TransformerPooling(dimension, schema.list_lengths[name], heads=heads, layers=layers)
            for name in self.sequences
        )
        self.mlp = LogitMLP(len(schema.sparse_names) * dimension + len(schema.dense_names), sizes)

    @staticmethod
    def row_dimension(embedding_dimension: int) -> int:
        return embedding_dimension

    def forward(self, dense_features: Tensor, sparse_features: KeyedJaggedTensor | DeduplicatedFeatures) -> Tensor:
        _, rows_BFD = pooled_others(self.embedding_bag_collection, sparse_features, self.sequences)
        lists = {name: lists_of(self.embedding_bag_collection, sparse_features, name) for name in self.sequences}
        histories_BX = pool_lists(lists, dict(zip(self.sequences, self.encoders, strict=True)))
        return self.mlp(torch.cat([rows_BFD.flatten(1), histories_BX, dense_features], dim=1))
