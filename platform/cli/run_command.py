"""`run`: a job from start to end without Airflow, by the same steps."""

from __future__ import annotations

import shlex
import time
import uuid
from pathlib import Path

import click
import structlog

from elastrec.platform import jobs
from elastrec.platform.cli.options import echo_json, job_options, output_option, parse_interval, parse_overrides
from elastrec.platform.cli.progress import JobProgress
from elastrec.platform.cli.run_claim import RunClaim, interrupted_by_signals
from elastrec.platform.specs.errors import ClusterError, HistoryAwayError, HistoryError, JobFailedError
from elastrec.platform.specs.loading import load_job
from elastrec.platform.specs.metrics import Phase
from elastrec.platform.specs.uris import masked

log = structlog.get_logger(__name__)
_POLL_SECONDS = 0.5
_SILENCE_SECONDS = 180.0
_LOOK_FOR_TRACKING_SECONDS = 15.0


@click.command()
@output_option
@click.option("--run-key", help="Identity of this run; the same key finds a running job again instead of a second one.")
@click.option("--keep", is_flag=True, help="Leave the pods of a failed job in the cluster, to look at them.")
@job_options
def run(
    file: str,
    overrides: tuple[str, ...],
    since: str | None,
    until: str | None,
    evaluate_until: str | None,
    run_key: str | None,
    keep: bool,
    output: str,
) -> None:
    """Train, evaluate, gate and register the model of a job file.

    Progress goes to standard error. With --output json the last line of standard output is one object with run_id,
    model_uri, auc, normalized_entropy, samples_total, samples_trained, shards_total, shards_done, seconds and pods.
    Ctrl-C, SIGTERM and a closed terminal (SIGHUP) stop the job and remove its pods, unless another `run` with the same
    key goes on with it. The first line names the key. With it a job is found again whose `run` was killed, or gave up
    waiting for MLflow: what is trained is not trained again.
    """
    job = load_job(file, parse_overrides(overrides))
    interval = parse_interval(since, until, evaluate_until)
    platform = jobs.Platform.from_environment()
    key = run_key or uuid.uuid4().hex[:12]
    job_id = jobs.job_id_for(job.metadata.name, key)
    with interrupted_by_signals(), JobProgress() as progress:
        progress.say(f"To take it up again: {_command(file, overrides, since, until, evaluate_until, key)}")
        progress.say("Checking job, data and model")
        prepared = jobs.prepare(platform, job, job_id, interval)
        if prepared.adaptation:
            progress.say(f"Continues from {prepared.start_record}\n{prepared.adaptation}")
        progress.say(
            f"Job {job_id}: {prepared.training_rows:,} training rows, {prepared.evaluation_rows:,} to evaluate"
        )
        with RunClaim(Path(platform.work_uri), job_id) as claim:
            outcome = _train_and_publish(platform, prepared, claim, key, keep, progress)
    if output == "json":
        echo_json(outcome)
        return
    click.echo(
        f"AUC {outcome.auc:.5f}   normalised entropy {outcome.normalized_entropy:.5f}   in {outcome.seconds:.1f} s"
    )
    samples = f"samples trained {outcome.samples_trained:,} of {outcome.samples_total:,}"
    click.echo(f"{samples}, shards {outcome.shards_done}/{outcome.shards_total}")
    champion = " (champion)" if outcome.is_champion else ""
    click.echo(f"model {outcome.registered_model} version {outcome.version}{champion}: {outcome.gate}")
    click.echo(f"MLflow run {outcome.run_url or outcome.run_id}")


def _command(
    file: str,
    overrides: tuple[str, ...],
    since: str | None,
    until: str | None,
    evaluate_until: str | None,
    key: str,
) -> str:
    """The command line that finds the same job again."""
    words = ["elastrec", "run", file]
    for option, value in (("--from", since), ("--until", until), ("--evaluate-until", evaluate_until)):
        words += [option, value] if value else []
    for override in overrides:
        words += ["--set", override]
    return shlex.join([*words, "--run-key", key])


def _train_and_publish(
    platform: jobs.Platform, prepared: jobs.Prepared, claim: RunClaim, key: str, keep: bool, progress: JobProgress
) -> jobs.Result:
    job_id = prepared.job_id
    is_kept = keep
    ended = False
    try:
        launched = _trained(platform, prepared, claim.owner, progress)
        progress.say("Exporting and checking the model, scoring the champion on the same rows")
        decision = jobs.evaluate_and_gate(platform, prepared, launched, progress.say)
        registered = jobs.with_tracking(
            platform, prepared, lambda: jobs.register(platform, prepared, launched, decision), progress.say
        )
        launched = jobs.with_run(platform, prepared, launched)
        outcome = jobs.result(platform, prepared, launched, decision, registered)
        ended = True
    except HistoryAwayError as error:
        # Its master waits for a while, then leaves everything in the store: either is found again by the key.
        is_kept = True
        raise HistoryAwayError(f"{error}; when MLflow is back, run the same command with --run-key {key}") from error
    finally:
        if ended:
            jobs.finish_job(platform, prepared)
            jobs.forget(platform, prepared)
        elif not is_kept:
            _stop(platform, job_id, claim, progress)
    return outcome


def _stop(platform: jobs.Platform, job_id: str, claim: RunClaim, progress: JobProgress) -> None:
    if not claim.acquire():
        progress.say(f"Job {job_id} is left to the other `elastrec run` with this key")
    elif not jobs.stop(platform, job_id, "the caller ended", owner=claim.owner) and platform.cluster.list(job_id):
        progress.say(f"Job {job_id} goes on: somebody else has taken it over")


def _trained(platform: jobs.Platform, prepared: jobs.Prepared, owner: str, progress: JobProgress) -> jobs.Launched:
    """Launches the job, or finds the one that runs or has run under this id, and waits for its end.

    Args:
        owner: takes the job over; empty: it is left to whom it belongs.
    """
    allocation = jobs.warm_start(platform, prepared)
    if jobs.is_trained(platform, prepared):
        progress.say(f"Job {prepared.job_id} is trained already; going on with what it has left")
        return jobs.Launched(job_id=prepared.job_id, master_pod="", run_id="", run_url="", allocation=allocation)
    launched = jobs.launch(platform, prepared, allocation, owner)
    if launched.run_id:
        _say_run(launched, progress)
    else:
        server = masked(platform.tracking_uri)
        progress.say(f"MLflow at {server} does not answer: training without; its figures come later")
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
            # A node agent that is being started again is no reason to stop a job that goes on training without it.
            if not error.retryable or time.monotonic() - heard_at > _SILENCE_SECONDS:
                raise
            continue
        if observation.reachable:
            heard_at = time.monotonic()
        elif time.monotonic() - heard_at > _SILENCE_SECONDS:
            raise ClusterError(f"job {job_id}: its master has not answered for {_SILENCE_SECONDS:.0f} s")
        progress.show(observation.metrics)
        phase = observation.metrics.phase
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
        # Training goes on either way, and the end asks again.
        log.warning("run_not_made", job_id=prepared.job_id, error=str(error))
        return launched
    _say_run(launched, progress)
    return launched
