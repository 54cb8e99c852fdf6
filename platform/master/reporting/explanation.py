"""The story of a job for people: what happened, why, and where the time went. Pure but for the two store functions."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from elastrec.checkpoints import Store, open_store
from elastrec.platform.master.machine.state import JobState
from elastrec.platform.master.measuring.time_book import PARTS, TimeBook
from elastrec.platform.master.service.journal import Journal
from elastrec.platform.specs.errors import CheckpointError
from elastrec.platform.transport.messages.ledger import Explanation, TimelineEntry

TIMELINE_ENTRIES = 10_000
"""Entries that are told at most, the last ones."""
_FAULTS = frozenset({"pod_replaced", "process_replaced", "rollback", "term_begun", "master_resumed"})


def explanation(job_id: str, phase: str, times: TimeBook, journal: Journal) -> Explanation:
    """The story until now."""
    lines, omitted = journal.timeline(TIMELINE_ENTRIES)
    return Explanation(
        job=job_id,
        phase=phase,
        wall_seconds=times.total,
        parts={part: times.seconds.get(part, 0.0) for part in PARTS},
        goodput=times.goodput,
        timeline=[timeline_entry(*line) for line in lines],
        omitted=omitted,
    )


def timeline_entry(seconds: float, unix_seconds: float, decision: str, inputs: dict[str, Any]) -> TimelineEntry:
    """A decision of the state machine in words."""
    what, cause = _words(decision, inputs)
    return TimelineEntry(
        seconds=seconds, unix_seconds=unix_seconds, what=what, cause=cause, is_fault=decision in _FAULTS
    )


def _words(decision: str, of: dict[str, Any]) -> tuple[str, str]:
    match decision:
        case "job_begun":
            source = f"from record {of['record']}" if of["record"] else "from nothing"
            source += f" at {of['samples']:,} samples" if of["samples"] else ""
            return f"began {source} with {of['workers']} workers, {of['parameter_servers']} servers", ""
        case "job_resumed":
            again = f"; {of['repeated_rows']:,} rows are trained again" if of["repeated_rows"] else ""
            what = f"resumed from {of['record']} at {of['step']:,} samples, generation {of['generation']}"
            return what, f"an earlier master has left it (this is term {of['term']}){again}"
        case "term_begun":
            return f"the master moved to {of['address']} (term {of['term']})", ""
        case "pod_registered":
            return f"started {of['pod']}" + (f" on {of['node']}" if of["node"] else ""), ""
        case "pod_replaced":
            return f"lost {of['pod']}, replaced by {of['by']}", of["reason"]
        case "process_replaced":
            return f"restarted the process of {of['pod']}", "the old process was gone"
        case "rollback":
            place = of["record"] if "/" in of["record"] else "the beginning"
            return f"rolled back to {place}, generation {of['generation']}", of["reason"]
        case "record_damaged":
            return f"found {of['record']} damaged", of["reason"]
        case "shape_asked":
            return f"was asked for another shape ({of['request']}): {of['wanted']}", ""
        case "shape_ended":
            return f"the request {of['request']} for another shape: {of['outcome']}", of["reason"]
        case "pod_resized":
            return f"{of['pod']} has {of['cores']:g} cores instead of {of['before_cores']:g}", ""
        case "resize_refused":
            return f"{of['pod']} keeps {of['cores']:g} cores instead of {of['asked_cores']:g}", of["reason"]
        case "save_begun":
            return f"saving at {of['step']:,} samples", "training is done" if of["is_final"] else ""
        case "record_committed":
            return f"saved {of['record']}", ""
        case "save_failed":
            return f"could not save ({of['order']})", of["reason"]
        case "save_unknown":
            return f"went on without knowing whether {of['order']} is complete", of["reason"]
        case "phase_changed":
            return f"{of['before']} -> {of['after']}", ""
        case "master_resumed":
            away = of["away_seconds"]
            return "the master went on", f"it was gone for {away:.1f} s" if away else "it was suspended or restarted"
        case "pod_ordered":
            names = [name for name in of if name not in ("pod", "reason")]
            wanted = ", ".join(f"{name.replace('_', ' ')} {of[name]}" for name in names)
            return f"{of['pod']} has orders of its own: {wanted}", of.get("reason", "")
        case "job_failed":
            return "failed", of["reason"]
        case "job_stopped":
            return "stopped", of["reason"]
        case "job_succeeded":
            return f"succeeded after {of['samples_trained']:,} samples", ""
    return decision.replace("_", " "), ", ".join(f"{name} {value}" for name, value in of.items())


def as_text(told: Explanation) -> str:
    """The story as plain lines of at most about 120 characters, for a terminal and for MLflow."""
    lines = [
        f"{told.job}: {told.phase}, {told.wall_seconds:.1f} s, goodput {told.goodput:.1%} "
        "(share of the time in which rows were trained that count)",
        "",
        f"{'PART':<20} {'SECONDS':>10} {'SHARE':>7}  MEANING",
    ]
    for part, seconds in told.parts.items():
        share = seconds / told.wall_seconds if told.wall_seconds else 0.0
        lines.append(f"{part.replace('_', ' '):<20} {seconds:>10.1f} {share:>7.1%}  {PARTS.get(part, '')}")
    lines += ["", f"{'AT':<19} {'SECONDS':>9}  EVENT"]
    if told.omitted:
        lines.append(f"... {told.omitted:,} older ones")
    for entry in told.timeline:
        moment = datetime.fromtimestamp(entry.unix_seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
        cause = f" because: {entry.cause}" if entry.cause else ""
        lines.append(f"{moment} {entry.seconds:>9.1f}  {entry.what}{cause}")
    return "\n".join(lines)


def explanation_key(job_name: str, job_id: str) -> str:
    """Where a job's story lies in its checkpoint store."""
    return f"{job_name}/ledger/{job_id}.json"


def write_explanation(store: str, job_name: str, job_id: str, state: JobState, journal: Journal) -> str:
    """Puts the story of a job that is over beside its ledger; returns its URI.

    Where this master continued from a record of an earlier one, the timeline begins with what that one has told.

    Raises:
        CheckpointError: the store refused.
        JournalError: the journal cannot be read.
    """
    told = explanation(job_id, str(state.phase), state.times, journal)
    opened, key = open_store(store), explanation_key(job_name, job_id)
    if state.is_resumed and (before := read_explanation(opened, job_id)) is not None and told.timeline:
        began = told.timeline[0].unix_seconds
        earlier = [entry for entry in before.timeline if entry.unix_seconds < began]
        timeline = [*earlier, *told.timeline]
        omitted = told.omitted + before.omitted + max(0, len(timeline) - TIMELINE_ENTRIES)
        told = msgspec.structs.replace(told, timeline=timeline[-TIMELINE_ENTRIES:], omitted=omitted)
    opened.put(key, msgspec.json.encode(told))
    return opened.child_uri(key)


def read_explanation(store: str | Store, job_id: str) -> Explanation | None:
    """The story of a job that is over, whatever its name; None when the store has none.

    Raises:
        CheckpointError: the store could not be asked, or the file is damaged.
    """
    opened = open_store(store) if isinstance(store, str) else store
    for name in opened.folders():
        key = explanation_key(name, job_id)
        if opened.exists(key):
            try:
                return msgspec.json.decode(opened.get(key), type=Explanation)
            except msgspec.MsgspecError as error:
                raise CheckpointError(f"{opened.child_uri(key)}: it cannot be read: {error}") from error
    return None
