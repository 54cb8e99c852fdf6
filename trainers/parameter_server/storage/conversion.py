"""The state of a record's rows for a store whose segments or rules may be others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from elastrec.checkpoints.summary import SegmentSummary, covering
from elastrec.platform.specs.optimizers import OptimizerKind, OptimizerSpec, RowSegment, row_state
from elastrec.trainers.parameter_server.storage.rules import RowRules

Array = np.ndarray[Any, Any]

_SAME_VALUE = 1e-4
"""What float32 may add to a value that is computed from the state of ftrl."""


class SegmentError(Exception):
    """Rows do not have the segments that their record names."""


def is_kept(recorded: Sequence[SegmentSummary], segments: Sequence[RowSegment]) -> bool:
    """Whether states of recorded rows are those of rows of `segments` as they are, whatever numbers the rules have."""
    is_same = [(one.width, one.optimizer) for one in recorded] == [(one.width, one.rule.kind) for one in segments]
    return is_same and all(one.optimizer is not OptimizerKind.FTRL for one in recorded)


def converted_states(
    recorded: Sequence[SegmentSummary], segments: Sequence[RowSegment], values: Array, states: Array
) -> Array:
    """States [n, S] float32 for rows of `segments` with values [n, D], from a record's states [n, R].

    A segment goes on from the state of the recorded one that holds its columns and has the same rule; numbers of a
    whole row (the accumulator of adagrad, the steps of adam) are then taken as they are. Other states begin anew.

    Raises:
        SegmentError: the arrays are not of the recorded segments, or have other columns than `segments`.
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
    wanted = [SegmentSummary(name=one.name, width=one.width, optimizer=one.rule.kind) for one in segments]
    rules = RowRules(segments)
    out = rules.first_states(values)
    column, at = 0, 0
    for segment, summary in zip(segments, wanted, strict=True):
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
    """Sets z if it does not give the value under this rule, for example after a change of the learning rate.

    Args:
        values: [n, W]; state: [n, 2 W], z and accumulators.
    """
    width = values.shape[1]
    z, accumulators = state[:, :width], state[:, width:]
    value = values.astype(np.float64)
    scale = (rule.beta + np.sqrt(accumulators.astype(np.float64))) / rule.learning_rate + rule.l2
    given = -np.sign(z) * np.maximum(np.abs(z.astype(np.float64)) - rule.l1, 0.0) / scale
    differs = np.abs(given - value) > _SAME_VALUE * np.abs(value) + 1e-12
    z[differs] = (-(value * scale + np.sign(value) * rule.l1))[differs].astype(np.float32)
