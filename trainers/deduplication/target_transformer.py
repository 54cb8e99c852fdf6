"""TargetTransformer: a transformer encoder over a history and the item that is to be scored, BST's behaviour layer.

Chen et al., "Behavior Sequence Transformer for E-commerce Recommendation in Alibaba", DLP-KDD 2019, §2.2.

Legend: B batch, N elements of the lists of all rows, m elements of the longest, M elements that a list may have, D
numbers per row.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from elastrec.trainers.deduplication.jagged import expand_rows, jagged_places, pad_lists
from elastrec.trainers.deduplication.lists import Lists
from elastrec.trainers.deduplication.pooling import EncoderLayer


class TargetTransformer(nn.Module):
    """Outputs at all positions side by side, `[B, (M + 1) · D]`: the target, then the history from its end on.

    A position is learned, and counts from the target; the paper takes the time until then. Positions that a history
    does not fill are zero. The sequence differs from row to row with its target, so equal histories are looked up once
    but encoded for each row.

    Args:
        dimension: D, of rows and targets.
        max_length: M.
        heads: of the attention; divides D.
        layers: of the encoder.
        hidden: of the feed-forward part; default 4 D.
    """

    def __init__(
        self, dimension: int, max_length: int, *, heads: int = 2, layers: int = 1, hidden: int | None = None
    ) -> None:
        super().__init__()
        self.positions_PD = nn.Parameter(torch.empty(max_length + 1, dimension).normal_(std=0.02))
        self.layers = nn.ModuleList(EncoderLayer(dimension, heads, hidden or 4 * dimension) for _ in range(layers))
        self.last_norm = nn.LayerNorm(dimension)

    def forward(self, lists: Lists, target_BD: Tensor) -> Tensor:
        """Encodes one feature's lists, each with its row's target.

        Raises:
            ValueError: a list has more than M ids.
        """
        rows_ND, offsets = lists.rows_LD, lists.offsets
        if lists.lookup_B is not None:
            place_N, offsets = jagged_places(offsets, lists.lookup_B)
            rows_ND = expand_rows(rows_ND, place_N)
        length_B = offsets.diff()
        longest, allowed = int(length_B.max()) if len(length_B) else 0, len(self.positions_PD) - 1
        if longest > allowed:
            raise ValueError(
                f"list of {longest} ids is not allowed; allowed: max_length {allowed} at most; raise it or cut the "
                "feature's lists"
            )
        sequence_BPD = target_BD.unsqueeze(1)
        visible_BP = torch.ones(len(length_B), 1, dtype=torch.bool)
        if longest:
            padded_BmD, present_Bm = pad_lists(rows_ND, offsets, longest)
            from_end_Bm = (length_B.unsqueeze(1) - 1 - torch.arange(longest)).clamp(min=0)
            reversed_BmD = padded_BmD.gather(1, from_end_Bm.unsqueeze(2).expand(-1, -1, padded_BmD.shape[2]))
            sequence_BPD = torch.cat([sequence_BPD, reversed_BmD], dim=1)
            visible_BP = torch.cat([visible_BP, present_Bm], dim=1)
        sequence_BPD = sequence_BPD + self.positions_PD[: longest + 1]
        for layer in self.layers:
            sequence_BPD = layer(sequence_BPD, visible_BP)
        kept_BPD = self.last_norm(sequence_BPD) * visible_BP.unsqueeze(2)
        return functional.pad(kept_BPD, (0, 0, 0, allowed - longest)).flatten(1)
