"""Used by `run` and `resume`: launches a prepared job, shows its progress, and evaluates, registers or stops it."""

from __future__ import annotations

import time
from dataclasses import dataclass

import click
import structlog

from elastrec.platform import jobs
from elastrec.platform.cli.options import echo_json
from elastrec.platform.cli.progress import JobProgress
from elastrec.platform.cli.run_claim import RunClaim
from elastrec.platform.jobs.surroundings import work_folder
from elastrec.platform.specs.errors import ClusterError, HistoryAwayError, HistoryError, JobFailedError, OtherJobError
from elastrec.platform.specs.metrics import Phase
from elastrec.platform.specs.text.uris import masked

log = structlog.get_logger(__name__)
_POLL_SECONDS = 0.5
_SILENCE_SECONDS = 180.0
_LOOK_FOR_TRACKING_SECONDS = 15.0


@dataclass(frozen=True)
class Course:
    """A job to be trained and published.

    Attributes:
        again: how to continue the job later, as text for the user.
        keep: whether the pods of a failed job stay in the cluster.
        allocation: start-up sizes; None: chosen as for any job.
        earlier_terms, named_fields: as in `jobs.launch`.
        is_resumed: whether it was launched before and does not run now.
    """

    prepared: jobs.Prepared
    again: str
    keep: bool
    allocation: jobs.Allocation | None = None
    earlier_terms: int | None = None
    is_resumed: bool = False
    named_fields: frozenset[str] = frozenset()


def train_and_publish(platform: jobs.Platform, course: Course, progress: JobProgress) -> jobs.Result:
    """Trains, evaluates and registers; if this fails, the job is stopped, unless another process has its claim.

    Raises:
        JobFailedError: the job failed; the message has the last log lines of its pods.
        HistoryAwayError: MLflow was not reachable; the job is left unchanged.
        ElastrecError: the job could not be launched, observed or published.
    """
    with RunClaim(work_folder(), course.prepared.job_id) as claim:
        return _train_and_publish(platform, course, claim, progress)


def show_outcome(outcome: jobs.Result, output: str) -> None:
    """Prints the outcome on standard output."""
    if output == "json":
        echo_json(outcome)
        return
    quality = [("AUC", outcome.auc), ("normalised entropy", outcome.normalized_entropy)]
    if outcome.auc is None:
        quality.append(("log loss", outcome.log_loss))
    shown = [f"{name} {value:.5f}" for name, value in quality if value is not None]
    click.echo("   ".join([*shown, f"in {outcome.seconds:.1f} s"]))
    samples = f"samples trained {outcome.samples_trained:,} of {outcome.samples_total:,}"
    click.echo(f"{samples}, shards {outcome.shards_done}/{outcome.shards_total}")
    champion = " (champion)" if outcome.is_champion else ""
    click.echo(f"model {outcome.registered_model} version {outcome.version}{champion}: {outcome.gate}")
    click.echo(f"MLflow run {outcome.run_url or outcome.run_id}")


def _train_and_publish(platform: jobs.Platform, course: Course, claim: RunClaim, progress: JobProgress) -> jobs.Result:
    prepared = course.prepared
    is_kept = course.keep
    ended = False
    try:
        launched = _trained(platform, course, claim.owner, progress)
        metrics = jobs.result_of(platform, prepared)
        progress.say("Exporting and checking the model, scoring the champion on the same rows")
        decision = jobs.evaluate_and_gate(platform, prepared, launched, progress.say)
        registered = jobs.with_tracking(
            platform, prepared, lambda: jobs.register(platform, prepared, launched, decision), progress.say
        )
        launched = jobs.with_run(platform, prepared, launched)
        outcome = jobs.result(prepared, launched, metrics, decision, registered)
        ended = True
    except HistoryAwayError as error:
        # The master waits for a while, then writes everything to the store. A later call with the same key finds
        # either.
        is_kept = True
        raise HistoryAwayError(f"{error}; when MLflow is back, {course.again}") from error
    except OtherJobError:
        is_kept = True
        raise
    finally:
        if ended:
            _finish(platform, course, progress)
        elif not is_kept:
            _stop(platform, prepared.job_id, claim, progress)
    return outcome


def _finish(platform: jobs.Platform, course: Course, progress: JobProgress) -> None:
    prepared = course.prepared
    try:
        jobs.finish_job(platform, prepared)
    except HistoryAwayError as error:
        progress.say(str(error))
        try:
            jobs.with_tracking(platform, prepared, lambda: jobs.finish_job(platform, prepared), progress.say)
        except HistoryAwayError as still:
            raise HistoryAwayError(f"{still}; when MLflow is back, {course.again}") from still
    jobs.forget(platform, prepared)


def _stop(platform: jobs.Platform, job_id: str, claim: RunClaim, progress: JobProgress) -> None:
    if not claim.acquire():
        progress.say(f"Job {job_id} continues: another `elastrec run` with the same key waits for it")
        return
    progress.say(f"Ending job {job_id} and removing its pods")
    try:
        is_stopped = jobs.stop(platform, job_id, "the caller ended", owner=claim.owner)
    except KeyboardInterrupt:
        # Of an impatient user: the job may not even have got the request.
        progress.say(f"Job {job_id} may continue, because its end was interrupted; to stop it: elastrec stop {job_id}")
        raise
    if not is_stopped and platform.launcher.pods(job_id):
        progress.say(f"Job {job_id} continues: another owner has taken it over")


def _trained(platform: jobs.Platform, course: Course, owner: str, progress: JobProgress) -> jobs.Launched:
    """Launches the job, or attaches to the job that runs or has run under this id, and waits for its end.

    Args:
        owner: becomes the owner of the job; empty: the owner stays.
    """
    prepared = course.prepared
    allocation = course.allocation or jobs.warm_start(platform, prepared, course.named_fields)
    if jobs.is_trained(platform, prepared):
        if not course.is_resumed:
            jobs.refuse_other_training(prepared)
        progress.say(f"Job {prepared.job_id} is already trained; continuing with its results")
        return jobs.Launched(job_id=prepared.job_id, master_pod="", run_id="", run_url="", allocation=allocation)
    launched = jobs.launch(platform, prepared, allocation, owner, course.earlier_terms, course.named_fields)
    if launched.changed_since:
        progress.say(launched.changed_since)
    if launched.goes_on_from:
        progress.say(f"Continues from {launched.goes_on_words}")
        if launched.adaptation:
            progress.say(launched.adaptation)
    elif course.is_resumed:
        start = f" from {prepared.start_record}" if prepared.start_record else ""
        progress.say(f"There is no complete record of it: it starts{start} at its first row")
    if launched.run_id:
        _say_run(launched, progress)
    else:
        server = masked(platform.tracking_uri)
        progress.say(f"MLflow at {server} does not answer: training without a run; figures will be sent later")
    return _wait(platform, prepared, launched, progress)


def _say_run(launched: jobs.Launched, progress: JobProgress) -> None:
    if launched.run_url:
        progress.say(f"MLflow run: {launched.run_url}")


def _wait(
    platform: jobs.Platform, prepared: jobs.Prepared, launched: jobs.Launched, progress: JobProgress
) -> jobs.Launched:
    job_id = prepared.job_id
    heard_at = looked_at = time.monotonic()
    while True:
        if not launched.run_id and time.monotonic() - looked_at > _LOOK_FOR_TRACKING_SECONDS:
            looked_at = time.monotonic()
            launched = _with_run_if_back(platform, prepared, launched, progress)
        try:
            observation = jobs.observe(platform, job_id)
        except ClusterError as error:
            # If the node agent is restarting, the job continues training, so it is not stopped.
            if not error.retryable or time.monotonic() - heard_at > _SILENCE_SECONDS:
                raise
            continue
        if observation.reachable:
            heard_at = time.monotonic()
        elif time.monotonic() - heard_at > _SILENCE_SECONDS:
            raise ClusterError(f"job {job_id}: its master has not answered for {_SILENCE_SECONDS:.0f} s")
        metrics = jobs.result_of(platform, prepared) if observation.has_ended else observation.metrics
        progress.show(metrics)
        phase = metrics.phase
        if phase is Phase.SUCCEEDED:
            return launched
        if phase.is_final:
            raise JobFailedError(jobs.failure_report(platform, job_id))
        time.sleep(_POLL_SECONDS)


def _with_run_if_back(
    platform: jobs.Platform, prepared: jobs.Prepared, launched: jobs.Launched, progress: JobProgress
) -> jobs.Launched:
    if not jobs.tracking_answers(platform):
        return launched
    try:
        launched = jobs.with_run(platform, prepared, launched)
    except HistoryError as error:
        # Training continues either way, and MLflow is tried again at the end.
        log.warning("run_not_made", job_id=prepared.job_id, error=str(error))
        return launched
    _say_run(launched, progress)
    return launched
