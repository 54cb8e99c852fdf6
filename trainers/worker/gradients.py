"""What a step's gradients have to be before they leave the worker: finite, and within the norms that the job allows.

A row whose accumulator has become infinite never moves again, and one that is not a number spreads through the model;
no later step shows where it came from. So the step that would do it ends the job, and names the row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from elastrec.platform.specs.errors import JobFailedError
from elastrec.platform.specs.optimizers import Optimizers, OptimizerSpec
from elastrec.trainers.embedding.progress import RowGradients
from elastrec.trainers.embedding.routing import RoutedIds
from elastrec.trainers.parameter_server.messages import Parameter
from elastrec.trainers.parameter_server.plan import TablePlan

Array = np.ndarray[Any, Any]
_ADVICE = "lower spec.optimizers.*.learning_rate, set spec.optimizers.*.max_gradient_norm, or check the model"


class GradientGuard:
    """Checks and bounds the gradients of one worker's steps.

    Args:
        layout: of the dense parameters.
    """

    def __init__(self, optimizers: Optimizers, plan: TablePlan, layout: Sequence[Parameter]) -> None:
        # (most norm, (table group, columns) of the segments with one rule)
        bounded: dict[tuple[str, OptimizerSpec], list[tuple[int, slice]]] = {}
        for group in plan.groups:
            column = 0
            for segment in group.segments:
                columns = slice(column, column + segment.width)
                if segment.rule.max_gradient_norm is not None:
                    bounded.setdefault((segment.name, segment.rule), []).append((group.index, columns))
                column += segment.width
        self._bounded = list(bounded.items())
        self._dense_norm = optimizers.dense.max_gradient_norm
        self._plan = plan
        self._layout = layout

    def rows(self, left: RowGradients) -> list[Array]:
        """Row gradients, per table group [U_g, D_g] float32, as they may be pushed.

        Raises:
            JobFailedError: the squares of a gradient do not have a finite sum in float32.
        """
        squares = _squares(left.gradients)
        if not math.isfinite(squares):
            where = _first_row(left, self._plan)
            raise JobFailedError(f"the gradient of {where} is not finite, or its square is not; {_ADVICE}")
        gradients = left.gradients
        for (_, rule), parts in self._bounded:
            norm = math.sqrt(_squares([gradients[group][:, columns] for group, columns in parts]))
            if rule.max_gradient_norm is not None and norm > rule.max_gradient_norm:
                gradients = list(gradients)
                for group, columns in parts:
                    gradients[group] = gradients[group].copy()
                    gradients[group][:, columns] *= np.float32(rule.max_gradient_norm / norm)
        return gradients

    def dense(self, parts: list[Array]) -> list[Array]:
        """Dense gradients, a flat part for each parameter, as they may be pushed; raises like `rows`."""
        squares = _squares(parts)
        if not math.isfinite(squares):
            names = [
                parameter.name
                for parameter, part in zip(self._layout, parts, strict=True)
                if not math.isfinite(_squares([part]))
            ]
            which = f"of the dense parameters {names}" if names else "of all dense parameters together"
            raise JobFailedError(f"the gradient {which} is not finite, or its square is not; {_ADVICE}")
        return _scaled(parts, squares, self._dense_norm)


def _squares(parts: Sequence[Array]) -> float:
    """The sum of all squares; not finite when one of the numbers, or its square in float32, is not."""
    flat = [part.reshape(-1) for part in parts]
    with np.errstate(over="ignore", invalid="ignore"):
        return sum(float(np.dot(part, part)) for part in flat)


def _scaled(parts: list[Array], squares: float, limit: float | None) -> list[Array]:
    norm = math.sqrt(squares)
    if limit is None or norm <= limit:
        return parts
    return [part * np.float32(limit / norm) for part in parts]


def _first_row(left: RowGradients, plan: TablePlan) -> str:
    """The first row, in the order of tables, whose gradient has no finite sum of squares."""
    routed = left.pulled.routed
    first_id = 0
    for group, gradients in enumerate(left.gradients):
        with np.errstate(over="ignore", invalid="ignore"):
            bad = np.flatnonzero(~np.isfinite(np.einsum("ud,ud->u", gradients, gradients)))
        if len(bad):
            table = _table_of(routed, plan, group, int(bad[0]))
            return f"table {table!r}, id {int(routed.ids[first_id + bad[0]])}"
        first_id += len(gradients)
    return "all rows together"


def _table_of(routed: RoutedIds, plan: TablePlan, group: int, row: int) -> str:
    tables = plan.groups[group]
    for counts_T in routed.counts[:, tables.first_table : tables.end_table]:
        for index, count in enumerate(counts_T.tolist(), start=tables.first_table):
            if row < count:
                return plan.tables[index].name
            row -= count
    raise AssertionError("a row beyond its group")
