"""Writes each scaling decision into the job's MLflow run: the decision, all candidates, and pictures of the reasons."""

from __future__ import annotations

import time

import structlog

from elastrec.platform.history import metric_names as names
from elastrec.platform.history.decisions import Decisions
from elastrec.platform.history.scaling_figures import Decision, proposed
from elastrec.platform.jobs.ending.tracking import tracking_answers
from elastrec.platform.jobs.scaling.masters import ask_profile
from elastrec.platform.jobs.scaling.profiles import observations_of, shape_of
from elastrec.platform.jobs.starting.launching import RUN_LABEL
from elastrec.platform.jobs.surroundings import Platform
from elastrec.platform.jobs.watching.masters import pod_of_master
from elastrec.platform.jobs.watching.past import explanation
from elastrec.platform.scaling.amounts import Change
from elastrec.platform.scaling.explain import rows
from elastrec.platform.scaling.model.throughput import ThroughputModel, fit
from elastrec.platform.scaling.types import Observation, Plan
from elastrec.platform.specs.errors import HistoryError, ScalingError
from elastrec.platform.specs.text.loading import job_from_json
from elastrec.platform.transport.messages.profile import Profile

log = structlog.get_logger(__name__)


def log_decision(platform: Platform, wanted: Plan, *, is_changed: bool, reason: str) -> str:
    """Writes one round and the job's migrations into its run; returns the run's page, empty where there is none.

    The job has been changed already: a round that cannot be written now is named in the log and not tried again.

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
    predicted = wanted.predicted
    stay = wanted.considered[0].candidate if wanted.considered else None
    decision = Decision(
        unix_seconds=time.time(),
        samples_trained=history.samples_trained(run_id),
        policy=wanted.policy,
        before=wanted.before,
        after=wanted.allocation,
        changed=is_changed,
        reason=reason,
        before_samples_per_second=stay.samples_per_second if stay else None,
        predicted_samples_per_second=predicted.samples_per_second if predicted else None,
        proposed=proposed(wanted),
        memory=wanted.memory,
    )
    figures = {names.SCALING_WORKERS: float(wanted.allocation.workers), names.SCALING_CHANGED: float(is_changed)}
    if predicted is not None:
        figures[names.SCALING_PREDICTED] = predicted.samples_per_second
        figures[names.SCALING_GAIN] = predicted.gain
    lines = [{"policy": wanted.policy, "decision": reason, **row} for row in rows(wanted)]
    decisions = history.log_decision(run_id, decision, lines, figures)
    history.log_throughput(run_id, decisions)
    history.log_memory(run_id, decisions)
    model, observations = _fitted(platform, wanted.job_id)
    history.log_model(run_id, decisions, wanted.considered, model, observations)
    if Change.SERVERS in wanted.changes:
        history.log_migrations(run_id, explanation(platform, wanted.job_id).migrations)
    return history.page(run_id)


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
