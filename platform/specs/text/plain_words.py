"""Plain words for identifiers, wherever people read them: pages, reports, tables, messages.

Journals, tags, and the JSON output of commands keep the identifiers.
"""

from __future__ import annotations

from elastrec.platform.specs.metrics import Role, TrainingMetrics
from elastrec.platform.specs.shape import ShapeChange
from elastrec.platform.specs.text.quantities import format_bytes
from elastrec.platform.specs.text.some import counted

_REQUESTERS = {
    "memory-forecast": "the memory forecast",
    "quota": "the teams' shares",
    "exploring": "the scaling policy, to measure the effect",
    "notice": "the master, because a pod will be ended",
    "slow node": "the master, because a node is slow",
}
_NUMBERED = {"shape": "request", "move": "migration", "save": "save"}
_PHASES = {
    "Pending": "is waiting for its pods",
    "Starting": "is starting",
    "Training": "is training",
    "Recovering": "is recovering",
    "Saving": "is saving its final record",
    "Evaluating": "is evaluating",
    "Succeeded": "has succeeded",
    "Failed": "has failed",
    "Stopped": "was stopped",
    "Unknown": "is in an unknown phase",
}
_NOUNS = {Role.WORKER: "worker", Role.PARAMETER_SERVER: "server"}


def requester(identifier: str) -> str:
    """Who made a plan or a request: `memory-forecast` is `the memory forecast`. Policies that a settings file can name,
    commands and DAGs keep their names."""
    return _REQUESTERS.get(identifier, identifier)


def numbered(identifier: str) -> str:
    """An order or a request by its number: `move-3` is `migration 3`; other identifiers stay as they are."""
    kind, _, number = identifier.partition("-")
    return f"{_NUMBERED[kind]} {number}" if kind in _NUMBERED and number.isdigit() else identifier


def phase(identifier: str) -> str:
    """What a job does in a phase, as the predicate of a sentence: `Pending` is `is waiting for its pods`."""
    return _PHASES.get(identifier, f"is {identifier}")


def role(identifier: str) -> str:
    """`parameter-server` is `parameter server`."""
    return identifier.replace("-", " ")


def span(seconds: float) -> str:
    """`90s`, `5m`, `3h`: a time in one unit."""
    whole = int(max(0.0, seconds))
    if whole < 120:
        return f"{whole}s"
    return f"{whole // 60}m" if whole < 7200 else f"{whole // 3600}h"


def failing_saves(metrics: TrainingMetrics) -> str:
    """That the saves of a job fail, since when and why, and the age of its last complete record; empty if they do
    not."""
    if not metrics.failed_saves or metrics.failing_seconds is None:
        return ""
    saves = "1 save has" if metrics.failed_saves == 1 else f"{metrics.failed_saves:,} saves have"
    age = metrics.checkpoint_age_seconds
    first = f"{'' if metrics.failed_saves == 1 else 'the first '}{span(metrics.failing_seconds)} ago"
    last = "none has succeeded so far" if age is None else f"the last complete record is {span(age)} old"
    return f"{saves} failed, {first}; {last}: {metrics.save_problem}"


def places(change: ShapeChange) -> list[str]:
    """What a change asks for: `3 workers`, `1.5 cores per server`."""
    words = []
    for of_role, wanted in change.items():
        noun = _NOUNS.get(of_role, role(of_role))
        words += [] if wanted.count is None else [counted(wanted.count, noun)]
        words += [] if wanted.cores is None else [f"{wanted.cores:g} cores per {noun}"]
        words += [] if wanted.memory_bytes is None else [f"{format_bytes(wanted.memory_bytes)} of memory per {noun}"]
    return words
