"""TrainingMetrics and totals of a job, from its state and from heartbeats. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from elastrec.platform.clusters.pods import PodPhase, PodSize, PodStatus, ResizeState
from elastrec.platform.data.metrics.heads import HeadSketches
from elastrec.platform.history import metric_names as names
from elastrec.platform.master.machine import migration, stages, stalls
from elastrec.platform.master.machine.state import JobState
from elastrec.platform.master.measuring.monitor import PodSample, Window
from elastrec.platform.master.measuring.sketches import head_metrics
from elastrec.platform.master.pods import orders
from elastrec.platform.master.pods.membership import Member, MemberStage
from elastrec.platform.specs.metrics import IDLE, MigrationMetrics, Phase, PodMetrics, TrainingMetrics
from elastrec.platform.specs.text.quantities import format_bytes

_CONDITIONS = {MemberStage.RETIRING: "Leaving", MemberStage.STANDBY: "Standby"}


def training_metrics(
    state: JobState,
    name: str,
    elapsed_seconds: float,
    window: Window | None,
    samples: Mapping[str, PodSample],
    cluster: Mapping[str, PodStatus],
    fleet_problem: str = "",
) -> TrainingMetrics:
    """The job at this moment.

    Args:
        name: the job's id.
        window: the last one in which something was trained.
        samples, cluster: the last reports of heartbeats and of the cluster, by pod name.
        fleet_problem: why the cluster does not fulfil requests; empty if it does.
    """
    final = HeadSketches.decode(state.evaluation_sketch) if state.evaluation_sketch else HeadSketches()
    evaluated = bool(final.heads) and state.phase is Phase.SUCCEEDED
    heads = head_metrics(final) if evaluated else window.heads if window else ()
    evaluation_rows = [sketch.rows for sketch in final.heads.values()]
    present = list(state.membership.members.values())
    gone = list(state.membership.left.values()) if state.phase.is_final else []
    members = sorted((*present, *gone), key=lambda m: (m.role, m.index))
    training_seconds = state.phases.time_in_phases(elapsed_seconds).get(Phase.TRAINING, 0.0)
    trained = state.training.samples - state.samples_before
    mean_speed = trained / training_seconds if training_seconds else 0.0
    is_training = state.phase is Phase.TRAINING
    return TrainingMetrics(
        job=name,
        phase=state.phase,
        reason=_reason(state, elapsed_seconds, samples, cluster) or fleet_problem,
        elapsed_seconds=elapsed_seconds,
        started_from=state.started_from,
        samples_total=state.training.splits.total_rows,
        samples_trained=state.training.samples,
        samples_of_start=state.samples_of_start,
        shards_total=state.training.total,
        shards_done=state.training.done,
        evaluation_shards_total=state.evaluation.total,
        evaluation_shards_done=state.evaluation.done,
        samples_per_second=window.samples_per_second if is_training and window else mean_speed,
        loss=window.loss if window else None,
        losses=window.losses if window else {},
        evaluation_samples=evaluation_rows[0] if evaluation_rows else 0,
        generation=state.phases.generation,
        checkpoint=state.recovery.record.uri if state.recovery.record else None,
        checkpoint_age_seconds=_age(state.saves.record_time, elapsed_seconds),
        memory_copy_age_seconds=_age(state.saves.memory_time, elapsed_seconds),
        failed_saves=state.saves.failures,
        failing_seconds=_age(state.saves.failed_since, elapsed_seconds),
        save_problem=state.saves.problem,
        pods=tuple(
            _pod(member, samples.get(member.name), cluster.get(member.name), is_gone=member in gone)
            for member in members
        ),
        migration=_migration(state, elapsed_seconds, samples),
        given_up=state.given_up,
    ).with_heads(heads, evaluated=evaluated)


def _migration(state: JobState, time: float, samples: Mapping[str, PodSample]) -> MigrationMetrics | None:
    """The running migration, with the progress of its servers."""
    metrics = migration.metrics(state, time)
    if metrics is None or state.migration is None:
        return None
    copying = {
        name: sample.copying
        for name in sorted(state.migration.sources)
        if (sample := samples.get(name)) and sample.copying and sample.copying.order_id == state.migration.order_id
    }
    update = {
        "idle": stalls.words(state, time),
        "buckets_left": sum(progress.buckets_left for progress in copying.values()),
        "problems": tuple(f"{name}: {progress.problem}" for name, progress in copying.items() if progress.problem),
    }
    return metrics.model_copy(update=update)


def _age(moment: float | None, now: float) -> float | None:
    return None if moment is None else max(0.0, now - moment)


def _pod(member: Member, sample: PodSample | None, status: PodStatus | None, *, is_gone: bool) -> PodMetrics:
    sample = sample or PodSample()
    if is_gone:
        condition = "Gone"
    elif member.is_registered:
        condition = _CONDITIONS.get(member.stage, IDLE if _is_at_rest(member) else "Running")
    else:
        condition = "Starting" if status and status.phase is PodPhase.RUNNING else "Pending"
    reason = member.reason
    if member.is_idle and not is_gone:
        reason = "was ordered to be idle"
    elif member.outgoing and not is_gone:
        reason = f"another pod will replace it: {member.outgoing}"
    elif not reason and not is_gone and (words := orders.in_words(member.orders)):
        reason = f"was ordered: {words}"
    if status and status.phase is PodPhase.PENDING:
        reason = ": ".join(part for part in (status.reason, status.message) if part)
    elif status and status.resize in (ResizeState.DEFERRED, ResizeState.IN_PROGRESS):
        text = f"has {_words(status.size, status.asked_size)}, {_words(status.asked_size, status.size)} requested"
        reason = ": ".join(part for part in (text, status.resize_message) if part)
    return PodMetrics(
        name=member.name,
        role=member.role,
        state=condition,
        samples=sample.samples,
        batch_seconds=sample.batch_seconds,
        phase_seconds=sample.phase_seconds,
        memory_bytes=sample.memory_bytes or (status.memory_bytes if status else 0),
        restarts=member.restart,
        reason=reason,
    )


def _words(size: PodSize, other: PodSize) -> str:
    """The parts of a size that differ from another size."""
    if size.memory_bytes == other.memory_bytes:
        return f"{size.cores:g} cores"
    memory = f"{format_bytes(size.memory_bytes)} of memory"
    return memory if size.cores == other.cores else f"{size.cores:g} cores and {memory}"


def _is_at_rest(member: Member) -> bool:
    """Whether it was ordered to be idle, and is idle."""
    return member.orders is not None and member.orders.is_idle and member.let_go_version == member.orders.version


def _reason(state: JobState, time: float, samples: Mapping[str, PodSample], cluster: Mapping[str, PodStatus]) -> str:
    why = _store_reason(state, samples) or state.reason
    if state.phase.is_final:
        return why
    changing = _migration(state, time, samples)
    left = f"{changing.buckets_left} buckets are left to copy" if changing and changing.buckets_left else ""
    trouble = (left, changing.idle, *changing.problems) if changing else ()
    parts = (why, stages.waiting(state, time), *trouble, _given_up(state))
    return "; ".join(filter(None, parts)) or _waiting_reason(state, cluster)


def _given_up(state: JobState) -> str:
    return f"undone: {state.given_up}" if state.given_up else ""


def _store_reason(state: JobState, samples: Mapping[str, PodSample]) -> str:
    """The server that waits for the checkpoint store, and the store's last error."""
    if state.phase not in (Phase.STARTING, Phase.RECOVERING):
        return ""
    for server in state.membership.servers():
        if server.name in samples and (problem := samples[server.name].problem):
            return f"{server.name} waits for the checkpoint store: {problem}"
    return ""


def _waiting_reason(state: JobState, cluster: Mapping[str, PodStatus]) -> str:
    if state.phase not in (Phase.PENDING, Phase.STARTING, Phase.RECOVERING):
        return ""
    for name in state.membership.members:
        status = cluster.get(name)
        if status and status.phase is PodPhase.PENDING and status.message:
            return f"{name} waits: {status.reason}: {status.message}"
    return ""


def _whole_time(state: JobState, time: float) -> dict[str, float]:
    """The time of all masters of the job, by part, and its mean speed; nothing if that of earlier ones is unknown."""
    if state.earlier_seconds is None:
        return {}
    times = state.times.at(state, time)
    seconds, samples = state.earlier_seconds + time, state.training.samples - state.samples_of_start
    return {
        names.SECONDS: seconds,
        **({names.MEAN_SAMPLES_PER_SECOND: samples / seconds} if seconds > 0 else {}),
        names.GOODPUT: times.goodput,
        **{names.named(names.TIME_SECONDS, part=part): of_part for part, of_part in times.seconds.items()},
    }


def totals(state: JobState, time: float) -> dict[str, float]:
    """Totals of the whole job that are not in TrainingMetrics, by metric name."""
    saves = state.saves
    ages = {
        names.CHECKPOINT_AGE_SECONDS: _age(saves.record_time, time),
        names.MEMORY_COPY_AGE_SECONDS: _age(saves.memory_time, time),
    }
    return {
        **_whole_time(state, time),
        **{name: age for name, age in ages.items() if age is not None},
        names.SAMPLES_REPEATED: float(state.training.samples - state.training.covered_rows()),
        names.MEMORY_KILLS: float(state.membership.memory_kills),
    }
