"""Parts that several models share.

Legend of shapes: B batch, I dense features, F sparse features, D embedding dimension, R row dimension (D or D + 1).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torchrec.modules.mlp import MLP
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor


def pooled_rows(embedding_bag_collection: nn.Module, sparse_features: KeyedJaggedTensor) -> Tensor:
    """Pooled rows of all features, `[B, F, R]`, in the order of the collection's tables. All tables have one R."""
    pooled = embedding_bag_collection(sparse_features)
    values = pooled.values()
    return values.reshape(values.shape[0], len(pooled.keys()), -1)


@runtime_checkable
class PoolsApart(Protocol):
    """A collection that can lay pooled rows out as `first_and_others` returns them."""

    def pool_apart(self, features: KeyedJaggedTensor, first: int, beside: Tensor | None) -> tuple[Tensor, Tensor]: ...


def beside_dense(
    embedding_bag_collection: nn.Module, sparse_features: KeyedJaggedTensor, dense_features_BI: Tensor
) -> Tensor:
    """Pooled rows of all features and the dense features side by side, `[B, sum of R + I]`."""
    if isinstance(embedding_bag_collection, PoolsApart) and _may_lie_apart(embedding_bag_collection, dense_features_BI):
        return embedding_bag_collection.pool_apart(sparse_features, 0, dense_features_BI)[1]
    return torch.cat([embedding_bag_collection(sparse_features).values(), dense_features_BI], dim=1)


def first_and_others(
    embedding_bag_collection: nn.Module, sparse_features: KeyedJaggedTensor, beside_BI: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The first numbers of the pooled rows of all features, `[B, F]`, and all other numbers side by side, `[B, F·D]`.

    Tables may have different R; then the others are `[B, sum of R - F]`.

    Args:
        beside_BI: follows the others, `[B, F·D + I]`.
    """
    if isinstance(embedding_bag_collection, PoolsApart) and _may_lie_apart(embedding_bag_collection, beside_BI):
        return embedding_bag_collection.pool_apart(sparse_features, 1, beside_BI)
    pooled = embedding_bag_collection(sparse_features)
    values, lengths = pooled.values(), pooled.length_per_key()
    if len(set(lengths)) == 1:
        rows_BFR = values.reshape(values.shape[0], len(lengths), -1)
        firsts_BF, others = rows_BFR[:, :, 0], [rows_BFR[:, :, 1:].flatten(1)]
    else:
        blocks = values.split(lengths, dim=1)
        firsts_BF, others = torch.stack([block[:, 0] for block in blocks], dim=1), [block[:, 1:] for block in blocks]
    others += [] if beside_BI is None else [beside_BI]
    return firsts_BF, others[0] if len(others) == 1 else torch.cat(others, dim=1)


def _may_lie_apart(collection: nn.Module, beside: Tensor | None) -> bool:
    # In evaluation the pooled rows themselves are wanted, too: predictions are kept with them.
    return collection.training and (beside is None or (beside.dtype is torch.float32 and not beside.requires_grad))


def pooled_others(
    embedding_bag_collection: nn.Module, sparse_features: KeyedJaggedTensor, sequences: Collection[str]
) -> tuple[list[str], Tensor]:
    """Names and pooled rows `[B, F, R]` of the features that are not among `sequences`, in the order of the tables."""
    pooled = embedding_bag_collection(sparse_features)
    names = [name for name in pooled.keys() if name not in sequences]  # noqa: SIM118 (a KeyedTensor is no mapping)
    values = pooled.values()
    if len(names) == len(pooled.keys()):
        return names, values.reshape(values.shape[0], len(names), -1)
    return names, torch.stack([pooled[name] for name in names], dim=1)


class LogitMLP(nn.Module):
    """Hidden ReLU layers (torchrec's MLP) and a linear output: `[B, in_features]` to `[B]`."""

    def __init__(self, in_features: int, layer_sizes: Sequence[int]) -> None:
        super().__init__()
        self.hidden = MLP(in_features, list(layer_sizes), activation="relu")
        self.output = nn.Linear(layer_sizes[-1], 1)

    def forward(self, input_BX: Tensor) -> Tensor:
        return self.output(self.hidden(input_BX)).squeeze(1)


class FirstOrder(nn.Module):
    """The linear part: bias + sum of the ids' weights + a weight per dense feature.

    The ids' weights are the first column of the rows, so that one table (and one pull) serves linear and deep part.
    All weights start at zero.
    """

    def __init__(self, dense_count: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))
        self.dense_weight = nn.Parameter(torch.zeros(dense_count)) if dense_count else None

    def forward(self, dense_features_BI: Tensor, weights_BF: Tensor) -> Tensor:
        logit_B = weights_BF.sum(dim=1) + self.bias
        if self.dense_weight is not None:
            logit_B = logit_B + dense_features_BI @ self.dense_weight
        return logit_B


class DenseFields(nn.Module):
    """Dense features as fields: feature i contributes x_i · v_i with a learned vector v_i.

    DeepFM §2.1: a continuous field is its value, or a vector of it. `[B, I]` and `[B, F, D]` to `[B, F + I, D]`.
    """

    def __init__(self, dense_count: int, dimension: int) -> None:
        super().__init__()
        self.vectors_ID = (
            nn.Parameter(torch.empty(dense_count, dimension).uniform_(-(dimension**-0.5), dimension**-0.5))
            if dense_count
            else None
        )

    def forward(self, dense_features_BI: Tensor, sparse_BFD: Tensor) -> Tensor:
        if self.vectors_ID is None:
            return sparse_BFD
        return torch.cat([sparse_BFD, dense_features_BI.unsqueeze(2) * self.vectors_ID], dim=1)
