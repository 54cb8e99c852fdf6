"""Optimiser state of recorded rows, converted for a store with other segments or update rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from elastrec.checkpoints.summary import SegmentSummary, covering
from elastrec.platform.specs.optimizers import OptimizerKind, OptimizerSpec, RowSegment, row_state
from elastrec.trainers.parameter_server.storage.rules import RowRules

Array = np.ndarray[Any, Any]

_SAME_VALUE = 1e-4
"""Relative rounding error of a float32 value that is computed from the state of ftrl."""


class SegmentError(Exception):
    """The arrays of recorded rows do not fit the segments that the record names."""


def is_kept(recorded: Sequence[SegmentSummary], segments: Sequence[RowSegment]) -> bool:
    """Whether recorded states fit `segments` unchanged, for any constants of the rules.

    With ftrl they never do, because z depends on the constants.
    """
    recorded_kinds = [(segment.width, segment.optimizer) for segment in recorded]
    kinds = [(segment.width, segment.rule.kind) for segment in segments]
    return recorded_kinds == kinds and all(kind is not OptimizerKind.FTRL for _, kind in kinds)


def converted_states(
    recorded: Sequence[SegmentSummary], segments: Sequence[RowSegment], values: Array, states: Array
) -> Array:
    """States [n, S] float32 for rows of `segments` with values [n, D], from a record's states [n, R].

    A segment keeps the state of the recorded segment that has its columns and the same rule. State of a whole recorded
    segment (the accumulator of adagrad, the step count of adam) is copied unchanged. Other states are initialised.

    Raises:
        SegmentError: the widths of the arrays are not those of the recorded segments or of `segments`.
    """
    widths = [sum(segment.width for segment in recorded), sum(segment.state_width for segment in recorded)]
    if [values.shape[1], states.shape[1]] != widths or widths[0] != sum(segment.width for segment in segments):
        named = [(segment.name, segment.width, segment.optimizer.value) for segment in recorded]
        raise SegmentError(
            f"{values.shape[1]} values and {states.shape[1]} optimiser numbers do not fit the segments {named} that "
            "their record names"
        )
    if is_kept(recorded, segments):
        return states
    out = RowRules(segments).first_states(values)
    column, at = 0, 0
    for segment in segments:
        summary = SegmentSummary(name=segment.name, width=segment.width, optimizer=segment.rule.kind)
        kind, begin_of_segment = segment.rule.kind, at
        source = covering(recorded, column, summary)
        begin = source.state if source else 0
        for (_, width), (_, recorded_width) in zip(
            row_state(kind, segment.width), row_state(kind, source.segment.width if source else 1), strict=True
        ):
            if source:
                first = begin + (column - source.column if recorded_width > 1 else 0)
                out[:, at : at + width] = states[:, first : first + width]
            begin += recorded_width
            at += width
        if source and kind is OptimizerKind.FTRL:
            state = out[:, begin_of_segment:at]
            _fit_ftrl(segment.rule, values[:, column : column + segment.width], state)
        column += segment.width
    return out


def _fit_ftrl(rule: OptimizerSpec, values: Array, state: Array) -> None:
    """Sets z wherever this rule would compute another value from it, for example after a change of the learning rate.

    Args:
        values: [n, W]; state: [n, 2 W], z and accumulators.
    """
    width = values.shape[1]
    z, accumulators = state[:, :width], state[:, width:]
    value = values.astype(np.float64)
    scale = (rule.beta + np.sqrt(accumulators.astype(np.float64))) / rule.learning_rate + rule.l2
    computed = -np.sign(z) * np.maximum(np.abs(z.astype(np.float64)) - rule.l1, 0.0) / scale
    differs = np.abs(computed - value) > _SAME_VALUE * np.abs(value) + 1e-12
    z[differs] = (-(value * scale + np.sign(value) * rule.l1))[differs].astype(np.float32)
