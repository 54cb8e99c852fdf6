"""The sum of the gradients of one bsp round: rows that several workers pushed become one row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from elastrec.trainers.parameter_server.kernel import kernel

Array = np.ndarray[Any, Any]


@dataclass
class GroupGradient:
    """Gradients of one table group: counts [T] int32, ids [U] int64 in table order, gradients [U, D], sightings [U]."""

    counts: Array
    ids: Array
    gradients: Array
    sightings: Array


@dataclass
class Gradient:
    """One push.

    Attributes:
        groups: a gradient per table group.
        dense: [S] of the server's dense buckets, or [0]: no step.
        samples: rows of the batch.
        dense_buckets: [B] bool, those that take a step; `dense` is zero elsewhere. None: all that the server owns.
        rate_scale: a factor of the learning rates.
    """

    groups: list[GroupGradient]
    dense: Array
    samples: int
    dense_buckets: Array | None = None
    rate_scale: float = 1.0


def select(gradient: Gradient, rows: Sequence[Array], dense: Array, dense_buckets: Array) -> Gradient:
    """A part of a push, of the same weight.

    Args:
        rows: per table group, [U] bool: which rows it keeps.
        dense, dense_buckets: as those of the part.
    """
    groups = []
    for group, kept in zip(gradient.groups, rows, strict=True):
        table_of = np.repeat(np.arange(len(group.counts)), group.counts)
        counts = np.bincount(table_of[kept], minlength=len(group.counts)).astype(np.int32)
        sightings = group.sightings[kept] if len(group.sightings) else group.sightings
        groups.append(GroupGradient(counts, group.ids[kept], group.gradients[kept], sightings))
    return Gradient(groups, dense, gradient.samples, dense_buckets, gradient.rate_scale)


@kernel
def _add_weighted(target, inverse, source, weight):  # type: ignore[no-untyped-def]
    for j in range(source.shape[0]):
        row = inverse[j]
        for d in range(source.shape[1]):
            target[row, d] += weight * source[j, d]


def _merge_group(parts: Sequence[GroupGradient], weights: Sequence[np.float32]) -> GroupGradient:
    tables = len(parts[0].counts)
    table_of = np.concatenate([np.repeat(np.arange(tables), part.counts) for part in parts])
    ids = np.concatenate([part.ids for part in parts])
    order = np.lexsort((ids, table_of))
    changed = np.ones(len(ids), bool)
    changed[1:] = (ids[order][1:] != ids[order][:-1]) | (table_of[order][1:] != table_of[order][:-1])
    number = np.cumsum(changed) - 1
    inverse = np.empty(len(ids), np.int64)
    inverse[order] = number
    first = order[changed]
    merged = np.zeros((len(first), parts[0].gradients.shape[1]), np.float32)
    sightings = np.empty(0, np.int32)
    if any(len(part.sightings) for part in parts):
        sightings = np.zeros(len(first), np.int32)
    at = 0
    for part, weight in zip(parts, weights, strict=True):
        mine = inverse[at : at + len(part.ids)]
        _add_weighted(merged, mine, part.gradients, weight)
        if len(sightings):
            sightings[mine] += part.sightings
        at += len(part.ids)
    counts = np.bincount(table_of[first], minlength=tables).astype(np.int32)
    return GroupGradient(counts, ids[first], merged, sightings)


def average(gradients: Sequence[Gradient]) -> Gradient:
    """The mean of gradients and of rate scales, weighted by the batches' rows; empty batches count for nothing."""
    if len(gradients) == 1:
        return gradients[0]
    total = sum(gradient.samples for gradient in gradients)
    weights = [np.float32(gradient.samples / total if total else 0.0) for gradient in gradients]
    groups = [
        _merge_group([gradient.groups[index] for gradient in gradients], weights)
        for index in range(len(gradients[0].groups))
    ]
    size = max(len(gradient.dense) for gradient in gradients)
    dense = np.zeros(size, np.float32)
    for gradient, weight in zip(gradients, weights, strict=True):
        if len(gradient.dense):
            dense += weight * gradient.dense
    parts = [gradient.dense_buckets for gradient in gradients if len(gradient.dense)]
    named = [part for part in parts if part is not None]
    dense_buckets = np.logical_or.reduce(named) if named and len(named) == len(parts) else None
    scales = {gradient.rate_scale for gradient in gradients if gradient.samples} or {1.0}
    scale = scales.pop() if len(scales) == 1 else sum(each.rate_scale * each.samples for each in gradients) / total
    return Gradient(groups, dense, total, dense_buckets, scale)
