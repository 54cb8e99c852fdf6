"""Lists: the rows of one list feature, each distinct list once, from any embedding collection (RecD's O5–O7, §5).

Legend: B batch, U distinct lists, L elements of the distinct lists, D numbers per row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from elastrec.trainers.deduplication.bags import BagsOver
from elastrec.trainers.deduplication.features import DeduplicatedFeatures
from elastrec.trainers.deduplication.jagged import expand_rows


@dataclass(frozen=True)
class Lists:
    """Lists of embedding rows.

    Attributes:
        rows_LD: the elements' rows, list after list.
        offsets: int64 `[U + 1]`.
        lookup_B: int64, the list of each row of the batch; None where list b is that of row b.
    """

    rows_LD: Tensor
    offsets: Tensor
    lookup_B: Tensor | None

    def expand(self, pooled_UD: Tensor) -> Tensor:
        """One vector per list to one per row of the batch, `[B, D]`."""
        return pooled_UD if self.lookup_B is None else expand_rows(pooled_UD, self.lookup_B)


def lists_of(collection: nn.Module, features: DeduplicatedFeatures | KeyedJaggedTensor, name: str) -> Lists:
    """The lists of a feature.

    Args:
        collection: one over others, one that has `rows`, or torchrec's own.
        features: of the batch, the object that the collection itself is called with.
    """
    while isinstance(collection, BagsOver):
        features, collection = collection.recognised(features), collection.collection
    if isinstance(features, KeyedJaggedTensor):
        jagged = features[name]
        return Lists(_rows(collection, features, name), jagged.offsets().to(torch.int64), None)
    rows_LD = _rows(collection, features.stacked, name)
    group = next((group for group in features.groups if name in group.keys), None)
    if group is None:
        assert features.plain is not None, "a feature that no group has is a plain one"
        return Lists(rows_LD, features.plain[name].offsets().to(torch.int64), None)
    return Lists(rows_LD, group.feature(name)[1], group.inverse_lookup)


def pool_lists(lists: Mapping[str, Lists], poolings: Mapping[str, nn.Module]) -> Tensor:
    """All features' lists pooled, `[B, sum of D]`, in their order; those of one group are expanded together.

    Args:
        poolings: per feature a module from rows `[L, D]` and offsets int64 `[U + 1]` to `[U, D]`.
    """
    runs: list[tuple[Lists, list[Tensor]]] = []
    for name, each in lists.items():
        pooled_UD = poolings[name](each.rows_LD, each.offsets)
        if runs and each.lookup_B is not None and runs[-1][0].lookup_B is each.lookup_B:
            runs[-1][1].append(pooled_UD)
        else:
            runs.append((each, [pooled_UD]))
    blocks = [each.expand(pooled[0] if len(pooled) == 1 else torch.cat(pooled, dim=1)) for each, pooled in runs]
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=1)


def _rows(collection: nn.Module, features: KeyedJaggedTensor, name: str) -> Tensor:
    if hasattr(collection, "rows"):
        rows_LD: Tensor = collection.rows(features, name)
        return rows_LD
    # A bag of one id is that id's row, in sum and in mean pooling.
    values = features[name].values()
    keys = features.keys()
    lengths = torch.zeros(len(keys), len(values), dtype=torch.int32)
    lengths[keys.index(name)] = 1
    single = KeyedJaggedTensor(keys=keys, values=values, lengths=lengths.view(-1), stride=len(values))
    found: Tensor = collection(single)[name]
    return found
