"""Checks of received arrays before they reach a kernel, because kernels do not check their arguments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from elastrec.platform.specs.errors import IncompatibleError
from elastrec.trainers.parameter_server.plan import TablePlan
from elastrec.trainers.parameter_server.serving.gradients import Gradient, GroupGradient

Array = np.ndarray[Any, Any]

PUSH_ARRAYS = 5
"""Arrays of a push: counts, ids, gradients, sightings, dense gradient."""


def _check_array(name: str, array: Array, dtype: type, dimensions: int = 1) -> None:
    if array.dtype != dtype or array.ndim != dimensions:
        raise IncompatibleError(
            f"{name}: {array.dtype} with {array.ndim} dimensions; allowed: {np.dtype(dtype)} with {dimensions}"
        )


def check_ids(plan: TablePlan, arrays: Sequence[Array]) -> tuple[Array, Array]:
    """The counts [T] int32 and ids [U] int64 of a request.

    Raises:
        IncompatibleError: an array is missing or has the wrong type or length.
    """
    if len(arrays) < 2:
        raise IncompatibleError(f"a request for rows has counts and ids, not {len(arrays)} arrays")
    counts, ids = arrays[0], arrays[1]
    _check_array("counts", counts, np.int32)
    _check_array("ids", ids, np.int64)
    if len(counts) != len(plan.tables):
        raise IncompatibleError(f"counts name {len(counts)} tables; the job has {len(plan.tables)}")
    numbers = counts.tolist()
    if (least := min(numbers, default=0)) < 0:
        raise IncompatibleError(f"counts: {least} is not allowed; allowed: 0 or more")
    if sum(numbers) != len(ids):
        raise IncompatibleError(f"counts sum to {sum(numbers)}, but {len(ids)} ids were sent")
    return counts, ids


def check_push(plan: TablePlan, arrays: Sequence[Array], samples: int, rate_scale: float = 1.0) -> Gradient:
    """The gradient in a push's five arrays, split by table group without copies.

    Raises:
        IncompatibleError: an array is missing or has the wrong type or length, or a number is not allowed.
    """
    if len(arrays) != PUSH_ARRAYS or samples < 0:
        raise IncompatibleError(f"a push has five arrays and samples >= 0, not {len(arrays)} and {samples}")
    if not (math.isfinite(rate_scale) and rate_scale > 0):
        raise IncompatibleError(f"rate_scale of a push: {rate_scale} is not allowed; allowed: finite, above 0")
    counts, ids = check_ids(plan, arrays)
    gradients, sightings, dense = arrays[2], arrays[3], arrays[4]
    _check_array("gradients", gradients, np.float32)
    _check_array("sightings", sightings, np.int32)
    _check_array("dense gradient", dense, np.float32)
    if len(sightings) not in (0, len(ids)) or (plan.counts_sightings and len(sightings) != len(ids)):
        raise IncompatibleError(f"{len(sightings)} sightings for {len(ids)} ids")
    if len(sightings) and int(sightings.min()) < 1:
        raise IncompatibleError("an id of a push was sighted less than once")
    groups, at, position = [], 0, 0
    for group in plan.groups:
        mine = counts[group.first_table : group.end_table]
        end = at + sum(mine.tolist())
        size = (end - at) * group.dimension
        if position + size > len(gradients):
            raise IncompatibleError(f"{len(gradients)} gradient numbers are too few for {len(ids)} ids")
        values = gradients[position : position + size].reshape(end - at, group.dimension)
        groups.append(GroupGradient(mine, ids[at:end], values, sightings[at:end]))
        at, position = end, position + size
    if position != len(gradients):
        raise IncompatibleError(f"{len(gradients)} gradient numbers for rows of {position}")
    return Gradient(groups, dense, samples, rate_scale=rate_scale)
