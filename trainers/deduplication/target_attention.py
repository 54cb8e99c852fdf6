"""TargetAttention: the history weighted by what is to be scored, DIN's local activation unit on distinct lists.

Zhou et al., "Deep Interest Network for Click-Through Rate Prediction", 2018, §4.3, eq. 3.

Legend: B batch, U distinct lists, L elements of the distinct lists, N elements of the lists of all rows, D numbers per
row, H hidden units.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from elastrec.trainers.deduplication.jagged import expand_rows, jagged_places, list_numbers, reduce_lists
from elastrec.trainers.deduplication.tensor import InverseKeyedJaggedTensor


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

    def forward(
        self, features: InverseKeyedJaggedTensor | KeyedJaggedTensor, name: str, embedding: nn.Module, target_BD: Tensor
    ) -> Tensor:
        """Weigh and sum one feature's lists.

        Args:
            features: of which `name` is used.
            embedding: from ids `[L]` to rows `[L, D]`.
            target_BD: what each row's list is weighed by.
        """
        if isinstance(features, InverseKeyedJaggedTensor):
            values, offsets = features.feature(name)
            lookup_B = features.inverse_lookup
        else:
            values, offsets = features[name].values(), features[name].offsets().to(torch.int64)
            lookup_B = torch.arange(features.stride(), device=values.device)
        rows_LD = embedding(values)
        if not len(rows_LD):
            return target_BD.new_zeros(target_BD.shape) + rows_LD.sum()
        of_row_LH = self.of_row(rows_LD)
        place_N, row_offsets = jagged_places(offsets, lookup_B)
        row_N = list_numbers(row_offsets)
        rows_ND = expand_rows(rows_LD, place_N)
        product_NH = self.of_product(rows_ND * expand_rows(target_BD, row_N))
        hidden_NH = expand_rows(of_row_LH, place_N) + expand_rows(self.of_target(target_BD), row_N) + product_NH
        weight_N = self.score(self.activation(hidden_NH)).squeeze(1)
        return reduce_lists(rows_ND, row_offsets, "sum", weight_N)
