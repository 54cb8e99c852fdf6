"""`run`: runs a job from start to end without Airflow, in the same steps."""

from __future__ import annotations

import shlex
import uuid

import click

from elastrec.platform import jobs
from elastrec.platform.cli.job_course import Course, show_outcome, train_and_publish
from elastrec.platform.cli.options import Days, job_options, output_option, parse_interval, parse_overrides
from elastrec.platform.cli.progress import JobProgress
from elastrec.platform.cli.run_claim import interrupted_by_signals
from elastrec.platform.specs.text.loading import load_job


@click.command()
@output_option
@click.option(
    "--run-key",
    help="Identity of this run; a call with the same key attaches to the running job instead of starting a second one.",
)
@click.option("--keep", is_flag=True, help="Keep the pods of a failed job in the cluster, to examine them.")
@job_options
def run(
    file: str,
    overrides: tuple[str, ...],
    days: Days,
    run_key: str | None,
    keep: bool,
    output: str,
) -> None:
    """Train, evaluate, gate and register the model of a job file.

    Progress goes to standard error. With --output json the last line of standard output is one object with run_id,
    model_uri, auc, normalized_entropy (both null if all evaluation rows have the same label), log_loss, samples_total,
    samples_trained, shards_total, shards_done, seconds and pods.
    Ctrl-C, SIGTERM and a closed terminal (SIGHUP) stop the job and remove its pods, unless another `run` with the same
    key is waiting for it. The first line of the output contains the key. If `run` was killed, or gave up waiting for
    MLflow, call it again with this key: it attaches to the job, on the days on which that was begun, and nothing is
    trained twice.

    A job that has failed or was stopped continues from its newest record, with the pods that it had there. A number or
    size of pods in --set replaces the one that the job had; `elastrec resume` without --set keeps them all.

    A running job keeps its settings: a number or size of pods, a batch size or a learning rate in --set that it does
    not have is refused; `elastrec scale` and `elastrec order` change it. The command of its launch attaches also if the
    job was changed since.
    """
    changes = parse_overrides(overrides)
    job = load_job(file, changes)
    interval = parse_interval(days)
    platform = jobs.Platform.from_environment()
    key = run_key or uuid.uuid4().hex[:12]
    job_id = jobs.job_id_for(job.metadata.name, key)
    with interrupted_by_signals(), JobProgress() as progress:
        progress.say(f"To continue this job: {_command(file, overrides, days, key)}")
        if run_key and interval is None and (interval := jobs.days_to_continue(platform, job, job_id)) is not None:
            progress.say(f"Job {job_id} was begun on the days from {interval.in_words()}: continuing with these")
        progress.say("Checking job, data and model")
        prepared = jobs.prepare(platform, job, job_id, interval)
        if prepared.adaptation:
            progress.say(f"Continues from {prepared.start_record}\n{prepared.adaptation}")
        if prepared.start_note:
            progress.say(f"It {prepared.start_note}")
        if prepared.untrained:
            progress.say(f"Attention: {prepared.untrained}")
        progress.say(
            f"Job {job_id}: {prepared.training_rows:,} training rows, {prepared.evaluation_rows:,} to evaluate"
        )
        again = f"run the same command with --run-key {key}"
        course = Course(prepared, again, keep, named_fields=jobs.named_fields(changes))
        outcome = train_and_publish(platform, course, progress)
    show_outcome(outcome, output)


def _command(file: str, overrides: tuple[str, ...], days: Days, key: str) -> str:
    """The command line that finds the same job again."""
    words = ["elastrec", "run", file]
    for option, value in days.options:
        words += [option, value]
    for override in overrides:
        words += ["--set", override]
    return shlex.join([*words, "--run-key", key])
