"""A job's cleaned observations: invalid ones are refused, and each configuration has one row.

A configuration is a set of pods and cores. Memory is no part of it, because the throughput model does not use it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np

from elastrec.platform.scaling.amounts import Allocation
from elastrec.platform.scaling.model.columns import Columns, Floats
from elastrec.platform.scaling.types import Observation
from elastrec.platform.specs.errors import ScalingError

CONTRADICTION = 2.0
"""A configuration is contradictory if half of its observations differ by this factor or more from their median."""


@dataclass(frozen=True)
class Profile:
    """One row per configuration. C configurations; arrays are float64 of shape (C,).

    Attributes:
        allocations: an allocation with the configuration; its memory is that of some observation.
        iteration_seconds: median over the observations.
        compute_seconds: likewise, NaN where none was measured.
        spread: median factor between an observation and the median, ≥ 1.
        observations: their number.
        measured_seconds: how long the job trained while its workers made them.
        notes: refused observations and contradictory configurations, for users.
    """

    allocations: tuple[Allocation, ...]
    columns: Columns
    iteration_seconds: Floats
    compute_seconds: Floats
    spread: Floats
    observations: Floats
    measured_seconds: Floats
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.allocations)


def _medians(values_N: Floats, group_N: np.ndarray[tuple[int], np.dtype[np.intp]], groups: int) -> Floats:
    """Median of each group, NaN of an empty one; shape (groups,)."""
    order_N = np.lexsort((values_N, group_N))
    sorted_N, counts_G = values_N[order_N], np.bincount(group_N, minlength=groups)
    first_G = np.concatenate([[0], np.cumsum(counts_G)[:-1]])
    result_G = np.full(groups, np.nan)
    some = counts_G > 0
    low_G, high_G = first_G[some] + (counts_G[some] - 1) // 2, first_G[some] + counts_G[some] // 2
    result_G[some] = 0.5 * (sorted_N[low_G] + sorted_N[high_G])
    return result_G


def _configuration(of: Allocation) -> tuple[int, int, float, float]:
    return of.workers, of.parameter_servers, of.worker_cores, of.parameter_server_cores


def _seconds_of(one: Observation) -> float:
    """How long the job trained during an observation; its workers made their steps side by side."""
    return one.iterations * one.iteration_seconds / one.allocation.workers


_FEW = 100
"""Up to this number, observations are summarised one by one, because numpy's overhead per operation is larger."""


def _summarise_few(observations: Sequence[Observation]) -> Profile | None:
    """The profile of few, usable observations; None for others and for a contradictory configuration. Most observations
    are means of masters, one for each configuration, which are their own medians."""
    groups: dict[tuple[int, int, float, float], list[Observation]] = {}
    for each in observations[: _FEW + 1]:
        step, part = each.iteration_seconds, each.compute_seconds
        if not 0 < step < math.inf or (part is not None and not 0 < part <= step * (1 + 1e-9)):
            return None
        groups.setdefault(_configuration(each.allocation), []).append(each)
    if not 0 < len(observations) <= _FEW:
        return None
    if len(groups) == len(observations):
        return _profile_of_lone(observations)
    seconds, parts, spreads = list[tuple[float, float]](), list[tuple[float, float]](), list[float]()
    for group in groups.values():
        if len(group) == 1:
            step, part = group[0].iteration_seconds, group[0].compute_seconds
            seconds.append((step, step))
            parts.append((math.nan, math.nan) if part is None else (part, part))
            spreads.append(1.0)
            continue
        steps = [each.iteration_seconds for each in group]
        low, high = _middle(steps)
        seconds.append((low, high))
        parts.append(_middle([each.compute_seconds for each in group if each.compute_seconds is not None]))
        middle = math.sqrt(low) * math.sqrt(high)
        spreads.append(math.exp(sum(map(math.log, _middle([max(step / middle, middle / step) for step in steps]))) / 2))
    if max(spreads) >= CONTRADICTION:
        return None
    allocations = tuple(group[0].allocation for group in groups.values())
    return Profile(
        allocations=allocations, columns=Columns.of(allocations),
        iteration_seconds=_means(seconds), compute_seconds=_means(parts), spread=np.array(spreads),
        observations=np.array([float(len(group)) for group in groups.values()]),
        measured_seconds=np.array([reduce(add, map(_seconds_of, group)) for group in groups.values()]), notes=(),
    )  # fmt: skip


def _profile_of_lone(observations: Sequence[Observation]) -> Profile:
    """The profile of observations of different configurations: each is its own median, and the logarithm and back would
    move its last digit."""
    allocations, ones_C = tuple(each.allocation for each in observations), np.ones(len(observations))
    parts = [math.nan if each.compute_seconds is None else each.compute_seconds for each in observations]
    return Profile(
        allocations=allocations, columns=Columns.of(allocations),
        iteration_seconds=np.array([each.iteration_seconds for each in observations], dtype=np.float64),
        compute_seconds=np.array(parts, dtype=np.float64), spread=ones_C, observations=ones_C,
        measured_seconds=np.array([_seconds_of(each) for each in observations], dtype=np.float64), notes=(),
    )  # fmt: skip


def _middle(values: Sequence[float]) -> tuple[float, float]:
    """The two values between which the median lies; of an odd number, twice the same value; NaN of none."""
    if not values:
        return math.nan, math.nan
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]


def _means(pairs: Sequence[tuple[float, float]]) -> Floats:
    """Of the logarithms of two values, back as values; shape (C,)."""
    logs_C2 = np.log(pairs)
    return np.asarray(np.exp(0.5 * (logs_C2[:, 0] + logs_C2[:, 1])))


def summarise(observations: Sequence[Observation]) -> Profile:
    """Cleans and groups what a job measured; 10^6 observations take seconds.

    A time that is not a number, zero or negative is refused and counted in the notes. A compute time that is invalid or
    longer than its step is ignored without its observation. Medians are used, because a single pause of a node would
    change a mean.
    """
    if (few := _summarise_few(observations)) is not None:
        return few
    step_N = np.array([each.iteration_seconds for each in observations], dtype=np.float64)
    part_N = np.array(
        [np.nan if each.compute_seconds is None else each.compute_seconds for each in observations], dtype=np.float64
    )
    lasted_N = np.array([_seconds_of(each) for each in observations], dtype=np.float64)
    given_N = np.array([each.compute_seconds is not None for each in observations], dtype=bool)
    usable_N = np.isfinite(step_N) & (step_N > 0)
    with np.errstate(invalid="ignore"):
        part_usable_N = usable_N & np.isfinite(part_N) & (part_N > 0) & (part_N <= step_N * (1 + 1e-9))
    notes = []
    if refused := int((~usable_N).sum()):
        kinds = Counter("no number" if not np.isfinite(v) else "0 or negative" for v in step_N[~usable_N])
        what = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        notes.append(f"iteration_seconds: {refused} of {len(step_N)} observations left out ({what}); allowed: above 0")
    if odd := int((given_N & usable_N & ~part_usable_N).sum()):
        notes.append(f"compute_seconds: left out of {odd} observations; allowed: above 0, at most the step")

    index: dict[tuple[int, int, float, float], int] = {}
    kept: list[Allocation] = []
    group = np.empty(int(usable_N.sum()), dtype=np.intp)
    for position, row in enumerate(np.flatnonzero(usable_N).tolist()):
        each = observations[row].allocation
        key = _configuration(each)
        found = index.setdefault(key, len(kept))
        if found == len(kept):
            kept.append(each)
        group[position] = found
    log_N, parts = np.log(step_N[usable_N]), part_usable_N[usable_N]
    middle_C = _medians(log_N, group, len(kept))
    spread_C = np.exp(_medians(np.abs(log_N - middle_C[group]), group, len(kept)))
    compute_C = np.exp(_medians(np.log(part_N[part_usable_N]), group[parts], len(kept)))
    for row in np.flatnonzero(spread_C >= CONTRADICTION).tolist():
        notes.append(
            f"{kept[row]}: observations contradict each other, half of them differ {spread_C[row]:.3g}× or more from "
            f"their median of {np.exp(middle_C[row]):.3g} s; its median is used"
        )
    return Profile(
        allocations=tuple(kept),
        columns=Columns.of(kept),
        iteration_seconds=np.exp(middle_C),
        compute_seconds=compute_C,
        spread=spread_C,
        observations=np.bincount(group, minlength=len(kept)).astype(np.float64),
        measured_seconds=np.bincount(group, lasted_N[usable_N], len(kept)).astype(np.float64),
        notes=tuple(notes),
    )


def require_rows(profile: Profile, job_id: str) -> None:
    """Checks that a profile has usable observations.

    Raises:
        ScalingError: with what was wrong with the observations.
    """
    if not len(profile):
        why = "; ".join(profile.notes) or "none was made yet"
        raise ScalingError(
            f"observations of {job_id}: no usable one ({why}); allowed: at least one with iteration_seconds above 0; "
            "wait until the job has trained, or give a prior"
        )
