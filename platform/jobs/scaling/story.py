"""Writes each scaling decision to the job's MLflow run: the decision, all candidates, and pictures of the reasons."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
import structlog

from elastrec.platform.history import metric_names as names
from elastrec.platform.history.decisions import Decisions
from elastrec.platform.history.scaling_figures import Decision, proposed
from elastrec.platform.jobs.ending.tracking import tracking_answers
from elastrec.platform.jobs.scaling.masters import ask_profile
from elastrec.platform.jobs.starting.launching import RUN_LABEL
from elastrec.platform.jobs.surroundings import Platform
from elastrec.platform.jobs.watching.masters import live_master, pod_of_master
from elastrec.platform.jobs.watching.past import explanation
from elastrec.platform.master.scaling.facts import observations_of, shape_of
from elastrec.platform.scaling.amounts import Change
from elastrec.platform.scaling.explain import rows
from elastrec.platform.scaling.model.throughput import ThroughputModel, fit
from elastrec.platform.scaling.types import Observation, Plan
from elastrec.platform.specs.errors import HistoryError, ScalingError
from elastrec.platform.specs.text.loading import job_from_json
from elastrec.platform.transport.messages.ledger import Explanation, GetExplanation, OwnPlan
from elastrec.platform.transport.messages.observer import ShapeOutcome
from elastrec.platform.transport.messages.profile import Profile

log = structlog.get_logger(__name__)


def log_decision(platform: Platform, wanted: Plan, *, is_changed: bool, reason: str) -> str:
    """Writes one round and the job's migrations to its run; returns the run's page, or an empty text if there is none.

    The job has already been changed, so if a round cannot be written, this is logged and not tried again.

    Raises:
        ClusterError: the cluster or the job's master does not answer.
        CheckpointError: the job is over, and its store cannot be asked.
    """
    master = pod_of_master(platform, wanted.job_id)
    run_id = master.labels.get(RUN_LABEL, "") if master else ""
    if not run_id and (profile := ask_profile(platform, wanted.job_id)) is not None:
        # MLflow was away at the launch; the run was made later.
        run_id = profile.run_id
    why = "" if run_id else "the job has no run yet"
    if run_id and tracking_answers(platform):
        try:
            return _write(platform, run_id, wanted, is_changed=is_changed, reason=reason)
        except HistoryError as error:
            why = str(error)
    elif run_id:
        why = "MLflow does not answer"
    log.warning("decision_not_written", job_id=wanted.job_id, reason=why, decision=reason)
    return ""


def _write(platform: Platform, run_id: str, wanted: Plan, *, is_changed: bool, reason: str) -> str:
    history = Decisions(platform.tracking_uri, "", platform.ui_url)
    write_own_plans(history, run_id, _own_plans(platform, wanted.job_id))
    samples = history.last_step(run_id)
    decisions = _log(history, run_id, wanted, time.time(), samples, is_changed=is_changed, reason=reason)
    history.log_throughput(run_id, decisions)
    history.log_memory(run_id, decisions)
    model, observations = _fitted(platform, wanted.job_id)
    history.log_model(run_id, decisions, wanted.considered, model, observations)
    if Change.SERVERS in wanted.changes:
        history.log_migrations(run_id, explanation(platform, wanted.job_id).migrations)
    return history.page(run_id)


def _own_plans(platform: Platform, job_id: str) -> list[OwnPlan]:
    """Of a job whose master has gone, whoever ends it writes them."""
    with live_master(platform, job_id) as master:
        return [] if master is None else master.call(GetExplanation(), Explanation, timeout_seconds=30).own_plans


def write_own_plans(history: Decisions, run_id: str, own_plans: Sequence[OwnPlan]) -> None:
    """What the job's master decided itself goes into the job's run as a round does, once; the oldest first.

    Raises:
        HistoryError: the run cannot be written.
    """
    if not own_plans:
        return
    written = {each.plan_id for each in history.decisions(run_id)}
    for own in own_plans:
        plan = msgspec.json.decode(own.plan_json, type=Plan)
        if plan.plan_id in written:
            continue
        is_changed = own.outcome in (ShapeOutcome.OPEN, ShapeOutcome.DONE)
        reason = plan.reason if is_changed else f"{own.outcome}: {own.reason}"
        _log(history, run_id, plan, own.unix_seconds, own.samples, is_changed=is_changed, reason=reason)


def _log(
    history: Decisions, run_id: str, plan: Plan, unix_seconds: float, samples: int, *, is_changed: bool, reason: str
) -> list[Decision]:
    predicted = plan.predicted
    stay = plan.considered[0].candidate if plan.considered else None
    decision = Decision(
        unix_seconds=unix_seconds,
        samples_trained=samples,
        policy=plan.policy,
        before=plan.before,
        after=plan.allocation,
        changed=is_changed,
        reason=reason,
        before_samples_per_second=stay.samples_per_second if stay else None,
        predicted_samples_per_second=predicted.samples_per_second if predicted else None,
        proposed=proposed(plan),
        memory=plan.memory,
        plan_id=plan.plan_id,
    )
    figures = {names.SCALING_WORKERS: float(plan.allocation.workers), names.SCALING_CHANGED: float(is_changed)}
    if predicted is not None:
        figures[names.SCALING_PREDICTED] = predicted.samples_per_second
        figures[names.SCALING_GAIN] = predicted.gain
    lines = [{"policy": plan.policy, "decision": reason, **row} for row in rows(plan)]
    return history.log_decision(run_id, decision, lines, figures)


def _fitted(platform: Platform, job_id: str) -> tuple[ThroughputModel | None, tuple[Observation, ...]]:
    """The model of all that the job has measured until now; None while that is nothing, or the job is over."""
    profile = ask_profile(platform, job_id)
    return (None, ()) if profile is None else (fitted(profile), observations_of(profile))


def fitted(profile: Profile) -> ThroughputModel | None:
    """The throughput model of what a master has measured; None where nothing usable was."""
    job = job_from_json(profile.job_json)
    try:
        return fit(shape_of(job, profile), observations_of(profile), job_id=job.metadata.name)
    except ScalingError as error:
        # The policy got the same error and its plan says so; there is no model to draw.
        log.info("model_not_fitted", job=job.metadata.name, reason=str(error))
        return None
