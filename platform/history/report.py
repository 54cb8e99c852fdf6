"""A job's report: one HTML page that needs nothing else, kept as an artifact of its run.

What was trained, what came out, where time and money went, every decision and fault, how to train it again. It says
what the run holds; nothing is measured here. Pure but for reading the template.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from elastrec.platform.history import metric_names as names
from elastrec.platform.history.decisions import PlanPictures
from elastrec.platform.history.records import (
    TAG_EVALUATION_END,
    TAG_EVALUATION_START,
    TAG_GATE,
    TAG_GATE_REASON,
    JobRecord,
    Sizes,
)
from elastrec.platform.history.scaling_figures import Decision, change
from elastrec.platform.history.words import NOTHING, Chart, count, duration, figure, percent, templates_in
from elastrec.platform.specs.metrics import FaultCost
from elastrec.platform.specs.shape import MigrationSeen

REPORT_FILE = "report.html"
_CHARTS = (
    (names.LOSS, "Loss"),
    (names.AUC, "AUC of each window, before its update"),
    (names.SAMPLES_PER_SECOND, "Samples per second"),
)
SERIES = tuple(name for name, _ in _CHARTS)
"""The series that a report draws."""
_COSTS = ((names.CORE_HOURS, "core-hours"), (names.GIBIBYTE_HOURS, "GiB-hours"))
_TRAINED_ON = (
    ("days", "data.days"),
    ("training rows", "data.training_rows"),
    ("started from", "start_from"),
)
_SPENT: tuple[tuple[str, str, Callable[[float | None], str]], ...] = (
    ("core-hours", names.CORE_HOURS, figure),
    ("time", names.SECONDS, duration),
    ("samples trained", names.SAMPLES_TRAINED, count),
    ("samples per second, over the whole time", names.MEAN_SAMPLES_PER_SECOND, count),
    ("samples per core-second", names.SAMPLES_PER_CORE_SECOND, count),
    ("goodput", names.GOODPUT, percent),
)


class StoryEntry(msgspec.Struct, frozen=True):
    """Something that happened: `seconds` on the job's own clock; `cause` is empty where there is none to name.

    Attributes:
        cost: of a fault; None: of nothing else, and of faults whose master did not count it.
    """

    seconds: float
    unix_seconds: float
    what: str
    cause: str
    is_fault: bool = False
    cost: FaultCost | None = None


class StoryPart(msgspec.Struct, frozen=True):
    """Where some of the time went, and what that means."""

    name: str
    seconds: float
    meaning: str


class Fault(msgspec.Struct, frozen=True):
    """What one event brought: a server is lost and the job rolls back, which is one fault with one cost."""

    unix_seconds: float
    seconds: float
    what: str
    cause: str
    cost: FaultCost

    @staticmethod
    def of(entries: Sequence[StoryEntry]) -> Fault:
        """The entries of one event."""
        first, causes = entries[0], dict.fromkeys(entry.cause for entry in entries if entry.cause)
        # A rollback repeats why the pod was lost.
        distinct = [cause for cause in causes if not any(cause in other and cause != other for other in causes)]
        return Fault(
            unix_seconds=first.unix_seconds,
            seconds=first.seconds,
            what="; ".join(entry.what for entry in entries),
            cause="; ".join(distinct),
            cost=FaultCost.total(entry.cost or FaultCost() for entry in entries),
        )


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to a job and where its time went.

    Attributes:
        text: the same for a terminal.
        goodput: share of the wall time in which rows were trained that are in the model, 0 to 1.
        coverage: which part of the job the time covers, for people; empty: all of it.
        omitted: entries that are older than those in `timeline`.
        migrations: of parameter servers, the oldest first.
        sizes: of the pods at the end; None if unknown. shape_changes: how often their number or size changed.
    """

    text: str
    wall_seconds: float
    goodput: float
    parts: list[StoryPart]
    timeline: list[StoryEntry]
    coverage: str = ""
    omitted: int = 0
    migrations: list[MigrationSeen] = []
    sizes: Sizes | None = None
    shape_changes: int = 0

    @property
    def faults(self) -> list[Fault]:
        """What went wrong on the way, the oldest first."""
        entries = [entry for entry in self.timeline if entry.is_fault]
        return [Fault.of(list(group)) for _, group in groupby(entries, key=lambda entry: entry.seconds)]


def render(
    record: JobRecord,
    tags: Mapping[str, str],
    params: Mapping[str, str],
    champion: tuple[JobRecord, Mapping[str, str]] | None,
    series: Mapping[str, Sequence[tuple[int, float]]],
    decisions: Sequence[Decision],
    story: Story | None,
    throughput_picture: str = "",
    memory_picture: str = "",
    plan_pictures: Sequence[PlanPictures] = (),
    gains_picture: str = "",
    run_url: str = "",
) -> str:
    """The page.

    Args:
        tags, params: of the run.
        champion: the job whose model the gate compared this one with, and its run's parameters; None: not known.
        series: (samples trained, value) of the metrics of SERIES.
        decisions: of scaling, the oldest first.
        story: None: what happened is not known.
        throughput_picture: speed over time with every decision, as a data URI; empty: nothing was decided.
        memory_picture: forecast and measured memory of servers, as a data URI; empty: no forecast was made.
        plan_pictures: why the latest plans were made.
        gains_picture: predicted and measured gains of plans, as a data URI; empty: none was measured.
        run_url: page of the run; empty: no server shows pages.
    """
    links = (("DAG run", record.airflow_url), ("Task's log", record.log_url), ("MLflow run", run_url))
    charts = [Chart.of(title, series.get(name, ())) for name, title in _CHARTS]
    return (
        templates_in(Path(__file__).parent / "templates")
        .get_template("report.html")
        .render(
            record=record,
            name=tags.get("mlflow.runName", record.job_id),
            gate=tags.get(TAG_GATE, ""),
            gate_reason=tags.get(TAG_GATE_REASON, ""),
            params=params,
            quality=_quality(record.metrics),
            beside=_beside((record, params), champion) if champion else [],
            costs=[(words, record.metrics[name]) for name, words in _COSTS if name in record.metrics],
            charts=[chart for chart in charts if chart is not None],
            decisions=[(each, change(each.before, each.after)) for each in decisions],
            story=story,
            fault_costs=FaultCost.total(fault.cost for fault in story.faults) if story else FaultCost(),
            throughput_picture=throughput_picture,
            memory_picture=memory_picture,
            plans=[
                (f"{each.number}. {change(each.plan.before, each.plan.after)}", each.plan, _captioned(each.pictures))
                for each in plan_pictures
            ],
            gains_picture=gains_picture,
            links=[(words, url) for words, url in links if url],
            memory_kills=record.metrics.get(names.MEMORY_KILLS),
            command=_command(record, params, tags),
        )
    )


def _command(record: JobRecord, params: Mapping[str, str], tags: Mapping[str, str]) -> str:
    """The command that trains the same rows from the same record, and evaluates on the same rows."""
    begin, end = record.interval
    words = ["elastrec", "run", "job.json"]
    evaluation_begin = tags.get(TAG_EVALUATION_START, "")
    for option, moment in (
        ("--from", begin),
        ("--until", end),
        ("--evaluate-from", "" if evaluation_begin == end else evaluation_begin),
        ("--evaluate-until", tags.get(TAG_EVALUATION_END, "")),
    ):
        words += [option, _day_or_moment(moment)] if moment else []
    return shlex.join([*words, "--set", f"spec.continual.start_from={params.get('start_from', 'nothing')}"])


def _day_or_moment(text: str) -> str:
    """`2026-01-31` for its beginning in the time zone of the log; other moments as they are."""
    day, midnight, _ = text.partition("T00:00:00")
    return day if midnight else text


_CAPTIONS = {
    "scaling_fit.png": "Speed of the job: what the model had been fitted to, and what it predicted",
    "scaling_candidates.png": "What could have been done: predicted speed over what it costs, and what was chosen",
}


def _captioned(pictures: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(caption, pictures[name]) for name, caption in _CAPTIONS.items() if name in pictures]


class Row(msgspec.Struct, frozen=True):
    """One line of the comparison with the champion's job, as text."""

    name: str
    this: str
    champion: str


def _beside(job: tuple[JobRecord, Mapping[str, str]], champion: tuple[JobRecord, Mapping[str, str]]) -> list[Row]:
    """What the two were trained on, what they cost, and every parameter in which they differ."""
    (this, params), (other, others) = job, champion
    rows = [
        Row("run", this.job_id, other.job_id),
        *(Row(words, params.get(name, NOTHING), others.get(name, NOTHING)) for words, name in _TRAINED_ON),
        *(Row(words, show(this.metrics.get(name)), show(other.metrics.get(name))) for words, name, show in _SPENT),
        *([Row("cost", this.cost or NOTHING, other.cost or NOTHING)] if this.cost or other.cost else []),
    ]
    shown = {name for _, name in _TRAINED_ON}
    differing = sorted(name for name in {*params, *others} - shown if params.get(name) != others.get(name))
    return rows + [Row(name, params.get(name, NOTHING), others.get(name, NOTHING)) for name in differing]


def _quality(metrics: Mapping[str, float]) -> list[dict[str, Any]]:
    """Figures on the evaluation rows beside those of the champion on the same rows."""
    rows = (
        ("AUC", names.EVALUATION_AUC, names.named(names.CHAMPION_FIGURE, figure="auc")),
        (
            "normalised entropy",
            names.EVALUATION_NORMALIZED_ENTROPY,
            names.named(names.CHAMPION_FIGURE, figure="normalized_entropy"),
        ),
        ("log loss", names.EVALUATION_LOG_LOSS, ""),
    )
    return [
        {"name": words, "value": metrics[name], "champion": metrics.get(champion)}
        for words, name, champion in rows
        if name in metrics
    ]
