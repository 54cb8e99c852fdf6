"""`scale`: another number of workers or parameter servers for a running job."""

from __future__ import annotations

import time

import click

from elastrec.platform import jobs
from elastrec.platform.cli.commands.status import pods_of
from elastrec.platform.cli.completion import running_jobs
from elastrec.platform.cli.options import echo_json, output_option


@click.command()
@click.argument("job", shell_complete=running_jobs)
@click.option("--workers", type=click.IntRange(min=1), help="How many workers it shall have.")
@click.option("--servers", type=click.IntRange(min=1), help="How many parameter servers it shall have.")
@click.option("--worker-cores", type=float, help="Cores of each worker.")
@click.option("--server-cores", type=float, help="Cores of each parameter server.")
@click.option("--dry-run", is_flag=True, help="Only say whether the job could have this shape.")
@click.option("--may-pause", is_flag=True, help="Also when the job has to save and restore for it (servers with bsp).")
@click.option("--take-back", is_flag=True, help="Give up what was asked for last; possible until buckets change hands.")
@click.option("--wait/--no-wait", default=True, help="Wait until the job has the shape (default), or only ask for it.")
@output_option
def scale(
    job: str,
    workers: int | None,
    servers: int | None,
    worker_cores: float | None,
    server_cores: float | None,
    dry_run: bool,
    may_pause: bool,
    take_back: bool,
    wait: bool,
    output: str,
) -> None:
    """Give the running JOB another number of workers or parameter servers, or another size of pods.

    Workers come and go while the job trains. With async and ssp servers do, too: new ones copy what they will own
    while the old ones serve, and take over when little is left.
    """
    from elastrec.platform.jobs.scaling import asking
    from elastrec.platform.specs.metrics import Role
    from elastrec.platform.specs.shape import PlacesChange
    from elastrec.platform.transport.messages.observer import ShapeOutcome

    asked = [workers, servers, worker_cores, server_cores]
    if take_back and (dry_run or any(each is not None for each in asked)):
        raise click.UsageError("--take-back stands alone: it gives up what was asked for before")
    if not take_back and all(each is None for each in asked):
        raise click.UsageError("nothing is asked for; give --workers, --servers, --worker-cores or --server-cores")
    platform = jobs.Platform.from_environment(start=False)
    pods_of(platform, job)
    if take_back:
        done = asking.take_back(platform, job)
        if not done.accepted:
            raise click.ClickException(done.reason)
        click.echo(f"{job}: the last request is taken back")
        return
    change = {
        Role.WORKER: PlacesChange(count=workers, cores=worker_cores),
        Role.PARAMETER_SERVER: PlacesChange(count=servers, cores=server_cores),
    }
    answer = asking.ask_for_shape(platform, job, change, live_only=not may_pause, dry_run=dry_run)
    if answer.reason:
        raise click.ClickException(f"{job}: {answer.reason}")
    if dry_run:
        _tell(output, job, "possible", "nothing was changed", 0.0)
        return
    began = time.monotonic()
    outcome, reason = ShapeOutcome.OPEN, ""
    for request in asking.follow_request(platform, job, answer.request_id) if wait else ():
        outcome, reason = request.outcome, request.reason
    _tell(output, job, "asked" if outcome is ShapeOutcome.OPEN else str(outcome), reason, time.monotonic() - began)
    if outcome not in (ShapeOutcome.OPEN, ShapeOutcome.DONE):
        raise click.exceptions.Exit(1)


def _tell(output: str, job: str, outcome: str, reason: str, seconds: float) -> None:
    if output == "json":
        echo_json({"job_id": job, "outcome": outcome, "reason": reason, "seconds": round(seconds, 3)})
    else:
        click.echo(f"{job}: {outcome}{f' ({reason})' if reason else ''}, {seconds:.1f} s")
