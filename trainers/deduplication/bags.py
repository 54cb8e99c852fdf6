"""DeduplicatedBags: sum and mean pooling of distinct rows over any embedding bag collection (RecD's O5, §5.1)."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from elastrec.trainers.deduplication.features import DeduplicatedFeatures
from elastrec.trainers.deduplication.jagged import expand_rows, jagged_index_select

Features: TypeAlias = DeduplicatedFeatures | KeyedJaggedTensor


class BagsOver(nn.Module):
    """A wrapper that replaces an embedding bag collection.

    Args:
        collection: torchrec's, the one over parameter servers, or another of this kind.
    """

    def __init__(self, collection: nn.Module) -> None:
        super().__init__()
        self.collection = collection

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def embedding_bag_configs(self) -> list[EmbeddingBagConfig]:
        """The collection's tables."""
        configs: list[EmbeddingBagConfig] = self.collection.embedding_bag_configs()
        return configs

    def is_weighted(self) -> bool:
        return False

    def recognised(self, features: Features) -> Features:
        """The features as the collection takes them."""
        return features

    def rows(self, features: Features, name: str) -> Tensor:
        """One row for each id of a feature, `[L, D]`, in their order, if the collection below has such a method."""
        rows: Tensor = self.collection.rows(features, name)
        return rows


class DeduplicatedBags(BagsOver):
    """An embedding bag collection that also takes deduplicated features, and pools each distinct row once.

    Models call it as they call the collection itself. Input: DeduplicatedFeatures, or a KeyedJaggedTensor that is
    passed on. Output: KeyedTensor `[B, sum of dimensions]` as the collection's.

    A model without support for deduplication gets `features.expanded`, which is recognised here, so that its distinct
    rows are pooled once as well.

    Args:
        collection: torchrec's, or the one over parameter servers.
    """

    def __init__(self, collection: nn.Module) -> None:
        super().__init__(collection)
        self._prefetched: list[tuple[DeduplicatedFeatures, Any]] = []  # with their pulls
        self._open: DeduplicatedFeatures | None = None

    def prefetch(self, features: Features, *, dense: bool = False) -> Any:
        """Starts the pull that `forward` of these features will wait for: see RemoteEmbeddingBagCollection.

        An id of a distinct row counts as seen once per row of the batch that it stands for.
        """
        if isinstance(features, KeyedJaggedTensor):
            return self.collection.prefetch(features, dense=dense)
        pulled = self.collection.prefetch(features.stacked, dense=dense, repeats=lambda: features.repeats)
        self._prefetched.append((features, pulled))
        return pulled

    def discard(self, pulled: Any) -> None:
        """See RemoteEmbeddingBagCollection."""
        self._prefetched = [each for each in self._prefetched if each[1] is not pulled]
        self.collection.discard(pulled)

    def forget(self) -> None:
        """Drops prefetched pulls."""
        self._prefetched.clear()
        self._open = None
        self.collection.forget()

    def forward(self, features: Features) -> KeyedTensor:
        features = self.recognised(features)
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
        if not runs:
            return pooled
        blocks = []
        for (key, _), block in zip(runs, pooled.values().split([length for _, length in runs], dim=1), strict=True):
            lookup = lookups[key]
            blocks.append(block if lookup is None else expand_rows(block[: distinct[key]].contiguous(), lookup))
        return KeyedTensor(keys=pooled.keys(), length_per_key=pooled.length_per_key(), values=torch.cat(blocks, dim=1))

    def rows(self, features: Features, name: str) -> Tensor:
        """As in `BagsOver`, also for features in their deduplicated form: with the rows of repeated lists repeated."""
        features = self.recognised(features)
        if isinstance(features, KeyedJaggedTensor):
            return super().rows(features, name)
        rows_LD: Tensor = self.collection.rows(features.stacked, name)
        group = next((group for group in features.groups if name in group.keys), None)
        if group is None:
            return rows_LD
        return jagged_index_select(rows_LD, group.feature(name)[1], group.inverse_lookup)[0]

    def recognised(self, features: Features) -> Features:
        """The deduplicated form of prefetched features in either form; otherwise the same object."""
        for index, (each, _) in enumerate(self._prefetched):
            if each is features or each.is_expanded_as(features):
                self._open = each
                del self._prefetched[index]
                return each
        if self._open is not None and self._open.is_expanded_as(features):
            return self._open
        return features
