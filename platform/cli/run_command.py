"""`run`: a job from start to end without Airflow, by the same steps."""

from __future__ import annotations

import time
import uuid

import click

from elastrec.platform import jobs
from elastrec.platform.cli.options import echo_json, job_options, output_option, parse_interval, parse_overrides
from elastrec.platform.cli.progress import JobProgress
from elastrec.platform.specs.errors import ClusterError, JobFailedError, TransportError
from elastrec.platform.specs.loading import load_job
from elastrec.platform.specs.metrics import Phase

_POLL_SECONDS = 0.5
_SILENCE_SECONDS = 180.0


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
    Ctrl-C stops the job and removes its pods.
    """
    job = load_job(file, parse_overrides(overrides))
    interval = parse_interval(since, until, evaluate_until)
    platform = jobs.Platform.from_environment()
    job_id = jobs.job_id_for(job.metadata.name, run_key or uuid.uuid4().hex)
    with JobProgress() as progress:
        progress.say("Checking job, data and model")
        prepared = jobs.prepare(platform, job, job_id, interval)
        if prepared.adaptation:
            progress.say(f"Continues from {prepared.start_record}\n{prepared.adaptation}")
        progress.say(
            f"Job {job_id}: {prepared.training_rows:,} training rows, {prepared.evaluation_rows:,} to evaluate"
        )
        ended = False
        try:
            launched = jobs.launch(platform, prepared, jobs.warm_start(platform, prepared))
            if launched.run_url:
                progress.say(f"MLflow run: {launched.run_url}")
            _wait(platform, job_id, progress)
            progress.say("Exporting and checking the model, scoring the champion on the same rows")
            decision = jobs.evaluate_and_gate(platform, prepared, launched)
            registered = jobs.register(platform, prepared, launched, decision)
            outcome = jobs.result(platform, prepared, launched, decision, registered)
            ended = True
        finally:
            if ended:
                jobs.finish(platform, job_id)
            elif not keep:
                jobs.stop(platform, job_id, "the caller ended")
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
    click.echo(f"MLflow run {outcome.run_id}")


def _wait(platform: jobs.Platform, job_id: str, progress: JobProgress) -> None:
    heard_at = time.monotonic()
    while True:
        try:
            observation = jobs.observe(platform, job_id)
        except ClusterError as error:
            # A node agent that is being started again is no reason to stop a job that goes on training without it.
            cause = error.__cause__
            is_away = isinstance(cause, TransportError) and cause.retryable
            if not is_away or time.monotonic() - heard_at > _SILENCE_SECONDS:
                raise
            continue
        if observation.reachable:
            heard_at = time.monotonic()
        elif time.monotonic() - heard_at > _SILENCE_SECONDS:
            raise ClusterError(f"job {job_id}: its master has not answered for {_SILENCE_SECONDS:.0f} s")
        progress.show(observation.metrics)
        phase = observation.metrics.phase
        if phase is Phase.SUCCEEDED:
            return
        if phase.is_final:
            raise JobFailedError(jobs.failure_report(platform, job_id))
        time.sleep(_POLL_SECONDS)
