"""`scale`: changes the number or the size of a running job's pods, or replaces pods."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import click

from elastrec.platform import jobs
from elastrec.platform.cli.commands.status import pods_of
from elastrec.platform.cli.completion import running_jobs
from elastrec.platform.cli.options import echo_json, output_option
from elastrec.platform.specs.text import plain_words

Amount = TypeVar("Amount", int, float)
_ASKED, _GONE = "asked", "gone"


@click.command()
@click.argument("job", shell_complete=running_jobs)
@click.option("--workers", type=click.IntRange(min=1), help="New number of workers.")
@click.option("--servers", type=click.IntRange(min=1), help="New number of parameter servers.")
@click.option("--worker-cores", metavar="CORES", help="Cores of each worker, for example 0.5 or 500m.")
@click.option("--server-cores", metavar="CORES", help="Cores of each parameter server.")
@click.option("--worker-memory", metavar="AMOUNT", help="Memory of each worker, for example 2Gi.")
@click.option("--server-memory", metavar="AMOUNT", help="Memory of each parameter server.")
@click.option("--move", "moved", metavar="POD", multiple=True, help="Replace POD with a new pod. Repeatable.")
@click.option(
    "--other-node",
    is_flag=True,
    help="With --move: start the new pods on other nodes, for example because a node is slow.",
)
@click.option("--dry-run", is_flag=True, help="Only show whether and how the job could be changed to this shape.")
@click.option(
    "--timeout", metavar="DURATION", default="1h", show_default=True, help="Time after which the request is given up."
)
@click.option("--cancel", is_flag=True, help="Cancel the last request; possible until the hand-over of rows begins.")
@click.option(
    "--wait/--no-wait", default=True, help="Wait until the job has the shape (default), or only make the request."
)
@output_option
def scale(
    job: str,
    workers: int | None,
    servers: int | None,
    worker_cores: str | None,
    server_cores: str | None,
    worker_memory: str | None,
    server_memory: str | None,
    moved: tuple[str, ...],
    other_node: bool,
    dry_run: bool,
    timeout: str,
    cancel: bool,
    wait: bool,
    output: str,
) -> None:
    """Change the number or the size of a running JOB's pods, or move pods.

    Workers join and leave while the job trains. Servers do, too: new servers copy their rows while the old ones serve,
    and take over when little is left to copy. A pod is resized in place if its node has room; otherwise, and with
    --move, a new pod starts first and takes over. Until then, --cancel undoes the change.
    """
    from elastrec.platform.jobs.scaling import asking
    from elastrec.platform.specs.metrics import Role
    from elastrec.platform.specs.shape import PlacesChange
    from elastrec.platform.specs.text.quantities import parse_bytes, parse_cores
    from elastrec.platform.transport.messages.observer import PodMove, ShapeOutcome

    change = {
        Role.WORKER: PlacesChange(
            count=workers,
            cores=_amount("--worker-cores", worker_cores, parse_cores),
            memory_bytes=_amount("--worker-memory", worker_memory, parse_bytes),
        ),
        Role.PARAMETER_SERVER: PlacesChange(
            count=servers,
            cores=_amount("--server-cores", server_cores, parse_cores),
            memory_bytes=_amount("--server-memory", server_memory, parse_bytes),
        ),
    }
    timeout_seconds = _amount("--timeout", timeout, _some_seconds)
    is_asked = bool(moved) or any(places != PlacesChange() for places in change.values())
    if cancel and (dry_run or is_asked):
        raise click.UsageError("--cancel is for an earlier request and allows no other option")
    if other_node and not moved:
        raise click.UsageError("--other-node needs --move")
    if not cancel and not is_asked:
        raise click.UsageError(
            "no change is requested; give --workers, --servers, --worker-cores, --server-cores, --worker-memory, "
            "--server-memory or --move"
        )
    platform = jobs.Platform.from_environment(start=False)
    pods_of(platform, job)
    if cancel:
        last = asking.last_request(platform, job)
        if last is None:
            raise click.ClickException(f"job {job} was not asked for another shape")
        done = asking.cancel_request(platform, job, last.request_id)
        if not done.accepted:
            raise click.ClickException(done.reason)
        if output == "json":
            cancelled = {"request_id": last.request_id, "wanted": last.wanted, "asked_by": last.asked_by}
            ended = {"outcome": str(ShapeOutcome.CANCELLED), "reason": "", "seconds": 0.0}
            echo_json({"job_id": job, **ended, **cancelled})
        else:
            by = f" (requested by {plain_words.requester(last.asked_by)})" if last.asked_by else ""
            click.echo(f"{job}: cancelled: {last.wanted}{by}")
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
    outcome, reason = _ASKED, ""
    if wait:
        outcome, reason = _GONE, "the job has ended, or its master has forgotten the request"
        for request in asking.follow_request(platform, job, answer.request_id):
            if request.outcome is not ShapeOutcome.OPEN:
                outcome, reason = str(request.outcome), request.reason
    _report(output, job, outcome, reason, time.monotonic() - began)
    if outcome not in (_ASKED, ShapeOutcome.DONE):
        raise click.exceptions.Exit(1)


def _amount(option: str, text: str | None, parse: Callable[[str], Amount]) -> Amount | None:
    from elastrec.platform.specs.text.quantities import parsed

    return None if text is None else parsed(option, text, parse, "the command line")


def _some_seconds(text: str) -> float:
    from elastrec.platform.specs.text.quantities import parse_seconds
    from elastrec.platform.transport.messages.observer import LONGEST_REQUEST_TIMEOUT_SECONDS

    seconds = parse_seconds(text)
    if not 0 < seconds <= LONGEST_REQUEST_TIMEOUT_SECONDS:
        raise ValueError(f"a duration above 0, at most {LONGEST_REQUEST_TIMEOUT_SECONDS / 3600:g}h, such as 5m or 1h")
    return seconds


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
