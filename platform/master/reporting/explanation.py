"""The explanation of a job: events, causes, and where the time went. Pure, except for the two store functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from elastrec.checkpoints import Store, open_store
from elastrec.platform.master.machine.state import JobState
from elastrec.platform.master.measuring.fault_profile import FAULT_ENDED
from elastrec.platform.master.measuring.migration_profile import migrations_of
from elastrec.platform.master.measuring.time_profile import PARTS, TimeProfile
from elastrec.platform.master.pods import requests
from elastrec.platform.master.service.journal import Journal
from elastrec.platform.specs.errors import CheckpointError
from elastrec.platform.specs.metrics import FaultCost
from elastrec.platform.specs.shape import Shape
from elastrec.platform.specs.text import plain_words
from elastrec.platform.specs.text.quantities import format_bytes
from elastrec.platform.specs.text.some import counted, some
from elastrec.platform.transport.messages.ledger import Explanation, OwnPlan, TimelineEntry

TIMELINE_ENTRIES = 10_000
"""Maximum number of entries; the last ones are shown."""
_FAULTS = frozenset({"pod_replaced", "process_replaced", "rollback", "job_resumed", "master_resumed"})


def explanation(
    job_id: str,
    phase: str,
    times: TimeProfile,
    journal: Journal,
    own_plans: Sequence[OwnPlan] = (),
    open_costs: Mapping[int, FaultCost] | None = None,
    shape: Shape | None = None,
    shape_changes: int = 0,
    earlier_seconds: float | None = 0.0,
) -> Explanation:
    """The explanation up to now.

    Args:
        shape, shape_changes, earlier_seconds: see Explanation.
        open_costs: costs of the faults that are not over, by their numbers (`FaultProfile.costs_at`).
    """
    lines, omitted = journal.timeline(TIMELINE_ENTRIES)
    costs = dict(open_costs or {})
    for _, _, decision, inputs in lines:
        if decision == FAULT_ENDED:
            costs[inputs["fault"]] = msgspec.convert(inputs, FaultCost)
    return Explanation(
        job=job_id,
        phase=phase,
        wall_seconds=times.total,
        parts={part: times.seconds.get(part, 0.0) for part in PARTS},
        goodput=times.goodput,
        timeline=[timeline_entry(*line, costs) for line in lines if line[2] != FAULT_ENDED],
        omitted=omitted,
        migrations=migrations_of(lines),
        own_plans=list(own_plans),
        shape=shape,
        shape_changes=shape_changes,
        earlier_seconds=earlier_seconds,
    )


def timeline_entry(
    seconds: float,
    unix_seconds: float,
    decision: str,
    inputs: dict[str, Any],
    costs: Mapping[int, FaultCost] | None = None,
) -> TimelineEntry:
    """A decision of the state machine in words.

    Args:
        costs: of faults, by their numbers.
    """
    words, cause = _words(decision, inputs)
    is_fault = decision in _FAULTS
    cost = _cost(decision, inputs, costs or {}) if is_fault else None
    return TimelineEntry(
        seconds=seconds, unix_seconds=unix_seconds, decision=decision, what=words, cause=cause, is_fault=is_fault,
        cost=cost,
    )  # fmt: skip


def _cost(decision: str, inputs: dict[str, Any], costs: Mapping[int, FaultCost]) -> FaultCost:
    match decision:
        case "master_resumed" if seconds := inputs["away_seconds"] or inputs.get("suspended_seconds"):
            return FaultCost(without_master_seconds=seconds)
        case "job_resumed":
            return FaultCost(repeated_rows=inputs["repeated_rows"])
    # Journals of earlier versions have no numbers; when a process that was replaced had ended, nobody knows.
    return costs.get(inputs.get("fault", 0), FaultCost())


def _absence(inputs: dict[str, Any]) -> str:
    if away := inputs["away_seconds"]:
        return f"there was no master for {away:.1f} s"
    # Journals of earlier versions do not have it.
    if suspended := inputs.get("suspended_seconds"):
        return f"its process was suspended, or its journal could not be written, for {suspended:.1f} s"
    return "it was suspended or restarted"


def _words(decision: str, inputs: dict[str, Any]) -> tuple[str, str]:
    match decision:
        case "job_begun":
            source = f"from record {inputs['record']}" if inputs["record"] else "without a record"
            source += f" at {inputs['samples']:,} samples" if inputs["samples"] else ""
            pods = f"{counted(inputs['workers'], 'worker')}, {counted(inputs['parameter_servers'], 'server')}"
            return f"began {source} with {pods}", ""
        case "owner_changed":
            return f"the owner is now {inputs['owner']}", ""
        case "job_resumed":
            again = f"; {inputs['repeated_rows']:,} rows are trained again" if inputs["repeated_rows"] else ""
            # Journals of earlier versions have only the number of samples ever trained, repeated ones included.
            position = f"after {inputs['step']:,} trained samples"
            if "covered_rows" in inputs:
                position = f"at {inputs['covered_rows']:,} of {inputs['total_rows']:,} samples"
            words = f"resumed from {inputs['record']} {position}, generation {inputs['generation']}"
            kept = f"; the job had {inputs['other_sizes']} then" if inputs.get("other_sizes") else ""
            kept += f"; as ordered then, its workers have {inputs['orders']}" if inputs.get("orders") else ""
            return words, f"an earlier master wrote it (this is term {inputs['term']}){again}{kept}"
        case "term_begun":
            return f"the master moved to {inputs['address']} (term {inputs['term']})", ""
        case "pod_registered":
            return f"started {inputs['pod']}" + (f" on {inputs['node']}" if inputs["node"] else ""), ""
        case "pod_replaced":
            return f"lost {inputs['pod']}, replaced by {inputs['by']}", inputs["reason"]
        case "memory_doubled":
            what = f"the successor of {inputs['pod']} gets {format_bytes(inputs['memory_bytes'])} of memory"
            return what, f"it was killed at {format_bytes(inputs['before_memory_bytes'])}"
        case "memory_not_granted":
            what = f"{inputs['pod']} gets only {format_bytes(inputs['memory_bytes'])} of memory"
            return what, f"{format_bytes(inputs['asked_memory_bytes'])} were not available: {inputs['reason']}"
        case "process_replaced":
            return f"restarted the process of {inputs['pod']}", "the old process has ended"
        case "rollback":
            place = inputs["record"] if "/" in inputs["record"] else "the beginning"
            return f"rolled back to {place}, generation {inputs['generation']}", inputs["reason"]
        case "record_damaged":
            return f"found {inputs['record']} damaged", inputs["reason"]
        case "shape_asked":
            by = f" by {plain_words.requester(inputs['asked_by'])}" if inputs.get("asked_by") else ""
            what = f"another shape was requested{by} ({_request(inputs)}): {inputs['wanted']}"
            return what, inputs.get("reason", "")
        case "shape_refused":
            by = plain_words.requester(inputs["asked_by"]) or "an observer"
            why = f"planned for version {inputs['expected_version']} of the shape; it now has {inputs['version']}"
            return f"refused the shape that {by} requested: {inputs['wanted']}", why
        case "migration_begun":
            what = f"parameter servers change from {inputs['before']} to {inputs['after']} while the job trains"
            return f"{_order(inputs)}: {what}", ""
        case "server_relieved":
            what = f"{len(inputs['buckets'])} hot buckets move away from {inputs['server']}"
            return what, f"it has {inputs['ratio']:.2f} × the others' load, {inputs['ratio_after']:.2f} × afterwards"
        case "slow_pod_moved":
            what = f"{inputs['pod']} is slow: its successor starts on another node than {inputs['node']}"
            return what, f"it needs {inputs['ratio']:.2f} × the time of the others per row"
        case "notice_given":
            on = f" on {inputs['node']}" if inputs["node"] else ""
            return f"{inputs['pod']}{on} will be ended; another server takes over its buckets", "it received SIGTERM"
        case "paused_before_end":
            what = f"workers pause for a checkpoint until {some(inputs['pods'])} has ended"
            return what, f"its process will be killed in {inputs['ends_in_seconds']:.1f} s"
        case "migration_copies":
            return f"{_order(inputs)}: new owners copy {counted(inputs['buckets'], 'bucket')}", ""
        case "migration_hands_over":
            return f"{_order(inputs)}: buckets are handed over after {inputs['copied_seconds']:.1f} s of copying", ""
        case "migration_ended":
            owners = f"{counted(inputs['servers'], 'parameter server')} {'owns' if inputs['servers'] == 1 else 'own'}"
            return f"{_order(inputs)}: {owners} all buckets; {inputs['hand_over_seconds']:.2f} s hand-over", ""
        case "migration_cancelled":
            return f"{_order(inputs)} was cancelled while {inputs['stage']}", inputs["reason"]
        case "shape_ended":
            return f"{_request(inputs)} for another shape: {inputs['outcome']}", inputs["reason"]
        case "pod_resized":
            return f"{inputs['pod']} has {_sizes(inputs, '', 'before_')}", ""
        case "resize_refused":
            return f"{inputs['pod']} keeps {_sizes(inputs, '', 'asked_')}", inputs["reason"]
        case "save_begun":
            return f"saving at {inputs['step']:,} samples", "training is done" if inputs["is_final"] else ""
        case "record_committed":
            return f"saved {inputs['record']}", ""
        case "save_failed":
            return f"could not save ({_order(inputs)})", inputs["reason"]
        case "save_unknown":
            return f"continued although it is unknown whether {_order(inputs)} is complete", inputs["reason"]
        case "phase_changed":
            return f"the job {plain_words.phase(inputs['after'])}", ""
        case "master_resumed":
            return "the master continued", _absence(inputs)
        case "pod_ordered":
            names = [name for name in inputs if name not in ("pod", "reason")]
            places = ", ".join(f"{name.replace('_', ' ')} {inputs[name]}" for name in names)
            return f"{inputs['pod']} got orders of its own: {places}", inputs.get("reason", "")
        case "workers_ordered":
            said = ", ".join(_order_words(name, value) for name, value in inputs.items())
            return f"all workers got orders: {said}", "between two steps"
        case "job_failed":
            return "failed", inputs["reason"]
        case "job_stopped":
            return "stopped", inputs["reason"]
        case "job_succeeded":
            return f"succeeded after {inputs['samples_trained']:,} samples", ""
    return decision.replace("_", " "), ", ".join(f"{name} {value}" for name, value in inputs.items())


def _order(inputs: dict[str, Any]) -> str:
    return plain_words.numbered(inputs["order"])


def _request(inputs: dict[str, Any]) -> str:
    return plain_words.numbered(inputs["request"])


def _order_words(name: str, value: Any) -> str:
    return "everything else as in the job file" if name == "resets" else f"{name.replace('_', ' ')} {value}"


def _sizes(inputs: dict[str, Any], now: str, other: str) -> str:
    """The differences between two sizes of a pod; its cores if the sizes are equal."""
    cores, memory_bytes = inputs[f"{now}cores"], inputs[f"{now}memory_bytes"]
    words = []
    if memory_bytes != inputs.get(f"{other}memory_bytes", memory_bytes):
        words.append(
            f"{format_bytes(memory_bytes)} of memory instead of {format_bytes(inputs[f'{other}memory_bytes'])}"
        )
    if cores != inputs[f"{other}cores"] or not words:
        words.insert(0, f"{cores:g} cores instead of {inputs[f'{other}cores']:g}")
    return " and ".join(words)


def as_text(story: Explanation) -> str:
    """The explanation as plain lines of at most about 120 characters, for a terminal and for MLflow."""
    lines = [
        f"{story.job} {plain_words.phase(story.phase)}; {story.wall_seconds:.1f} s, goodput {story.goodput:.1%} "
        "(share of the time in which rows were trained that are in the model)",
        *([story.coverage] if story.coverage else []),
        "",
        f"{'PART':<20} {'SECONDS':>10} {'SHARE':>7}  MEANING",
    ]
    for part, seconds in story.parts.items():
        share = seconds / story.wall_seconds if story.wall_seconds else 0.0
        lines.append(f"{part.replace('_', ' '):<20} {seconds:>10.1f} {share:>7.1%}  {PARTS.get(part, '')}")
    lines += ["", f"{'AT':<19} {'SECONDS':>9}  EVENT"]
    if story.earlier_problem:
        lines.append(f"... the events before the job was resumed, which cannot be read: {story.earlier_problem}")
    if story.omitted:
        lines.append(f"... {story.omitted:,} older events")
    for entry in story.timeline:
        moment = datetime.fromtimestamp(entry.unix_seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
        cause = f" because: {entry.cause}" if entry.cause else ""
        lines.append(f"{moment} {entry.seconds:>9.1f}  {entry.what}{cause}")
        if entry.cost is not None:
            lines.append(f"{'':>29}  {entry.cost.words}")
    return "\n".join(lines)


def explanation_key(job_name: str, job_id: str) -> str:
    """The key of a job's explanation in its checkpoint store."""
    return f"{job_name}/ledger/{job_id}.json"


def with_earlier(story: Explanation, before: Explanation) -> Explanation:
    """The explanation of a master that continued from a record, with the events of earlier masters before its own.

    Args:
        before: what earlier masters have left, or this one itself, if it has been restarted since its job ended.
    """
    if not story.timeline:
        return story
    began = story.timeline[0].unix_seconds
    is_own = any(entry.unix_seconds >= began for entry in before.timeline[-1:])
    timeline = [*(entry for entry in before.timeline if entry.unix_seconds < began), *story.timeline]
    omitted = story.omitted + before.omitted + max(0, len(timeline) - TIMELINE_ENTRIES)
    return msgspec.structs.replace(
        story,
        timeline=timeline[-TIMELINE_ENTRIES:],
        omitted=before.omitted if is_own else omitted,
        migrations=[*(each for each in before.migrations if each.unix_seconds < began), *story.migrations],
        own_plans=[*(each for each in before.own_plans if each.unix_seconds < began), *story.own_plans],
        shape_changes=before.shape_changes + (0 if is_own else story.shape_changes),
    )


def write_explanation(
    store: str, job_name: str, job_id: str, state: JobState, journal: Journal, before: Explanation | None = None
) -> str:
    """Stores the explanation of a job that has ended next to its ledger; returns its URI.

    Args:
        before: what earlier masters have left, if this one continued from a record.

    Raises:
        CheckpointError: the store refused.
        JournalError: the journal cannot be read.
    """
    story = explanation(
        job_id, str(state.phase), state.times, journal, requests.own_plans(state),
        shape=state.wanted_shape, shape_changes=state.shape_version, earlier_seconds=state.earlier_seconds,
    )  # fmt: skip
    opened, key = open_store(store), explanation_key(job_name, job_id)
    opened.put(key, msgspec.json.encode(story if before is None else with_earlier(story, before)))
    return opened.child_uri(key)


def read_explanation(store: str | Store, job_id: str) -> Explanation | None:
    """The explanation of a job that has ended, for any job name; None if the store has none.

    Raises:
        CheckpointError: the store could not be asked, or the file is damaged.
    """
    opened = open_store(store)
    for name in opened.folders():
        key = explanation_key(name, job_id)
        if opened.exists(key):
            try:
                return msgspec.json.decode(opened.get(key), type=Explanation)
            except msgspec.MsgspecError as error:
                raise CheckpointError(f"{opened.child_uri(key)}: it cannot be read: {error}") from error
    return None
