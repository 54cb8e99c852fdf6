"""TargetAttention: the history weighted by the scored item, DIN's local activation unit on distinct lists.

Zhou et al., "Deep Interest Network for Click-Through Rate Prediction", 2018, §4.3, eq. 3.

Legend: B batch, U distinct lists, L elements of the distinct lists, N elements of the lists of all rows, D numbers per
row, H hidden units.
"""

from __future__ import annotations

from torch import Tensor, nn

from elastrec.trainers.deduplication.jagged import expand_rows, jagged_places, list_numbers, sum_lists
from elastrec.trainers.deduplication.lists import Lists


class TargetAttention(nn.Module):
    """Sum of the list's rows x with weights a(x, t), `[B, D]`; the weights are not normalised, as in the paper.

    a(x, t) is a network on (x, t, x − t, x * t). Its first layer is linear, so it falls into a part of x, computed once
    per distinct list, a part of t, computed once per row, and the product's part, which is all that is computed for
    each element of each row.

    Args:
        dimension: D, of rows and targets.
        hidden: H.
    """

    def __init__(self, dimension: int, hidden: int = 36) -> None:
        super().__init__()
        self.of_row = nn.Linear(dimension, hidden)
        self.of_target = nn.Linear(dimension, hidden, bias=False)
        self.of_product = nn.Linear(dimension, hidden, bias=False)
        self.activation = nn.PReLU()
        self.score = nn.Linear(hidden, 1)

    def forward(self, lists: Lists, target_BD: Tensor) -> Tensor:
        """Weigh and sum one feature's lists.

        Args:
            lists: of the feature.
            target_BD: the target of each row's list.
        """
        rows_LD, offsets = lists.rows_LD, lists.offsets
        if not len(rows_LD):
            return target_BD.new_zeros(target_BD.shape) + rows_LD.sum()
        rows_ND, of_row_NH, row_offsets = rows_LD, self.of_row(rows_LD), offsets
        if lists.lookup_B is not None:
            place_N, row_offsets = jagged_places(offsets, lists.lookup_B)
            rows_ND, of_row_NH = expand_rows(rows_LD, place_N), expand_rows(of_row_NH, place_N)
        row_N = list_numbers(row_offsets)
        product_NH = self.of_product(rows_ND * expand_rows(target_BD, row_N))
        hidden_NH = of_row_NH + expand_rows(self.of_target(target_BD), row_N) + product_NH
        weight_N = self.score(self.activation(hidden_NH)).squeeze(1)
        return sum_lists(rows_ND, row_offsets, weight_N.to(rows_ND.dtype))
