"""Picking and reducing jagged rows without padding, forward and backward.

Legend: L list elements, U lists, B picked lists, D numbers per row.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn import functional


def expand_rows(rows_UD: Tensor, index_B: Tensor) -> Tensor:
    """rows_UD[index_B], `[B, D]`."""
    expanded_BD: Tensor = _ExpandRows.apply(rows_UD, index_B)
    return expanded_BD


class _ExpandRows(torch.autograd.Function):
    """A look-up's gradient visits row after row; adding by index is three to five times as quick on CPU, but several
    times slower where the gradient is a part of a wider one, as behind a concatenation: hence the copy."""

    @staticmethod
    def forward(ctx: Any, rows_UD: Tensor, index_B: Tensor) -> Tensor:
        ctx.shape = rows_UD.shape
        ctx.save_for_backward(index_B)
        return rows_UD.index_select(0, index_B)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_BD: Tensor) -> tuple[Tensor, None]:
        (index_B,) = ctx.saved_tensors
        return gradient_BD.new_zeros(ctx.shape).index_add_(0, index_B, gradient_BD.contiguous()), None


def jagged_index_select(rows_LD: Tensor, offsets: Tensor, index_B: Tensor) -> tuple[Tensor, Tensor]:
    """The lists that `index_B` names, in that order, without padding (RecD's O6, §5.2).

    Args:
        rows_LD: `[L, D]` numbers, or `[L]` ids, of all lists.
        offsets: int64 `[U + 1]`.
        index_B: int64 or int32 `[B]`, below U.

    Returns:
        Their elements and offsets int64 `[B + 1]`.
    """
    places, picked = jagged_places(offsets, index_B)
    if rows_LD.dim() == 1:
        return rows_LD.index_select(0, places), picked
    return expand_rows(rows_LD, places), picked


def jagged_places(offsets: Tensor, index_B: Tensor) -> tuple[Tensor, Tensor]:
    """Positions of the picked lists' elements, int64, and the picked lists' offsets int64 `[B + 1]`."""
    begins = offsets[:-1].index_select(0, index_B)
    lengths = offsets[1:].index_select(0, index_B) - begins
    picked = offsets.new_zeros(len(index_B) + 1)
    torch.cumsum(lengths, 0, out=picked[1:])
    shift = torch.repeat_interleave(begins - picked[:-1], lengths)
    return shift + torch.arange(len(shift), device=offsets.device), picked


def list_numbers(offsets: Tensor) -> Tensor:
    """For each element the number of its list, int64 `[L]`."""
    lengths = offsets.diff()
    return torch.repeat_interleave(torch.arange(len(lengths), device=offsets.device), lengths)


def sum_lists(rows_LD: Tensor, offsets: Tensor, weights_L: Tensor) -> Tensor:
    """The weighted sum of each list, `[U, D]`; zero for an empty one."""
    if not len(rows_LD):
        # embedding_bag refuses a table without rows.
        return rows_LD.new_zeros(len(offsets) - 1, rows_LD.shape[1]) + rows_LD.sum()
    total_UD: Tensor = _SumLists.apply(rows_LD, offsets, weights_L)
    return total_UD


def softmax_lists(scores_L: Tensor, offsets: Tensor) -> Tensor:
    """Softmax within each list, `[L]`, float32 or wider: bfloat16 cannot add more than 256 equal shares."""
    wide_L = scores_L.to(torch.promote_types(scores_L.dtype, torch.float32))
    shares_L: Tensor = _SoftmaxLists.apply(wide_L, offsets)
    return shares_L


class _SumLists(torch.autograd.Function):
    """Weighted sums. Their gradient is each list's own, spread over its elements: embedding_bag's would sort the
    elements first, as if several could stand for one row."""

    @staticmethod
    def forward(ctx: FunctionCtx, rows_LD: Tensor, offsets: Tensor, weights_L: Tensor) -> Tensor:
        elements = torch.arange(len(rows_LD), device=rows_LD.device)
        ctx.save_for_backward(offsets, weights_L, rows_LD)
        return functional.embedding_bag(
            elements, rows_LD, offsets, mode="sum", per_sample_weights=weights_L, include_last_offset=True
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_UD: Tensor) -> tuple[Tensor, None, Tensor]:
        offsets, weights_L, rows_LD = ctx.saved_tensors
        gradient_LD = gradient_UD.index_select(0, torch.repeat_interleave(offsets.diff()))
        weights_gradient_L = torch.linalg.vecdot(gradient_LD, rows_LD)
        return gradient_LD.mul_(weights_L.unsqueeze(1)), None, weights_gradient_L


class _SoftmaxLists(torch.autograd.Function):
    """One operation forward and one backward instead of a dozen, each of which costs as much for a hundred elements as
    for thousands."""

    @staticmethod
    def forward(ctx: Any, scores_L: Tensor, offsets: Tensor) -> Tensor:
        lists = len(offsets) - 1
        number_L = torch.repeat_interleave(offsets.diff())
        # Softmax does not change when a list's scores are shifted; its largest becomes 0 so that none overflows.
        largest_U = scores_L.new_full((lists,), -torch.inf).scatter_reduce_(0, number_L, scores_L, "amax")
        shares_L = (scores_L - largest_U.index_select(0, number_L)).exp_()
        total_U = scores_L.new_zeros(lists).index_add_(0, number_L, shares_L)
        shares_L = shares_L.div_(total_U.index_select(0, number_L))
        ctx.lists = lists
        ctx.save_for_backward(shares_L, number_L)
        return shares_L

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_L: Tensor) -> tuple[Tensor, None]:
        shares_L, number_L = ctx.saved_tensors
        weighted_L = shares_L * gradient_L
        total_U = weighted_L.new_zeros(ctx.lists).index_add_(0, number_L, weighted_L)
        return weighted_L.addcmul_(shares_L, total_U.index_select(0, number_L), value=-1), None


def pad_lists(rows_LD: Tensor, offsets: Tensor, longest: int) -> tuple[Tensor, Tensor]:
    """Lists side by side, `[U, longest, D]` with zeros behind their ends, and bool `[U, longest]`: true where an
    element is."""
    lists, dimension = len(offsets) - 1, rows_LD.shape[1]
    place_L = torch.arange(len(rows_LD), device=offsets.device)
    begins = torch.arange(lists, device=offsets.device) * longest - offsets[:-1]
    place_L = place_L + torch.repeat_interleave(begins, offsets.diff())
    padded = rows_LD.new_zeros(lists * longest, dimension).index_copy(0, place_L, rows_LD)
    present = torch.arange(longest, device=offsets.device) < offsets.diff().unsqueeze(1)
    return padded.view(lists, longest, dimension), present
