"""`resume`: continues a job that failed or was stopped, from its checkpoint store."""

from __future__ import annotations

import shlex

import click

from elastrec.platform import jobs
from elastrec.platform.cli.completion import all_jobs
from elastrec.platform.cli.job_course import Course, show_outcome, train_and_publish
from elastrec.platform.cli.options import NotBlank, output_option, parse_overrides
from elastrec.platform.cli.progress import JobProgress
from elastrec.platform.cli.run_claim import interrupted_by_signals


@click.command()
@click.argument("job", shell_complete=all_jobs)
@click.option(
    "--store",
    metavar="URI",
    type=NotBlank(),
    default=jobs.DEFAULT_STORE,
    show_default=True,
    help="Checkpoint store of the job, as in its job file.",
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="PATH=VALUE",
    help="Override a field that differs on this machine, for example --set spec.data.path=/mnt/clicks. Repeatable.",
)
@click.option("--keep", is_flag=True, help="Keep the pods of a failed job in the cluster, to examine them.")
@output_option
def resume(job: str, store: str, overrides: tuple[str, ...], keep: bool, output: str) -> None:
    """Continue a JOB that failed or was stopped, from its newest undamaged record.

    JOB is the id of a job, or a name, which selects the job of that name that was launched last. The job keeps its id
    and data, starts at the record's positions, and ends like a `run`, with the same output. If the job is running, the
    command waits for it.

    The parameters of the launch are read from the checkpoint store, so neither the job file nor the home folder nor
    the cluster of the launch is needed. Files with other contents are refused, and so is --set of a field on which row
    numbers depend. A number or size of pods in --set replaces the one that the job had at the record; all others stay.
    Passwords in URIs are not stored: name these URIs again with --store and --set, also while the job runs, because the
    model is exported with them at the end.
    """
    changes = parse_overrides(overrides)
    # Before a node agent is started for a job that nobody knows.
    launch = jobs.resumable(jobs.Platform.for_looking(), job, store)
    platform = jobs.Platform.from_environment()
    words = ["elastrec", "resume", launch.job_id, *(("--store", store) if store != jobs.DEFAULT_STORE else ())]
    words += [word for override in overrides for word in ("--set", override)]
    with interrupted_by_signals(), JobProgress() as progress:
        progress.say(f"To continue this job: {shlex.join(words)}")
        runs = jobs.remove_unsuccessful(platform, launch.job_id)
        if runs:
            prepared = jobs.attached(platform, launch, changes, store)
            progress.say(f"Job {launch.job_id} is running: waiting for it")
        else:
            progress.say(f"Job {launch.job_id}, launched {launch.launched}: checking job, data and model")
            prepared = jobs.prepare_again(platform, launch, changes, store)
        named = jobs.named_fields(changes)
        course = Course(
            prepared,
            f"run {shlex.join(words)}",
            keep,
            allocation=jobs.allocation_again(launch.allocation, prepared, named),
            earlier_terms=launch.earlier_terms,
            is_resumed=not runs,
            named_fields=named,
        )
        outcome = train_and_publish(platform, course, progress)
    show_outcome(outcome, output)
