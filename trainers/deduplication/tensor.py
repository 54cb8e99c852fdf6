"""InverseKeyedJaggedTensor: RecD's IKJT (§4.2) as torch tensors, to and from torchrec's KeyedJaggedTensor.

Legend of shapes: B batch, K features of the group, U distinct rows, L ids of all distinct rows.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from elastrec.platform.data.deduplicating.deduplication import InverseJagged
from elastrec.trainers.deduplication.jagged import jagged_index_select


@dataclass(frozen=True)
class InverseKeyedJaggedTensor:
    """One group of jagged features that share an inverse lookup.

    Attributes:
        keys: K feature names.
        values: int64 `[L]`; feature 0 of all distinct rows first.
        offsets: int64 `[K * U + 1]`.
        inverse_lookup: int64 `[B]`, the distinct row of each row.
    """

    keys: tuple[str, ...]
    values: Tensor
    offsets: Tensor
    inverse_lookup: Tensor

    @property
    def rows(self) -> int:
        """B."""
        return len(self.inverse_lookup)

    @property
    def distinct_rows(self) -> int:
        """U."""
        return (len(self.offsets) - 1) // len(self.keys)

    @cached_property
    def row_counts(self) -> Tensor:
        """The number of the batch's rows for each distinct row, int64 `[U]`."""
        return torch.bincount(self.inverse_lookup, minlength=self.distinct_rows)

    def feature(self, key: str) -> tuple[Tensor, Tensor]:
        """Ids `[L_k]` and offsets int64 `[U + 1]` of one feature's distinct rows.

        Raises:
            ValueError: the group has no such feature.
        """
        if key not in self.keys:
            raise ValueError(f"feature: {key!r} is not allowed; allowed: {', '.join(self.keys)}")
        if len(self.keys) == 1:
            return self.values, self.offsets
        k, rows = self.keys.index(key), self.distinct_rows
        offsets = self.offsets[k * rows : (k + 1) * rows + 1]
        return self.values[int(offsets[0]) : int(offsets[-1])], offsets - offsets[0]

    def distinct(self) -> KeyedJaggedTensor:
        """The distinct rows as a plain KeyedJaggedTensor of stride U; nothing is copied."""
        return KeyedJaggedTensor(
            keys=list(self.keys), values=self.values, offsets=self.offsets, lengths=self.offsets.diff(),
            stride=self.distinct_rows,
        )  # fmt: skip

    def expand(self) -> KeyedJaggedTensor:
        """The plain form, stride B."""
        features = torch.arange(len(self.keys), device=self.offsets.device) * self.distinct_rows
        picked = (features.unsqueeze(1) + self.inverse_lookup).reshape(-1)
        values, offsets = jagged_index_select(self.values, self.offsets, picked)
        return KeyedJaggedTensor(
            keys=list(self.keys), values=values, offsets=offsets, lengths=offsets.diff(), stride=self.rows
        )

    def to(self, device: torch.device | str) -> InverseKeyedJaggedTensor:
        """The same on another device."""
        moved = (each.to(device, non_blocking=True) for each in (self.values, self.offsets, self.inverse_lookup))
        return InverseKeyedJaggedTensor(self.keys, *moved)

    @classmethod
    def from_numpy(cls, group: InverseJagged) -> InverseKeyedJaggedTensor:
        """The group's own memory where it is int64."""
        with warnings.catch_warnings():
            # Arrow's buffers are read-only and torch warns of that; inputs are never written to.
            warnings.simplefilter("ignore", UserWarning)
            return cls(
                group.keys,
                torch.from_numpy(np.ascontiguousarray(group.values)),
                torch.from_numpy(np.ascontiguousarray(group.offsets)),
                torch.from_numpy(group.inverse_lookup.astype(np.int64)),
            )


def has_same_ids(features: KeyedJaggedTensor, others: KeyedJaggedTensor) -> bool:
    """Whether these are one object, or one is a copy with the ids of the other, such as `features.to`."""
    if features is others:
        return True
    return (
        features.values() is others.values()
        and features.keys() == others.keys()
        and torch.equal(features.offsets(), others.offsets())
    )
