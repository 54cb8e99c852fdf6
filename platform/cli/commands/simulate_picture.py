"""The picture of `simulate`: completion times of jobs, use of the cluster, and costs."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence

from elastrec.platform.simulator.report import Report


def png(reports: Sequence[Report]) -> bytes:
    """The picture."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 8), layout="constrained")
    FigureCanvasAgg(figure)
    (times, speed), (held, bars) = figure.subplots(2, 2)
    figure.suptitle(f"simulated: {len(reports[0].jobs) + len(reports[0].unfinished)} jobs")
    for number, each in enumerate(reports):
        color = f"C{number}"
        rising = sorted(job.completion_seconds / 3600 for job in each.jobs)
        jobs = len(rising) + len(each.unfinished)
        shares = [(place + 1) / jobs for place in range(len(rising))]
        times.step(rising, shares, where="post", color=color, label=each.policy)
        hours = [moment.seconds / 3600 for moment in each.moments]
        held.plot(hours, [moment.cores for moment in each.moments], color=color, linewidth=1)
        speed.plot(hours, [moment.samples_per_second / 1e6 for moment in each.moments], color=color, linewidth=1)
    if any(each.jobs for each in reports):
        times.set_xscale("log")
    times.set(title="jobs ended within", xlabel="hours since they arrived", ylabel="share of the jobs", ylim=(0, 1))
    times.legend()
    speed.set(title="speed of all jobs", xlabel="hours", ylabel="million samples/s", ylim=(0, None))
    held.set(title="cores held", xlabel="hours", ylabel="cores", ylim=(0, None))
    for axes in (times, speed, held):
        axes.grid(alpha=0.3)

    figures = [each.figures() for each in reports]
    named = {
        "median": "completion_seconds_median", "p90": "completion_seconds_p90", "core-hours": "core_hours",
        "cost": "cost",
    }  # fmt: skip
    width = 0.8 / len(reports)
    for number, found in enumerate(figures):
        heights = [_ratio(found[name], figures[0][name]) for name in named.values()]
        places = [place + (number - (len(reports) - 1) / 2) * width for place in range(len(named))]
        drawn = bars.bar(places, heights, width, color=f"C{number}")
        bars.bar_label(drawn, [f"{height:.2f}" for height in heights], fontsize=7)
    bars.set_xticks(range(len(named)), list(named))
    bars.axhline(1, color="gray", linestyle=":")
    bars.set(title=f"against {reports[0].policy}")
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=100)
    return file.getvalue()


def _ratio(value: float, base: float) -> float:
    """NaN, for which no bar is drawn, where a time is infinite because too few jobs have ended."""
    if not (math.isfinite(value) and math.isfinite(base)):
        return math.nan
    return value / base if base else 0.0
