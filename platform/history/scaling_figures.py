"""Pictures of how a job was scaled: speed with every decision, the fit, the front, and whether predictions came true.

matplotlib is imported when one is drawn. Speeds are samples per second, costs currency per hour.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from elastrec.platform.history.figures import new_figure
from elastrec.platform.history.words import Gantt
from elastrec.platform.scaling.amounts import Allocation
from elastrec.platform.scaling.model.columns import Columns
from elastrec.platform.scaling.types import CandidateKind, Considered, MemoryCurve, Observation, Plan
from elastrec.platform.specs.shape import MigrationSeen
from elastrec.platform.specs.text import plain_words
from elastrec.platform.specs.text.some import some

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from elastrec.platform.scaling.model.throughput import ThroughputModel

MIGRATIONS_PICTURE = "figures/migrations.png"
MEMORY_PICTURE = "figures/server_memory.png"
_CAPTIONS = 6
_FORECASTS = 3
_GIBIBYTE = 2.0**30
_LINE = 118
_SMOOTHED = 7
"""Points over which the mean of a curve is taken."""
_COLORS = {
    CandidateKind.STAY: "tab:gray",
    CandidateKind.GROW: "tab:blue",
    CandidateKind.SAVE: "tab:green",
    CandidateKind.EXPLORE: "tab:orange",
}
_BARS = {"starts": "tab:gray", "copies": "tab:orange", "serves": "tab:blue"}


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """One round of one job, as it is kept in the job's run.

    Attributes:
        changed: the job was changed by it.
        proposed: what the choice was made from (`proposed`).
        memory: the forecast of the fullest server's memory at that moment; None: there was none.
        before_samples_per_second, predicted_samples_per_second: by the model, without and with the plan; None where
            the policy predicts nothing.
        plan_id: of the plan; empty where it has none.
    """

    unix_seconds: float
    samples_trained: int
    policy: str
    before: Allocation
    after: Allocation
    changed: bool
    reason: str
    before_samples_per_second: float | None = None
    predicted_samples_per_second: float | None = None
    proposed: str = ""
    memory: MemoryCurve | None = None
    plan_id: str = ""


class Timed(msgspec.Struct, frozen=True):
    """One value of a series, and when it was measured."""

    unix_seconds: float
    value: float


def change(before: Allocation, after: Allocation) -> str:
    """What a plan changes, in a few words: `1 → 3 workers`."""
    words = []
    for field, unit, size in (
        ("workers", "workers", 1.0),
        ("parameter_servers", "servers", 1.0),
        ("worker_cores", "cores per worker", 1.0),
        ("parameter_server_cores", "cores per server", 1.0),
        ("worker_memory_bytes", "GiB per worker", 2.0**30),
        ("parameter_server_memory_bytes", "GiB per server", 2.0**30),
    ):
        old, new = getattr(before, field) / size, getattr(after, field) / size
        if old != new:
            words.append(f"{old:.3g} → {new:.3g} {unit}")
    return ", ".join(words) or "stays"


def proposed(plan: Plan) -> str:
    """What a plan was chosen from, in a few words: the changes that bring most; if it names none, who made it."""
    others = [each.candidate for each in plan.considered if each.candidate.allocation != plan.before]
    if not others:
        return f"by {plain_words.requester(plan.policy)}" if plan.changes else "no change"
    best = sorted(others, key=lambda each: -each.gain)
    changes = some([change(plan.before, each.allocation) for each in best], most=2)
    return f"{len(others)} candidates: {changes}" if len(others) > 1 else f"1 candidate: {changes}"


def latest_plans(decisions: Sequence[Decision]) -> list[Decision]:
    """Those that changed the job or were to; pictures and reports number them from 1."""
    return [decision for decision in decisions if decision.changed or decision.before != decision.after][-_CAPTIONS:]


def throughput(speed: Sequence[Timed], workers: Sequence[Timed], decisions: Sequence[Decision]) -> Figure | None:
    """Speed and workers over time, every decision marked, the latest with captions; None before anything was measured.

    A line marks a round that changed the job, a tick on the axis one that left it as it is.
    """
    if not speed:
        return None
    zero = speed[0].unix_seconds
    captioned = latest_plans(decisions)
    captions = [_caption(number, decision, zero) for number, decision in enumerate(captioned, 1)]
    lines = sum(len(caption.splitlines()) for caption in captions)
    figure, (axis,) = new_figure(rows=1, more_inches=0.2 * lines)
    minutes = [(point.unix_seconds - zero) / 60 for point in speed]
    axis.plot(minutes, [point.value for point in speed], color="tab:blue", alpha=0.3, linewidth=0.9)
    axis.plot(minutes, _smooth([point.value for point in speed]), color="tab:blue", linewidth=1.8, label="samples/s")
    axis.set_ylim(bottom=0, top=1.18 * max(point.value for point in speed) or 1.0)
    axis.set(xlabel="minutes since the first measurement", ylabel="samples per second")
    axis.set_title("Throughput and what scaling decided")
    axis.yaxis.set_major_formatter("{x:,.0f}")
    _draw_workers(axis, workers, zero)
    quiet = [(decision.unix_seconds - zero) / 60 for decision in decisions if decision not in captioned]
    if quiet:  # without points, matplotlib would leave room for a mark in the corner of the picture
        axis.plot(quiet, [0.0] * len(quiet), "|", color="tab:gray", markersize=12, clip_on=False)
    for number, decision in enumerate(captioned, 1):
        at = (decision.unix_seconds - zero) / 60
        color = "tab:red" if decision.changed else "tab:gray"
        axis.axvline(at, color=color, linestyle="--", linewidth=1)
        axis.annotate(
            str(number), (at, 1.0), xycoords=("data", "axes fraction"), xytext=(0, -11), textcoords="offset points",
            ha="center", color="white", fontsize=9, bbox={"boxstyle": "circle", "fc": color, "ec": color, "pad": 0.25},
        )  # fmt: skip
    if captions:
        figure.supxlabel("\n".join(captions), x=0.02, ha="left", fontsize=8.5, family="sans-serif")
    return figure


def _caption(number: int, decision: Decision, zero: float) -> str:
    what = change(decision.before, decision.after) + ("" if decision.changed else " (not done)")
    minute = (decision.unix_seconds - zero) / 60
    return textwrap.fill(f"{number}  {minute:.1f} min: {what}. {decision.reason}", _LINE, subsequent_indent="    ")


def _smooth(values: Sequence[float]) -> list[float]:
    """Mean over a window that ends early at both ends."""
    half = _SMOOTHED // 2
    parts = [values[max(0, i - half) : i + half + 1] for i in range(len(values))]
    return [sum(part) / len(part) for part in parts]


def _draw_workers(axis: Axes, workers: Sequence[Timed], zero: float) -> None:
    if not workers:
        return
    from matplotlib.ticker import MaxNLocator

    other = axis.twinx()
    other.step(
        [(each.unix_seconds - zero) / 60 for each in workers], [each.value for each in workers], where="post",
        color="tab:orange", linewidth=1.4,
    )  # fmt: skip
    other.set_ylim(0, 1.5 * max(each.value for each in workers) + 1)
    other.yaxis.set_major_locator(MaxNLocator(integer=True))
    other.set_ylabel("workers", color="tab:orange")
    other.spines["top"].set_visible(False)


def fit_against_measured(
    model: ThroughputModel,
    observations: Sequence[Observation],
    left_out_seconds: Sequence[float] = (),
    title: str = "Throughput model: fitted and measured",
) -> Figure | None:
    """Speed over workers, one curve for each size of pods and number of servers; None without a measurement.

    Args:
        left_out_seconds: seconds per step predicted for each observation from all others; drawn as crosses.
    """
    usable = [each for each in observations if each.iteration_seconds > 0]
    if not usable:
        return None
    figure, (axis,) = new_figure()
    batch = model.shape.batch_size
    most = max(each.allocation.workers for each in usable)
    groups: dict[tuple[float, ...], list[int]] = {}
    for index, each in enumerate(usable):
        a = each.allocation
        groups.setdefault((a.parameter_servers, a.worker_cores, a.parameter_server_cores), []).append(index)
    for place, (key, members) in enumerate(sorted(groups.items())):
        color = f"C{place % 10}"
        line = [msgspec.structs.replace(usable[members[0]].allocation, workers=count) for count in range(1, most + 2)]
        predicted = model.predict(Columns.of(line)).samples_per_second
        label = f"servers {key[0]:.0f} × {key[2]:g} cores, workers of {key[1]:g} cores"
        axis.plot(range(1, most + 2), predicted, color=color, linewidth=1.3, label=label)
        at = [usable[i].allocation.workers for i in members]
        axis.plot(at, [_speed(usable[i], batch) for i in members], "o", color=color, markersize=6)
        if left_out_seconds:
            guessed = [usable[i].allocation.workers * batch / left_out_seconds[i] for i in members]
            axis.plot(at, guessed, "x", color=color, markersize=8)
    axis.set_xticks(range(1, most + 2))
    axis.set_ylim(bottom=0)
    axis.yaxis.set_major_formatter("{x:,.0f}")
    axis.set(xlabel="workers", ylabel="samples per second")
    crosses = ", crosses predicted without that point" if left_out_seconds else ""
    axis.set_title(f"{title} (lines fitted, dots measured{crosses})\nRMSLE {model.rmsle:.3f}", fontsize=11)
    axis.legend(frameon=False, fontsize="small")
    return figure


def _speed(each: Observation, batch: int) -> float:
    return each.allocation.workers * batch / each.iteration_seconds


def pareto(considered: Sequence[Considered], title: str = "What could be done, and what was chosen") -> Figure | None:
    """Predicted speed over additional cost of all candidates, with the chosen one; None without candidates."""
    if not considered:
        return None
    figure, (axis,) = new_figure()
    for kind, color in _COLORS.items():
        mine = [each.candidate for each in considered if each.candidate.kind is kind]
        if mine:
            axis.errorbar(
                [each.cost_per_hour for each in mine], [each.samples_per_second for each in mine],
                yerr=[each.relative_error * each.samples_per_second for each in mine], fmt="o", color=color,
                markersize=6, elinewidth=0.8, capsize=2, alpha=0.85, label=kind.value,
            )  # fmt: skip
    for each in considered:
        if each.chosen:
            axis.plot(
                each.candidate.cost_per_hour, each.candidate.samples_per_second, marker="*", markersize=20,
                color="tab:red", markeredgecolor="white", linestyle="none", label="chosen", zorder=5,
            )  # fmt: skip
    front = sorted(
        (each.candidate for each in considered if each.candidate.kind is not CandidateKind.EXPLORE),
        key=lambda each: each.cost_per_hour,
    )
    axis.plot(
        [each.cost_per_hour for each in front], [each.samples_per_second for each in front], color="tab:gray",
        linewidth=1, alpha=0.6, zorder=1,
    )  # fmt: skip
    axis.set(xlabel="cost per hour, against now", ylabel="predicted samples per second")
    axis.set_ylim(bottom=0)
    axis.yaxis.set_major_formatter("{x:,.0f}")
    axis.set_title(f"{title} (bars: one standard deviation)")
    axis.legend(frameon=False, loc="lower right")
    return figure


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A plan that was carried out: the gain that was predicted, and the one that was measured, samples/s."""

    name: str
    predicted_gain: float
    measured_gain: float


def kept_promises(decisions: Sequence[Decision], observations: Sequence[Observation], batch_size: int) -> list[Kept]:
    """Predicted and measured gain of every plan whose allocation and the one before it were both measured."""
    measured = {each.allocation: _speed(each, batch_size) for each in observations if each.iteration_seconds > 0}
    kept = []
    for each in decisions:
        before, after = each.before_samples_per_second, each.predicted_samples_per_second
        known = each.before in measured and each.after in measured and each.before != each.after
        if each.changed and before is not None and after is not None and known:
            kept.append(
                Kept(
                    name=change(each.before, each.after),
                    predicted_gain=after - before,
                    measured_gain=measured[each.after] - measured[each.before],
                )
            )
    return kept


def promises(kept: Sequence[Kept]) -> Figure | None:
    """Bars side by side; None as long as no plan was carried out and measured."""
    shown = kept[-_CAPTIONS:]
    if not shown:
        return None
    figure, (axis,) = new_figure()
    places = range(len(shown))
    width = 0.38
    for shift, values, label, color in (
        (-width / 2, [each.predicted_gain for each in shown], "predicted", "tab:gray"),
        (width / 2, [each.measured_gain for each in shown], "measured", "tab:blue"),
    ):
        bars = axis.bar([place + shift for place in places], values, width, label=label, color=color)
        axis.bar_label(bars, fmt=lambda value: f"{value:+,.0f}", fontsize=9, padding=2)
    axis.axhline(0, color="black", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.set_xlim(-0.8, max(1.8, len(shown) - 0.2))
    axis.set_xticks(list(places), [textwrap.fill(each.name, 18) for each in shown])
    axis.set_ylabel("samples per second")
    axis.yaxis.set_major_formatter("{x:,.0f}")
    axis.margins(y=0.15)
    axis.set_title("Gain of the last plans: predicted and measured")
    axis.legend(frameon=False)
    return figure


def server_memory(measured: Sequence[tuple[int, float]], decisions: Sequence[Decision]) -> Figure | None:
    """Memory of the fullest server over samples: what was forecast at the last decisions, and what came true.

    None where no decision was made with a forecast.

    Args:
        measured: (samples trained, bytes), by rising samples.
    """
    forecasts = [(each, each.memory) for each in decisions if each.memory is not None][-_FORECASTS:]
    if not forecasts:
        return None
    figure, (axis,) = new_figure()
    for place, (decision, curve) in enumerate(forecasts):
        color, at = f"C{place + 1}", curve.samples[0]
        low, likely, high = (
            [value / _GIBIBYTE for value in values] for values in (curve.low, curve.likely, curve.high)
        )
        axis.fill_between(curve.samples, low, high, color=color, alpha=0.15, linewidth=0)
        what = change(decision.before, decision.after) + ("" if decision.changed else " (not done)")
        axis.plot(curve.samples, likely, "--", color=color, linewidth=1.2, label=f"forecast, then {what}")
        axis.axvline(at, color=color, linewidth=1, alpha=0.7)
    limits = [(at.samples[0], each.before.parameter_server_memory_bytes) for each, at in forecasts]
    limits = [(float(at), limits[0][1]) for at, _ in measured[:1] if at < limits[0][0]] + limits
    last = forecasts[-1][0]
    after = (last.after if last.changed else last.before).parameter_server_memory_bytes
    limits += [(forecasts[-1][1].samples[0], after), (forecasts[-1][1].samples[-1], after)]
    axis.step(
        [samples for samples, _ in limits], [limit / _GIBIBYTE for _, limit in limits], where="post", color="tab:red",
        linewidth=1.4, label="limit of a server",
    )  # fmt: skip
    samples, used = [at for at, _ in measured], [value / _GIBIBYTE for _, value in measured]
    axis.plot(samples, used, color="black", linewidth=1.6, label="measured")
    axis.set_ylim(bottom=0)
    axis.set(xlabel="samples trained", ylabel="GiB of the fullest server")
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.set_title("Memory of the fullest parameter server: forecast and measured (band: two standard deviations)")
    figure.legend(frameon=False, fontsize="small", loc="outside lower center", ncols=2)
    return figure


def migrations(seen: Sequence[MigrationSeen]) -> Figure | None:
    """A Gantt chart of each of the last migrations of parameter servers; None before the first."""
    charts = [chart for chart in map(Gantt.of, seen[-_CAPTIONS:]) if chart.rows]
    if not charts:
        return None
    from matplotlib.patches import Patch

    lines = sum(len(chart.rows) for chart in charts)
    figure, axes = new_figure(rows=len(charts), more_inches=0.15 * lines)
    for axis, chart in zip(axes, charts, strict=True):
        for row, (_, bars) in enumerate(chart.rows):
            for bar in bars:
                axis.broken_barh([(bar.begin, bar.seconds)], (row - 0.4, 0.8), facecolors=_BARS[bar.what])
        if chart.hand_over:
            begin, seconds = chart.hand_over
            axis.axvspan(begin, begin + max(seconds, 0.002 * chart.seconds), color="tab:red", zorder=3)
        axis.set_yticks(range(len(chart.rows)), [name for name, _ in chart.rows], fontsize=8)
        axis.invert_yaxis()
        axis.set_xlim(0, chart.seconds)
        axis.set_title(textwrap.fill(f"{chart.title}: {chart.note}", _LINE), fontsize=10)
    axes[-1].set_xlabel("seconds")
    colors = {"starts": _BARS["starts"], "copies rows": _BARS["copies"], "serves": _BARS["serves"]}
    handles = [Patch(color=color, label=name) for name, color in {**colors, "hand-over": "tab:red"}.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return figure
