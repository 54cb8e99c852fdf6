"""Pooling of lists into one vector each. A module sees lists and knows nothing of repeats: fewer lists, less work.

All take the lists' rows `[L, D]` and offsets int64 `[U + 1]` and give `[U, D]`; an empty list gives zeros.

Legend: L elements of all lists, U lists, M elements of the longest, H heads, D numbers per row.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from elastrec.trainers.deduplication.jagged import pad_lists, reduce_lists, softmax_lists


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


class TransformerPooling(nn.Module):
    """A transformer encoder over the list with learned positions, then the mean of its outputs.

    The behaviour layer of BST (Chen et al., "Behavior Sequence Transformer for E-commerce Recommendation in Alibaba",
    2019, §2.2) without the target item, so that its result belongs to the list alone. Layers normalise first, which
    trains without warm-up.

    Args:
        dimension: D.
        max_length: positions that exist; a longer list is refused, the reader cuts lists to `max_length`.
        heads: of the attention; divides D.
        layers: of the encoder.
        hidden: of the feed-forward part; default 4 D.
    """

    def __init__(
        self, dimension: int, max_length: int, *, heads: int = 2, layers: int = 1, hidden: int | None = None
    ) -> None:
        super().__init__()
        if dimension % heads:
            raise ValueError(f"heads: {heads} is not allowed; allowed: a divisor of the dimension {dimension}")
        self.positions_MD = nn.Parameter(torch.empty(max_length, dimension).normal_(std=0.02))
        self.layers = nn.ModuleList(EncoderLayer(dimension, heads, hidden or 4 * dimension) for _ in range(layers))
        self.last_norm = nn.LayerNorm(dimension)

    def forward(self, rows_LD: Tensor, offsets: Tensor) -> Tensor:
        length_U = offsets.diff()
        longest = int(length_U.max()) if len(length_U) else 0
        if longest > len(self.positions_MD):
            raise ValueError(
                f"list of {longest} ids is not allowed; allowed: max_length {len(self.positions_MD)} at most; raise it "
                "or cut the feature's lists"
            )
        if not longest:
            return rows_LD.new_zeros(len(length_U), rows_LD.shape[1]) + rows_LD.sum()
        padded_UMD, present_UM = pad_lists(rows_LD, offsets, longest)
        padded_UMD = padded_UMD + self.positions_MD[:longest]
        # A list without elements would attend to nothing, which is no number; it looks at one pad and is zeroed below.
        visible_UM = present_UM.clone()
        visible_UM[:, 0] = True
        for layer in self.layers:
            padded_UMD = layer(padded_UMD, visible_UM)
        kept_UMD = self.last_norm(padded_UMD) * present_UM.unsqueeze(2)
        return kept_UMD.sum(dim=1) / length_U.clamp(min=1).unsqueeze(1)


class EncoderLayer(nn.Module):
    """Multi-head self-attention and a feed-forward part, each normalised before and added to its input.

    Vaswani et al., "Attention Is All You Need", 2017, §3.1–3.3, eq. 1–2.
    """

    def __init__(self, dimension: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(dimension)
        self.inputs = nn.Linear(dimension, 3 * dimension)
        self.output = nn.Linear(dimension, dimension)
        self.hidden_norm = nn.LayerNorm(dimension)
        self.hidden = nn.Sequential(nn.Linear(dimension, hidden), nn.ReLU(), nn.Linear(hidden, dimension))

    def forward(self, rows_UMD: Tensor, visible_UM: Tensor) -> Tensor:
        lists, longest, dimension = rows_UMD.shape
        mixed = self.inputs(self.attention_norm(rows_UMD)).view(lists, longest, 3, self.heads, -1)
        query, key, value = mixed.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=visible_UM[:, None, None, :])
        rows_UMD = rows_UMD + self.output(attended.transpose(1, 2).reshape(lists, longest, dimension))
        return rows_UMD + self.hidden(self.hidden_norm(rows_UMD))
