"""The picture of an inspected log: sessions, factors of features, savings. matplotlib is imported only for drawing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastrec.platform.data.deduplicating.dedupe_factor import WORTH_ABOVE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from elastrec.platform.data.clustering.inspection import DataFacts

_SHOWN_FEATURES = 40


def inspection_picture(facts: DataFacts) -> Figure:
    """Draws three panels; if there are more than 40 features, only those with the largest factors."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = sorted(facts.features, key=lambda feature: -feature.measured)[:_SHOWN_FEATURES]
    figure = Figure(figsize=(15, max(4.5, 1.5 + 0.25 * len(shown))), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    sessions, factors, savings = figure.subplots(1, 3)

    sizes = sorted(facts.session_sizes)
    sessions.loglog(sizes, [facts.session_sizes[size] for size in sizes], "o", markersize=3)
    sessions.set_title(f"{facts.sessions:,} sessions, {facts.samples_per_session:.1f} rows each")
    sessions.set_xlabel("rows of a session")
    sessions.set_ylabel("sessions")

    places = range(len(shown))
    chosen = {choice.name for choice in facts.proposal.choices if choice.group >= 0}
    for label, color, is_chosen in (("deduplicated", "tab:green", True), ("left plain", "lightgray", False)):
        drawn = [
            (place, feature.measured) for place, feature in enumerate(shown) if (feature.name in chosen) is is_chosen
        ]
        factors.barh([place for place, _ in drawn], [factor for _, factor in drawn], color=color, label=label)
    factors.plot([feature.predicted for feature in shown], places, "k|", markersize=9, label="predicted")
    factors.plot([feature.unclustered for feature in shown], places, "r.", markersize=5, label="in order of the log")
    factors.axvline(WORTH_ABOVE, color="gray", linestyle=":", label=f"{WORTH_ABOVE}: may be worth it above")
    factors.set_xscale("log")
    factors.set_xlabel("numbers of the plain form per number kept")
    factors.set_yticks(places, [feature.name for feature in shown], fontsize=7)
    factors.invert_yaxis()
    factors.set_title(f"DedupeFactor, batches of {facts.batch_rows:,}")
    factors.legend(fontsize=7)

    named = {"stored": facts.storage, "sent": facts.sent, "pooled": facts.pooled}
    bars = savings.bar(list(named), [saving.ratio for saving in named.values()], color="tab:green")
    savings.bar_label(bars, [f"{saving.ratio:.2f}x" for saving in named.values()])
    savings.axhline(1, color="gray", linestyle=":")
    savings.margins(y=0.1)
    savings.set_title("times fewer bytes, or ids")
    return figure
