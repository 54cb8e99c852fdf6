"""Figures of one model on one set of rows, and how two models on the same rows compare."""

from __future__ import annotations

from dataclasses import dataclass

from elastrec.platform.data.metrics.heads import Sketch, figures_of
from elastrec.platform.specs.errors import DataError
from elastrec.platform.transport.messages.export import EvaluationResult


def evaluation_result(sketch: Sketch) -> EvaluationResult:
    """The sketch's figures; None where a figure is not defined (no rows, one class only, another kind of label)."""
    figures = figures_of(sketch)
    return EvaluationResult(
        samples=figures.rows,
        auc=figures.auc,
        normalized_entropy=figures.normalized_entropy,
        log_loss=figures.log_loss,
        mean_squared_error=figures.mean_squared_error,
        normalized_error=figures.normalized_error,
        only_label=figures.only_label,
    )


@dataclass(frozen=True)
class Difference:
    """Challenger minus champion on the same rows; None where one of the two figures is not defined."""

    auc: float | None
    normalized_entropy: float | None
    log_loss: float | None


def compare(challenger: EvaluationResult, champion: EvaluationResult) -> Difference:
    """How the challenger differs.

    Raises:
        DataError: the two were measured on different numbers of rows, so that they say nothing about each other.
    """
    if challenger.samples != champion.samples:
        raise DataError(
            f"challenger and champion were scored on {challenger.samples} and {champion.samples} rows; "
            "score both on the same evaluation manifest"
        )

    def minus(name: str) -> float | None:
        left, right = getattr(challenger, name), getattr(champion, name)
        return None if left is None or right is None else float(left - right)

    return Difference(minus("auc"), minus("normalized_entropy"), minus("log_loss"))
