"""DeduplicatedBags: sum and mean pooling of distinct rows over any embedding bag collection (RecD's O5, §5.1)."""

from __future__ import annotations

import torch
from torch import nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from elastrec.trainers.deduplication.features import DeduplicatedFeatures
from elastrec.trainers.deduplication.jagged import expand_rows


class DeduplicatedBags(nn.Module):
    """An embedding bag collection that also takes deduplicated features, and pools each distinct row once.

    Models call it as they call the collection itself. Input: DeduplicatedFeatures, or a KeyedJaggedTensor that is
    passed on. Output: KeyedTensor `[B, sum of dimensions]` as the collection's.

    Args:
        collection: torchrec's, or the one over parameter servers.
    """

    def __init__(self, collection: nn.Module) -> None:
        super().__init__()
        self.collection = collection

    def forward(self, features: DeduplicatedFeatures | KeyedJaggedTensor) -> KeyedTensor:
        if isinstance(features, KeyedJaggedTensor):
            return self.collection(features)
        pooled = self.collection(features.stacked)
        distinct = {key: group.distinct_rows for group in features.groups for key in group.keys}
        lookups = dict(features.lookups())
        # Neighbouring columns of one group are expanded together.
        runs: list[tuple[str, int]] = []
        for key, length in zip(pooled.keys(), pooled.length_per_key(), strict=True):
            if runs and lookups[runs[-1][0]] is lookups[key]:
                runs[-1] = (runs[-1][0], runs[-1][1] + length)
            else:
                runs.append((key, length))
        blocks = []
        for (key, _), block in zip(runs, pooled.values().split([length for _, length in runs], dim=1), strict=True):
            lookup = lookups[key]
            blocks.append(block if lookup is None else expand_rows(block[: distinct[key]].contiguous(), lookup))
        return KeyedTensor(keys=pooled.keys(), length_per_key=pooled.length_per_key(), values=torch.cat(blocks, dim=1))
