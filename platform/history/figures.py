"""Pictures of a job for MLflow, drawn from the series of its run. matplotlib is imported only for drawing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from elastrec.platform.history import metric_names as names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Series = Sequence[tuple[int, float]]
"""(step, value), by increasing step."""

_SIZE_INCHES = (9.0, 4.8)
STEP_SERIES = {
    names.STEP_SECONDS: "whole step, mean over the workers",
    names.SLOWEST_STEP_SECONDS: "whole step, slowest worker",
    **{names.named(names.STEP_PART_SECONDS, part=part): part for part in ("wait", "pull", "compute", "push")},
}
"""The series of `step_seconds`, and their names in the legend."""
_STEP_STYLES = {names.STEP_SECONDS: ("black", "-"), names.SLOWEST_STEP_SECONDS: ("black", "--")}
_QUALITY = {names.LOSS: "log loss", names.AUC: "AUC", names.NORMALIZED_ENTROPY: "normalised entropy"}


def new_figure(rows: int = 1, share_x: bool = False, more_inches: float = 0.0) -> tuple[Figure, list[Axes]]:
    """Axes one below the other in the style of all pictures; `more_inches` of height for text below them."""
    # Not pyplot, because its figures are global, and it needs a display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    height = _SIZE_INCHES[1] * max(1.0, rows * 0.6) + more_inches
    figure = Figure(figsize=(_SIZE_INCHES[0], height), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(rows, squeeze=False, sharex=share_x)[:, 0])
    for axis in axes:
        axis.grid(True, alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _millions(axis: Axes, label: str) -> None:
    from matplotlib.ticker import EngFormatter

    axis.xaxis.set_major_formatter(EngFormatter())
    axis.set_xlabel(label)


def learning_curve(series: Mapping[str, Series], evaluation: Mapping[str, float]) -> Figure | None:
    """Loss, AUC and normalised entropy of each window over the samples trained; None without measurements.

    Args:
        series: by metric name; others than the three are ignored.
        evaluation: AUC and normalised entropy on the evaluation rows, by the same names, drawn as dashed lines.
    """
    drawn = [name for name in _QUALITY if series.get(name)]
    if not drawn:
        return None
    figure, axes = new_figure(rows=len(drawn), share_x=True)
    for axis, name in zip(axes, drawn, strict=True):
        steps, values = zip(*series[name], strict=True)
        axis.plot(steps, values, color="tab:blue", linewidth=1.4, marker="." if len(steps) < 40 else None)
        axis.set_ylabel(_QUALITY[name])
        if math.isfinite(evaluation.get(name, math.nan)):
            axis.axhline(
                evaluation[name], color="tab:orange", linestyle="--", label=f"evaluation rows: {evaluation[name]:.4f}"
            )
            axis.legend(frameon=False)
    _millions(axes[-1], "samples trained (each window is measured before its update)")
    figure.suptitle("Learning curve")
    return figure


def calibration(predicted: Sequence[float], observed: Sequence[float], rows: Sequence[float]) -> Figure | None:
    """Predicted against observed click rate on the evaluation rows, with two standard errors; None without rows.

    A group whose figures are not all finite is left out.
    """
    import numpy as np

    columns_3C = np.asarray([predicted, observed, rows], dtype=np.float64)
    p_C, o_C, n_C = columns_3C[:, np.isfinite(columns_3C).all(axis=0)]
    if not len(p_C):
        return None
    error_C = 2 * np.sqrt(np.maximum(o_C * (1 - o_C), 1e-12) / np.maximum(n_C, 1))
    figure, (axis,) = new_figure()
    top = float(max(p_C.max(), (o_C + error_C).max())) * 1.05
    axis.plot([0, top], [0, top], color="grey", linestyle="--", linewidth=1, label="perfectly calibrated")
    axis.errorbar(p_C, o_C, yerr=error_C, fmt="o-", markersize=4, linewidth=1.2, capsize=2, label="evaluation rows")
    mean_predicted, mean_observed = float((p_C * n_C).sum()), float((o_C * n_C).sum())
    ratio = f"{mean_predicted / mean_observed:.3f}" if mean_observed else "undefined, no positives"
    axis.set(xlabel="predicted click rate", ylabel="observed click rate", xlim=(0, top), ylim=(0, top))
    axis.set_title(f"Calibration (sum of predictions / clicks: {ratio})")
    axis.legend(frameon=False)
    return figure


def step_seconds(series: Mapping[str, Series]) -> Figure | None:
    """Parts of a step over the samples trained, means over the workers, and the slowest worker's whole step.

    None without steps.

    Args:
        series: by metric name, those of STEP_SERIES.
    """
    drawn = {name: points for name, points in series.items() if points}
    if not drawn.get(names.STEP_SECONDS):
        return None
    figure, (axis,) = new_figure()
    for name, points in drawn.items():
        steps, values = zip(*points, strict=True)
        color, line = _STEP_STYLES.get(name, (None, "-"))
        marker = "." if len(steps) < 40 else None
        axis.plot(steps, values, color=color, linestyle=line, linewidth=1.4, marker=marker, label=STEP_SERIES[name])
    axis.set_ylim(bottom=0)
    axis.set_ylabel("seconds")
    _millions(axis, "samples trained")
    axis.set_title("Where a step's time goes")
    axis.legend(frameon=False, fontsize="small")
    return figure
