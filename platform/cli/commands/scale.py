"""`scale`: another number or size of the pods of a running job, or other pods in the place of some."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import click

from elastrec.platform import jobs
from elastrec.platform.cli.commands.status import pods_of
from elastrec.platform.cli.completion import running_jobs
from elastrec.platform.cli.options import echo_json, output_option

Amount = TypeVar("Amount", int, float)


@click.command()
@click.argument("job", shell_complete=running_jobs)
@click.option("--workers", type=click.IntRange(min=1), help="How many workers it shall have.")
@click.option("--servers", type=click.IntRange(min=1), help="How many parameter servers it shall have.")
@click.option("--worker-cores", type=float, help="Cores of each worker.")
@click.option("--server-cores", type=float, help="Cores of each parameter server.")
@click.option("--worker-memory", metavar="AMOUNT", help="Memory of each worker, for example 2Gi.")
@click.option("--server-memory", metavar="AMOUNT", help="Memory of each parameter server.")
@click.option("--move", "moved", metavar="POD", multiple=True, help="Put another pod in the place of POD. Repeatable.")
@click.option("--other-node", is_flag=True, help="Moved pods leave their nodes, because these are slow or bad.")
@click.option("--dry-run", is_flag=True, help="Only say whether and how the job could have this shape.")
@click.option("--timeout", metavar="DURATION", default="1h", show_default=True, help="Until it is given up.")
@click.option("--take-back", is_flag=True, help="Give up what was asked for last; possible until buckets change hands.")
@click.option("--wait/--no-wait", default=True, help="Wait until the job has the shape (default), or only ask for it.")
@output_option
def scale(
    job: str,
    workers: int | None,
    servers: int | None,
    worker_cores: float | None,
    server_cores: float | None,
    worker_memory: str | None,
    server_memory: str | None,
    moved: tuple[str, ...],
    other_node: bool,
    dry_run: bool,
    timeout: str,
    take_back: bool,
    wait: bool,
    output: str,
) -> None:
    """Give the running JOB another number of workers or parameter servers, another size of pods, or move pods.

    Workers come and go while the job trains. So do servers: new ones copy what they will own while the old ones serve,
    and take over when little is left. A pod is resized in place where its node has the room; else, as with --move,
    another pod starts first and takes over. Until then --take-back leaves everything as it was.
    """
    from elastrec.platform.jobs.scaling import asking
    from elastrec.platform.specs.metrics import Role
    from elastrec.platform.specs.shape import PlacesChange
    from elastrec.platform.specs.text.quantities import parse_bytes, parse_seconds
    from elastrec.platform.transport.messages.observer import PodMove, ShapeOutcome

    change = {
        Role.WORKER: PlacesChange(
            count=workers, cores=worker_cores, memory_bytes=_amount("--worker-memory", worker_memory, parse_bytes)
        ),
        Role.PARAMETER_SERVER: PlacesChange(
            count=servers, cores=server_cores, memory_bytes=_amount("--server-memory", server_memory, parse_bytes)
        ),
    }
    timeout_seconds = _amount("--timeout", timeout, parse_seconds)
    is_asked = bool(moved) or any(places != PlacesChange() for places in change.values())
    if take_back and (dry_run or is_asked):
        raise click.UsageError("--take-back stands alone: it gives up what was asked for before")
    if other_node and not moved:
        raise click.UsageError("--other-node says how pods are moved; give --move")
    if not take_back and not is_asked:
        raise click.UsageError(
            "nothing is asked for; give --workers, --servers, --worker-cores, --server-cores, --worker-memory, "
            "--server-memory or --move"
        )
    platform = jobs.Platform.from_environment(start=False)
    pods_of(platform, job)
    if take_back:
        done = asking.take_back(platform, job)
        if not done.accepted:
            raise click.ClickException(done.reason)
        click.echo(f"{job}: the last request is taken back")
        return
    answer = asking.ask_for_shape(
        platform,
        job,
        change,
        moves=[PodMove(pod=pod, leaves_node=other_node) for pod in moved],
        timeout_seconds=timeout_seconds or 0.0,
        dry_run=dry_run,
    )
    if answer.reason:
        raise click.ClickException(f"{job}: {answer.reason}")
    if dry_run:
        _report(output, job, "possible", "nothing was changed", 0.0, answer.prospects)
        return
    began = time.monotonic()
    outcome, reason = ShapeOutcome.OPEN, ""
    for request in asking.follow_request(platform, job, answer.request_id) if wait else ():
        outcome, reason = request.outcome, request.reason
    _report(output, job, "asked" if outcome is ShapeOutcome.OPEN else str(outcome), reason, time.monotonic() - began)
    if outcome not in (ShapeOutcome.OPEN, ShapeOutcome.DONE):
        raise click.exceptions.Exit(1)


def _amount(option: str, text: str | None, parse: Callable[[str], Amount]) -> Amount | None:
    from elastrec.platform.specs.text.quantities import parsed

    return None if text is None else parsed(option, text, parse, "the command line")


def _report(
    output: str, job: str, outcome: str, reason: str, seconds: float, prospects: list[str] | None = None
) -> None:
    if output == "json":
        result = {"job_id": job, "outcome": outcome, "reason": reason, "seconds": round(seconds, 3)}
        echo_json(result if prospects is None else result | {"prospects": prospects})
    else:
        click.echo(f"{job}: {outcome}{f' ({reason})' if reason else ''}, {seconds:.1f} s")
        for line in prospects or ():
            click.echo(f"  {line}")
