"""A transformer encoder over lists, and its two uses: a list alone, pooled, and a history with the item to be scored.

Legend: L elements of all lists, U lists, B batch, m elements of the longest list, M positions, H heads, D numbers per
row.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from elastrec.trainers.deduplication.jagged import expand_rows, jagged_places, pad_lists
from elastrec.trainers.deduplication.lists import Lists


class SequenceEncoder(nn.Module):
    """Learned positions, layers of self-attention, and a norm: the behaviour layer of BST.

    Chen et al., "Behavior Sequence Transformer for E-commerce Recommendation in Alibaba", DLP-KDD 2019, §2.2. Layers
    normalise first, which trains without warm-up.

    Args:
        dimension: D.
        positions: M.
        heads: of the attention; divides D.
        layers: of the encoder.
        hidden: of the feed-forward part; default 4 D.
    """

    def __init__(
        self, dimension: int, positions: int, *, heads: int = 2, layers: int = 1, hidden: int | None = None
    ) -> None:
        super().__init__()
        if dimension % heads:
            raise ValueError(f"heads: {heads} is not allowed; allowed: a divisor of the dimension {dimension}")
        self.positions_MD = nn.Parameter(torch.empty(positions, dimension).normal_(std=0.02))
        self.layers = nn.ModuleList(EncoderLayer(dimension, heads, hidden or 4 * dimension) for _ in range(layers))
        self.last_norm = nn.LayerNorm(dimension)

    def encode(self, rows_UmD: Tensor, present_Um: Tensor) -> Tensor:
        """One output per element, `[U, m, D]`; zeros for those that are absent."""
        # The softmax of an empty list would be NaN; such a list attends to one padding element and is set to zero
        # below.
        visible_Um = present_Um.clone()
        visible_Um[:, 0] = True
        rows_UmD = rows_UmD + self.positions_MD[: rows_UmD.shape[1]]
        for layer in self.layers:
            rows_UmD = layer(rows_UmD, visible_Um)
        return self.last_norm(rows_UmD) * present_Um.unsqueeze(2)

    @staticmethod
    def longest(length_U: Tensor, allowed: int) -> int:
        """m.

        Raises:
            ValueError: a list has more than `allowed` ids.
        """
        longest = int(length_U.max()) if len(length_U) else 0
        if longest > allowed:
            raise ValueError(
                f"list of {longest} ids is not allowed; allowed: max_length {allowed} at most; raise it or cut the "
                "feature's lists"
            )
        return longest


class TransformerPooling(SequenceEncoder):
    """The mean of the encoder's outputs over a list alone, `[U, D]`: equal lists need to be encoded once.

    A list may have as many ids as there are positions. Takes and gives what AttentionPooling does.
    """

    def forward(self, rows_LD: Tensor, offsets: Tensor) -> Tensor:
        """Pools lists.

        Raises:
            ValueError: a list has more ids than there are positions.
        """
        length_U = offsets.diff()
        longest = self.longest(length_U, len(self.positions_MD))
        if not longest:
            return rows_LD.new_zeros(len(length_U), rows_LD.shape[1]) + rows_LD.sum()
        encoded_UmD = self.encode(*pad_lists(rows_LD, offsets, longest))
        return encoded_UmD.sum(dim=1) / length_U.clamp(min=1).unsqueeze(1)


class TargetTransformer(SequenceEncoder):
    """The encoder's outputs at all positions side by side, `[B, (max_length + 1) · D]`, as in the paper.

    The target comes first, then the history from its end on: a position counts from the target, where the paper takes
    the time until then. Positions that a history does not fill are zero. The sequence differs from row to row with its
    target, so equal histories are looked up once but encoded for each row.

    Args:
        dimension: D, of rows and targets.
        max_length: of a history.
        heads, layers, hidden: of SequenceEncoder.
    """

    def __init__(
        self, dimension: int, max_length: int, *, heads: int = 2, layers: int = 1, hidden: int | None = None
    ) -> None:
        super().__init__(dimension, max_length + 1, heads=heads, layers=layers, hidden=hidden)

    def forward(self, lists: Lists, target_BD: Tensor) -> Tensor:
        """Encodes one feature's lists, each with its row's target.

        Raises:
            ValueError: a list has more than `max_length` ids.
        """
        rows_LD, offsets = lists.rows_LD, lists.offsets
        if lists.lookup_B is not None:
            place_L, offsets = jagged_places(offsets, lists.lookup_B)
            rows_LD = expand_rows(rows_LD, place_L)
        length_B = offsets.diff()
        allowed = len(self.positions_MD) - 1
        longest = self.longest(length_B, allowed)
        sequence_BmD = target_BD.unsqueeze(1)
        present_Bm = torch.ones(len(length_B), 1, dtype=torch.bool)
        if longest:
            padded_BmD, filled_Bm = pad_lists(rows_LD, offsets, longest)
            from_end_Bm = (length_B.unsqueeze(1) - 1 - torch.arange(longest)).clamp(min=0)
            reversed_BmD = padded_BmD.gather(1, from_end_Bm.unsqueeze(2).expand(-1, -1, padded_BmD.shape[2]))
            sequence_BmD = torch.cat([sequence_BmD, reversed_BmD], dim=1)
            present_Bm = torch.cat([present_Bm, filled_Bm], dim=1)
        encoded_BmD = self.encode(sequence_BmD, present_Bm)
        return functional.pad(encoded_BmD, (0, 0, 0, allowed - longest)).flatten(1)


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
