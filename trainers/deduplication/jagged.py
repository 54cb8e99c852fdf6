"""Picking and reducing jagged rows without padding, forward and backward.

Legend: L list elements, U lists, B picked lists, D numbers per row.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def expand_rows(rows_UD: Tensor, index_B: Tensor) -> Tensor:
    """rows_UD[index_B], `[B, D]`, as a look-up: on CPU its backward pass is quicker than that of an index_select."""
    return functional.embedding(index_B, rows_UD)


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
    """Where the elements of the picked lists stand, int64, and the picked lists' offsets int64 `[B + 1]`."""
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


def reduce_lists(rows_LD: Tensor, offsets: Tensor, mode: str, weights_L: Tensor | None = None) -> Tensor:
    """Sum, mean or max of each list, `[U, D]`; zero for an empty one.

    Args:
        mode: `sum`, `mean` or `max`.
        weights_L: with `sum`, a weight per element.
    """
    elements = torch.arange(len(rows_LD), device=rows_LD.device)
    if not len(rows_LD):
        # embedding_bag refuses a table without rows.
        return rows_LD.new_zeros(len(offsets) - 1, rows_LD.shape[1]) + rows_LD.sum()
    return functional.embedding_bag(
        elements, rows_LD, offsets, mode=mode, per_sample_weights=weights_L, include_last_offset=True
    )


def softmax_lists(scores_L: Tensor, offsets: Tensor) -> Tensor:
    """Softmax within each list, `[L]`."""
    number_L = list_numbers(offsets)
    lists = len(offsets) - 1
    with torch.no_grad():
        # Softmax does not change when a list's scores are shifted; its largest becomes 0 so that none overflows.
        largest_U = scores_L.new_full((lists,), -torch.inf).scatter_reduce(0, number_L, scores_L, "amax")
    shares_L = (scores_L - largest_U.index_select(0, number_L)).exp()
    total_U = scores_L.new_zeros(lists).index_add(0, number_L, shares_L)
    return shares_L / total_U.index_select(0, number_L)


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
