"""Lists pooled by attention before a model gets them: `pooling: attention` of a feature, in any model.

Legend: B batch, L elements of all lists, U lists, D numbers per row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedTensor

from elastrec.trainers.deduplication.bags import BagsOver, Features
from elastrec.trainers.deduplication.jagged import softmax_lists, sum_lists
from elastrec.trainers.deduplication.lists import lists_of, pool_lists


class AttentionPooling(nn.Module):
    """Weights from a learned query: softmax of v · tanh(W x + b) within the list. No padding.

    Maps the lists' rows `[L, D]` and offsets int64 `[U + 1]` to `[U, D]`; an empty list gives zeros. It is independent
    of deduplication, which only reduces the number of lists.

    Yang et al., "Hierarchical Attention Networks for Document Classification", 2016, eq. 5–7.

    Args:
        dimension: D, which is the height of W, too.
    """

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.project = nn.Linear(dimension, dimension)
        self.score = nn.Linear(dimension, 1, bias=False)

    def forward(self, rows_LD: Tensor, offsets: Tensor) -> Tensor:
        scores_L = self.score(torch.tanh(self.project(rows_LD))).squeeze(1)
        return sum_lists(rows_LD, offsets, softmax_lists(scores_L, offsets).to(rows_LD.dtype))


class AttentionBags(BagsOver):
    """An embedding bag collection of which some lists are pooled by attention, each distinct list once (RecD §5).

    Models call it as they call the collection itself. Output: KeyedTensor `[B, sum of dimensions]` of these lists and
    of the features that the collection pools, in the order of its tables, whether it leaves these lists out or pools
    them, too.

    Args:
        collection: torchrec's, the one over parameter servers, or DeduplicatedBags.
        names: the lists, at least one.
    """

    def __init__(self, collection: nn.Module, names: Sequence[str]) -> None:
        super().__init__(collection)
        tables = self.embedding_bag_configs()
        self._widths = {name: table.embedding_dim for table in tables for name in table.feature_names}
        # Parameters are known by the feature's name, in which a module must have no dot.
        self._modules_by_name = {name: f"pooling_{name.replace('.', '·')}" for name in names}
        for name, module in self._modules_by_name.items():
            self.add_module(module, AttentionPooling(self._widths[name]))

    def forward(self, features: Features) -> KeyedTensor:
        pooled = self.collection(features)
        lists = {name: lists_of(self.collection, features, name) for name in self._modules_by_name}
        poolings = {name: self.get_submodule(module) for name, module in self._modules_by_name.items()}
        attended_BX = pool_lists(lists, poolings)
        blocks = dict(zip(lists, attended_BX.split([self._widths[name] for name in lists], dim=1), strict=True))
        left = {**pooled.to_dict(), **blocks}
        names = [name for name in self._widths if name in left]
        return KeyedTensor(
            keys=names,
            length_per_key=[self._widths[name] for name in names],
            values=torch.cat([left[name] for name in names], dim=1),
        )
