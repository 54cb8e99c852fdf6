"""Pooling of lists into one vector each. A module sees lists and knows nothing of repeats: fewer lists, less work.

All take the lists' rows `[L, D]` and offsets int64 `[U + 1]` and give `[U, D]`; an empty list gives zeros.

Legend: L elements of all lists, U lists, D numbers per row.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from elastrec.trainers.deduplication.jagged import reduce_lists, softmax_lists


class SumPooling(nn.Module):
    """The sum of a list's rows."""

    def forward(self, rows_LD: Tensor, offsets: Tensor) -> Tensor:
        return reduce_lists(rows_LD, offsets, "sum")


class MeanPooling(nn.Module):
    """The mean of a list's rows."""

    def forward(self, rows_LD: Tensor, offsets: Tensor) -> Tensor:
        return reduce_lists(rows_LD, offsets, "mean")


class MaxPooling(nn.Module):
    """The largest of each column."""

    def forward(self, rows_LD: Tensor, offsets: Tensor) -> Tensor:
        return reduce_lists(rows_LD, offsets, "max")


class AttentionPooling(nn.Module):
    """Weights from a learned query: softmax of v · tanh(W x + b) within the list. No padding.

    Yang et al., "Hierarchical Attention Networks for Document Classification", 2016, eq. 5–7.

    Args:
        dimension: D.
        hidden: rows of W; default D.
    """

    def __init__(self, dimension: int, hidden: int | None = None) -> None:
        super().__init__()
        self.project = nn.Linear(dimension, hidden or dimension)
        self.score = nn.Linear(hidden or dimension, 1, bias=False)

    def forward(self, rows_LD: Tensor, offsets: Tensor) -> Tensor:
        scores_L = self.score(torch.tanh(self.project(rows_LD))).squeeze(1)
        return reduce_lists(rows_LD, offsets, "sum", softmax_lists(scores_L, offsets).to(rows_LD.dtype))
