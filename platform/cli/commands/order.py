"""`order`: changes the batch size or the learning rates of a running job's workers, or makes workers idle."""

from __future__ import annotations

import click

from elastrec.platform import jobs
from elastrec.platform.cli.commands.status import pods_of
from elastrec.platform.cli.completion import running_jobs
from elastrec.platform.cli.options import echo_json, output_option


@click.command()
@click.argument("job", shell_complete=running_jobs)
@click.option(
    "--worker", "workers", metavar="POD", multiple=True, help="Order only this worker. Repeatable. Default: all."
)
@click.option("--batch-size", type=click.IntRange(min=1), help="Rows per minibatch.")
@click.option("--learning-rate-scale", type=float, metavar="FACTOR", help="Factor of all learning rates.")
@click.option(
    "--idle/--active",
    "is_idle",
    default=None,
    help="Whether the worker stops training and leaves its shards to others, or trains again.",
)
@click.option("--reset", is_flag=True, help="Reset everything that is not named here to the job file.")
@click.option("--dry-run", is_flag=True, help="Only show the resulting orders.")
@output_option
def order(
    job: str,
    workers: tuple[str, ...],
    batch_size: int | None,
    learning_rate_scale: float | None,
    is_idle: bool | None,
    reset: bool,
    dry_run: bool,
    output: str,
) -> None:
    """Override the job file for workers of a running JOB.

    Without options, the present orders are shown. Earlier orders stay in effect unless the new order changes them. An
    order with --worker takes effect with that worker's next minibatch. An order for all workers takes effect at the
    same step for all: they pause for a record and continue with the order, and workers that join later get it, too.
    With bsp the size of a step does not change, and batch sizes only determine how its rows are divided among the
    workers.
    """
    from elastrec.platform.jobs.ordering import order_workers
    from elastrec.platform.transport.messages.observer import WorkerOrder

    wanted = WorkerOrder(batch_size=batch_size, learning_rate_scale=learning_rate_scale, is_idle=is_idle, resets=reset)
    platform = jobs.Platform.from_environment(start=False)
    pods_of(platform, job)
    is_order = wanted != WorkerOrder()
    answer = order_workers(platform, job, wanted, pods=workers, dry_run=dry_run or not is_order)
    if answer.reason:
        raise click.ClickException(f"{job}: {answer.reason}")
    outcome = "nothing was ordered" if dry_run or not is_order else "ordered"
    if output == "json":
        found = [
            {
                "pod": each.pod,
                "batch_size": each.batch_size,
                "learning_rate_scale": each.learning_rate_scale,
                "is_idle": each.is_idle,
            }
            for each in answer.workers
        ]
        echo_json({"job_id": job, "outcome": outcome, "workers": found})
        return
    click.echo(f"{job}: {outcome}")
    for each in answer.workers:
        size = "the job file's" if each.batch_size is None else each.batch_size
        state = "idle" if each.is_idle else "active"
        click.echo(f"  {each.pod}: {state}, batch size {size}, learning rates × {each.learning_rate_scale:g}")
