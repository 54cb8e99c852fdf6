"""DedupeFactor: the factor by which deduplication reduces a feature's numbers, measured and predicted (RecD §4.2).

A feature's *code* numbers the content of its rows (`row_codes`).

Legend: B rows of a batch, N rows of the sample, S mean samples per session, d(f) share of rows whose value is that of
the session's row before, l(f) mean list length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from elastrec.platform.data.deduplicating.deduplication import distinct_in_batches, group_codes, jagged_parts, row_codes
from elastrec.platform.specs.data import TrainingData

WORTH_ABOVE = 1.5
"""Least factor for which the inverse lookup pays (RecD §4.2)."""
LONG_LIST = 8.0
"""Least length of lists: sum or mean pooling of shorter ones costs about as much as copying its result."""
_EXPLAINED_WITHIN = 0.10
_JOINT_ROWS = 1.05
"""Limit of a group's distinct rows, as a multiple of those of its least changing feature."""


def dedupe_factor(samples_per_session: float, same_share: float) -> float:
    """DedupeFactor(f) = l(f)·B / DedupeLen(f) with DedupeLen(f) = l(f)·B·(1 − (S−1)/S·d(f)) (RecD §4.2).

    Infinite only for a session of infinite length.

    Args:
        samples_per_session: S, 1 and above.
        same_share: d(f), 0 to 1.
    """
    left = 1 - (samples_per_session - 1) / samples_per_session * same_share
    return 1 / left if left else float("inf")


@dataclass(frozen=True)
class FeatureSample:
    """One feature of a sample in clustered order.

    Attributes:
        code_N: int32, equal where rows are equal.
        length_N: int64, numbers of each row.
        is_list: whether it holds lists.
    """

    code_N: NDArray[np.int32]
    length_N: NDArray[np.int64]
    is_list: bool


def feature_samples(data: TrainingData, rows: pa.RecordBatch) -> dict[str, FeatureSample]:
    """The sparse features of trainer-ready rows in clustered order, by name."""
    samples = {}
    for feature in data.sparse:
        values, offsets = jagged_parts(rows.column(feature.name), feature.name)
        samples[feature.name] = FeatureSample(row_codes(values, offsets)[0], np.diff(offsets), feature.is_list)
    return samples


@dataclass(frozen=True)
class FeatureFactor:
    """The effect of deduplication on one feature.

    Attributes:
        same_share: d(f).
        measured: over batches of clustered rows.
        unclustered: over batches in the order of the log.
        predicted: by the model, from S and d(f) of the sample.
        why: the reason if prediction and measurement differ by more than 10 %; otherwise empty.
    """

    name: str
    is_list: bool
    mean_length: float
    same_share: float
    measured: float
    unclustered: float
    predicted: float
    why: str


def measured_factor(code_N: NDArray[Any], length_N: NDArray[np.int64], batch_rows: int) -> float:
    """Numbers of all batches, divided by those of their distinct rows; 1 where there are none."""
    plain = kept = 0
    for begin in range(0, len(code_N), batch_rows):
        lengths = length_N[begin : begin + batch_rows]
        first = np.unique(code_N[begin : begin + batch_rows], return_index=True)[1]
        plain += int(lengths.sum())
        kept += int(lengths[first].sum())
    return plain / kept if kept else 1.0


def feature_factor(
    name: str, feature: FeatureSample, session_N: NDArray[Any], log_order: NDArray[np.int64], batch_rows: int
) -> FeatureFactor:
    """Measure and predict one feature.

    Args:
        session_N: the sessions' numbers; equal ones are adjacent.
        log_order: positions of the clustered rows in the order of the log.
    """
    code_N, length_N = feature.code_N, feature.length_N
    follows_N = np.zeros(len(session_N), np.bool_)
    follows_N[1:] = session_N[1:] == session_N[:-1]
    same_N = follows_N.copy()
    same_N[1:] &= code_N[1:] == code_N[:-1]
    samples = len(session_N) / max(1, int((~follows_N).sum()))
    same_share = _share(same_N.sum(), follows_N.sum())
    predicted = dedupe_factor(samples, same_share)
    measured = measured_factor(code_N, length_N, batch_rows)
    # The same model, but the first rows of a batch count as new, and then also with rows weighted by their length.
    inside_N = follows_N & (np.arange(len(session_N)) % batch_rows != 0)
    with_edges = 1 / max(1 - _share((same_N & inside_N).sum(), len(session_N)), 1e-12)
    weighted = 1 / max(1 - _share(length_N[same_N & inside_N].sum(), length_N.sum()), 1e-12)
    why = ""
    if abs(predicted / measured - 1) > _EXPLAINED_WITHIN and length_N.any():
        steps = {
            "sessions are cut at the edges of batches": with_edges / predicted,
            "lists that stay and lists that change differ in length": weighted / with_edges,
            "rows repeat across sessions, or return within one": measured / weighted,
        }
        why = max(steps, key=lambda reason: abs(np.log(steps[reason])))
    return FeatureFactor(
        name=name,
        is_list=feature.is_list,
        mean_length=float(length_N.mean()) if len(length_N) else 0.0,
        same_share=same_share,
        measured=measured,
        unclustered=measured_factor(code_N[log_order], length_N[log_order], batch_rows),
        predicted=predicted,
        why=why,
    )


@dataclass(frozen=True)
class Choice:
    """Whether a feature is deduplicated, in which group (-1: not), and why, in words."""

    name: str
    group: int
    why: str


@dataclass(frozen=True)
class Proposal:
    """The chosen feature groups.

    Attributes:
        groups: each with its features; they share one inverse lookup.
        choices: one per feature, in the order of the data.
    """

    groups: tuple[tuple[str, ...], ...]
    choices: tuple[Choice, ...]


def propose(
    factors: Sequence[FeatureFactor],
    samples: Mapping[str, FeatureSample],
    batch_rows: int,
    *,
    computed_pooling: frozenset[str] = frozenset(),
) -> Proposal:
    """Choose features whose factor is above 1.5 and whose pooling computes or whose lists are long; group them.

    Args:
        computed_pooling: features that attention or a transformer pools: for these, short lists pay, too.
    """
    reasons: dict[str, str] = {}
    chosen: list[str] = []
    for factor in factors:
        if factor.measured <= WORTH_ABOVE:
            reasons[factor.name] = f"factor {factor.measured:.2f} is not above {WORTH_ABOVE}"
        elif factor.name not in computed_pooling and factor.mean_length < LONG_LIST:
            what = f"lists of {factor.mean_length:.1f} ids" if factor.is_list else "one id a row"
            reasons[factor.name] = f"{what}, pooled without computing, cost less than the lookup"
        else:
            reasons[factor.name] = f"factor {factor.measured:.2f}"
            chosen.append(factor.name)
    groups = group_features(chosen, samples, batch_rows)
    for group in groups:
        for name in group:
            if len(group) > 1:
                reasons[name] += f", changes together with {', '.join(other for other in group if other != name)}"
    return proposal_of(groups, reasons)


def proposal_of(groups: tuple[tuple[str, ...], ...], reasons: Mapping[str, str]) -> Proposal:
    """The proposal of these groups, with the reason for each feature, in the order of the data."""
    place = {name: index for index, group in enumerate(groups) for name in group}
    return Proposal(groups, tuple(Choice(name, place.get(name, -1), why) for name, why in reasons.items()))


def group_features(
    names: Sequence[str], samples: Mapping[str, FeatureSample], batch_rows: int
) -> tuple[tuple[str, ...], ...]:
    """Features that change together, greedily, the least changing first."""
    alone = {name: distinct_in_batches(samples[name].code_N, batch_rows) for name in names}
    groups: list[list[str]] = []
    codes: list[NDArray[np.int32]] = []
    least: list[int] = []
    for name in sorted(names, key=lambda name: (alone[name], names.index(name))):
        code_N = samples[name].code_N
        for index, group_code_N in enumerate(codes):
            sides = [(each, int(each.max(initial=-1)) + 1) for each in (group_code_N, code_N)]
            joint_N, _ = group_codes(sides)
            if distinct_in_batches(joint_N, batch_rows) <= _JOINT_ROWS * min(least[index], alone[name]):
                groups[index].append(name)
                codes[index] = joint_N
                break
        else:
            groups.append([name])
            codes.append(code_N)
            least.append(alone[name])
    ordered = [tuple(sorted(group, key=names.index)) for group in groups]
    return tuple(sorted(ordered, key=lambda group: names.index(group[0])))


def _share(part: Any, whole: Any) -> float:
    return float(part) / float(whole) if whole else 0.0
