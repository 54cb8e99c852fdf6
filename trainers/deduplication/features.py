"""DeduplicatedFeatures: all sparse features of a minibatch, some plain, some in groups without repeats."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from elastrec.platform.data.deduplicating.deduplicated_batch import groups_of, plain_part
from elastrec.platform.data.reading.batches import ids_of, sparse_names
from elastrec.trainers.deduplication.tensor import InverseKeyedJaggedTensor, has_same_ids


@dataclass(frozen=True)
class DeduplicatedFeatures:
    """The counterpart of a plain batch's KeyedJaggedTensor.

    Attributes:
        plain: features that are not deduplicated, stride B; None if all are.
        groups: each with its own inverse lookup.
    """

    plain: KeyedJaggedTensor | None
    groups: tuple[InverseKeyedJaggedTensor, ...]

    @property
    def rows(self) -> int:
        """B."""
        return self.plain.stride() if self.plain is not None else self.groups[0].rows

    def keys(self) -> list[str]:
        """Names of all features, plain ones first."""
        names = list(self.plain.keys()) if self.plain is not None else []
        return names + [key for group in self.groups for key in group.keys]

    def lookups(self) -> Iterator[tuple[str, Tensor | None]]:
        """(feature, inverse lookup int64 [B], or None for a plain one)."""
        for key in self.plain.keys() if self.plain is not None else ():
            yield key, None
        for group in self.groups:
            for key in group.keys:
                yield key, group.inverse_lookup

    @cached_property
    def stacked(self) -> KeyedJaggedTensor:
        """One KeyedJaggedTensor of stride B: a group's first U bags hold its distinct rows, its others nothing.

        So one request serves features with different numbers of rows, and an empty bag costs very little. It is created
        once, so that its prefetched rows are found again.
        """
        values: list[Tensor] = []
        lengths: list[Tensor] = []
        if self.plain is not None:
            values.append(self.plain.values())
            lengths.append(self.plain.lengths())
        for group in self.groups:
            values.append(group.values)
            length_KB = group.offsets.new_zeros(len(group.keys), group.rows)
            length_KB[:, : group.distinct_rows] = group.offsets.diff().view(len(group.keys), -1)
            lengths.append(length_KB.view(-1))
        return KeyedJaggedTensor(
            keys=self.keys(),
            values=torch.cat(values),
            lengths=torch.cat([each.to(torch.int32) for each in lengths]),
            stride=self.rows,
        )

    @property
    def repeats(self) -> Tensor:
        """The number of the batch's rows for each id of `stacked`, int64 `[L]`."""
        counts: list[Tensor] = []
        if self.plain is not None:
            counts.append(torch.ones(len(self.plain.values()), dtype=torch.int64))
        for group in self.groups:
            counts.append(torch.repeat_interleave(group.row_counts.repeat(len(group.keys)), group.offsets.diff()))
        return torch.cat(counts)

    @cached_property
    def expanded(self) -> KeyedJaggedTensor:
        """`expand`, created once, so that its prefetched rows are found again."""
        return self.expand()

    def is_expanded_as(self, features: DeduplicatedFeatures | KeyedJaggedTensor) -> bool:
        """Whether this object is the plain form that `expanded` gave out, or a copy of it (see `has_same_ids`)."""
        expanded: KeyedJaggedTensor | None = self.__dict__.get("expanded")
        return expanded is not None and isinstance(features, KeyedJaggedTensor) and has_same_ids(features, expanded)

    def expand(self) -> KeyedJaggedTensor:
        """The plain form of all features."""
        parts = [self.plain] if self.plain is not None else []
        parts += [group.expand() for group in self.groups]
        return KeyedJaggedTensor(
            keys=self.keys(),
            values=torch.cat([part.values() for part in parts]),
            lengths=torch.cat([part.lengths().to(torch.int32) for part in parts]),
            stride=self.rows,
        )

    @classmethod
    def from_batch(cls, batch: pa.RecordBatch) -> DeduplicatedFeatures:
        """The sparse features of a result of `deduplicate_batch`."""
        plain = plain_part(batch)
        groups = tuple(InverseKeyedJaggedTensor.from_numpy(group) for group in groups_of(batch))
        if not sparse_names(plain):
            return cls(None, groups)
        jagged = ids_of(plain)
        features = KeyedJaggedTensor(
            keys=list(jagged.keys),
            values=torch.tensor(jagged.values),
            lengths=torch.tensor(jagged.lengths.reshape(-1)),
            stride=batch.num_rows,
        )
        return cls(features, groups)
