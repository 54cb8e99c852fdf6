"""A behaviour sequence transformer: histories read by a transformer encoder, then an MLP.

After Chen et al., "Behavior Sequence Transformer for E-commerce Recommendation in Alibaba", DLP-KDD 2019,
https://arxiv.org/abs/1905.06874. There the target item is an element of the sequence: `sequences: {history: item}`.
With `sequences: [history]` it meets the history in the MLP, so that a history is encoded once for all rows that have it
(RecD §5).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from elastrec.platform.specs.errors import FieldProblem, SpecError
from elastrec.trainers.deduplication import (
    DeduplicatedFeatures,
    TargetTransformer,
    TransformerPooling,
    lists_of,
    pool_lists,
)
from elastrec.trainers.models import options
from elastrec.trainers.models.parts import LogitMLP, pooled_others
from elastrec.trainers.models.schema import FeatureSchema


class Bst(nn.Module):
    """Transformer encoders over histories with learned positions, then an MLP (§2.2 and §2.3 of the paper).

    Shapes: dense `[B, I]`, pooled rows of the other features `[B, F - H, D]`, encoded histories `[B, H·D]`, or with
    targets `[B, Σ (M + 1)·D]` with M of each history, logits `[B]`.

    Args:
        embedding_bag_collection: rows of D numbers.
        schema: names and sizes of the inputs; a history has as many positions as its `max_length`.
        sequences: H histories, list features, or a mapping from them to the features of their target items; each has
            an encoder of its own.
        heads: of the attention; divides D.
        blocks: layers of an encoder.
        layer_sizes: hidden layers of the MLP.
    """

    def __init__(
        self,
        embedding_bag_collection: nn.Module,
        schema: FeatureSchema,
        *,
        sequences: Sequence[str] | Mapping[str, str],
        heads: int = 2,
        blocks: int = 1,
        layer_sizes: Sequence[int] = (256, 128),
    ) -> None:
        super().__init__()
        self.targets: dict[str, str] | None = None
        if isinstance(sequences, Mapping):
            self.targets = options.targets("sequences", sequences, schema.list_lengths, schema.sparse_names)
        self.sequences = options.list_features("sequences", sequences, schema.list_lengths)
        dimension = schema.embedding_dimension
        if dimension % options.whole_number("heads", heads):
            allowed = f"a divisor of the embedding dimension {dimension}"
            raise SpecError([FieldProblem("spec.model.options.heads", str(heads), allowed)])
        layers = options.whole_number("blocks", blocks)
        sizes = options.layer_sizes("layer_sizes", layer_sizes)
        self.embedding_bag_collection = embedding_bag_collection
        kind = TransformerPooling if self.targets is None else TargetTransformer
        lengths = [schema.list_lengths[name] for name in self.sequences]
        self.encoders = nn.ModuleList(kind(dimension, length, heads=heads, layers=layers) for length in lengths)
        others = len(schema.sparse_names) - len(lengths)
        encoded = len(lengths) if self.targets is None else sum(length + 1 for length in lengths)
        self.mlp = LogitMLP((others + encoded) * dimension + len(schema.dense_names), sizes)

    @staticmethod
    def row_dimension(embedding_dimension: int) -> int:
        return embedding_dimension

    def forward(self, dense_features: Tensor, sparse_features: KeyedJaggedTensor | DeduplicatedFeatures) -> Tensor:
        names, rows_BFD = pooled_others(self.embedding_bag_collection, sparse_features, self.sequences)
        lists = {name: lists_of(self.embedding_bag_collection, sparse_features, name) for name in self.sequences}
        if self.targets is None:
            histories_BX = pool_lists(lists, dict(zip(self.sequences, self.encoders, strict=True)))
        else:
            encoded = [
                encoder(lists[history], rows_BFD[:, names.index(target)])
                for encoder, (history, target) in zip(self.encoders, self.targets.items(), strict=True)
            ]
            histories_BX = torch.cat(encoded, dim=1)
        return self.mlp(torch.cat([rows_BFD.flatten(1), histories_BX, dense_features], dim=1))
