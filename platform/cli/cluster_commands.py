"""`status`, `logs`, `stop` and `agent`: look at what runs and end it."""

from __future__ import annotations

import sys
import time

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from elastrec.platform import jobs
from elastrec.platform.cli.options import echo_json, output_option
from elastrec.platform.clusters.protocol import PodStatus
from elastrec.platform.specs.errors import ClusterError, FieldProblem, SpecError
from elastrec.platform.specs.quantities import format_bytes


def _age(pod: PodStatus) -> str:
    seconds = int(max(0.0, (pod.finished_unix_seconds or time.time()) - pod.created_unix_seconds))
    if seconds < 120:
        return f"{seconds}s"
    return f"{seconds // 60}m" if seconds < 7200 else f"{seconds // 3600}h"


def _jobs_table(platform: jobs.Platform) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("JOB", "PHASE", "SHARDS", "SAMPLES", "SAMPLES/S", "LOSS", "AUC", "WORKERS", "SERVERS", "AGE"):
        table.add_column(column, no_wrap=True)
    ages = {pod.job: _age(pod) for pod in platform.cluster.list() if pod.name.endswith("-master")}
    for observation in jobs.jobs(platform):
        metrics = observation.metrics
        up = {"worker": 0, "parameter-server": 0}
        for pod in metrics.pods:
            if pod.role in up and pod.state.lower() in ("ready", "running"):
                up[pod.role] += 1
        table.add_row(
            metrics.job,
            metrics.phase.value,
            f"{metrics.shards_done}/{metrics.shards_total}",
            f"{metrics.samples_trained:,}",
            f"{metrics.samples_per_second:,.0f}",
            "-" if metrics.loss is None else f"{metrics.loss:.4f}",
            "-" if metrics.auc is None else f"{metrics.auc:.4f}",
            str(up["worker"]),
            str(up["parameter-server"]),
            ages.get(metrics.job, "-"),
        )
    return table


def _pods_table(pods: list[PodStatus]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("POD", "ROLE", "STATUS", "RESTARTS", "CORES", "MEMORY", "USED", "NODE", "AGE"):
        table.add_column(column, no_wrap=True)
    for pod in pods:
        state = f"{pod.phase.value} ({pod.reason})" if pod.reason else pod.phase.value
        table.add_row(
            pod.name,
            pod.role.value,
            state,
            str(pod.restarts),
            f"{pod.size.cores:g}",
            format_bytes(pod.size.memory_bytes),
            f"{pod.memory_bytes / 2**20:.0f}Mi",
            pod.node,
            _age(pod),
        )
    return table


@click.command()
@click.argument("job", required=False)
@click.option("--watch", "-w", is_flag=True, help="Refresh until Ctrl-C.")
@output_option
def status(job: str | None, watch: bool, output: str) -> None:
    """Show the jobs of the cluster, or the pods of one JOB."""
    platform = jobs.Platform.from_environment()

    def table() -> Table:
        return _pods_table(_pods_of(platform, job)) if job else _jobs_table(platform)

    if output == "json":
        if job:
            pods = _pods_of(platform, job)
            observation = jobs.observe(platform, job)
            echo_json(
                {
                    "metrics": observation.metrics.model_dump(mode="json"),
                    "failure": observation.failure,
                    "pods": pods,
                }
            )
        else:
            echo_json([observation.metrics.model_dump(mode="json") for observation in jobs.jobs(platform)])
        return
    # A pipe has no width of its own: a script must get whole names.
    console = Console(width=None if sys.stdout.isatty() else 240)
    if not watch:
        console.print(table(), soft_wrap=True)
        return
    with Live(table(), console=console, refresh_per_second=2) as live:
        while True:
            time.sleep(1.0)
            live.update(table())


def _pods_of(platform: jobs.Platform, job: str) -> list[PodStatus]:
    pods = platform.cluster.list(job)
    if not pods:
        known = sorted({pod.job for pod in platform.cluster.list()})
        allowed = ", ".join(known) if known else "none: the cluster has no jobs"
        raise SpecError([FieldProblem("JOB", repr(job), allowed)], "the command line")
    return pods


@click.command()
@click.argument("pod")
@click.option("--follow", "-f", is_flag=True, help="Go on until the pod ends.")
@click.option("--tail", type=click.IntRange(min=1), help="Only the last lines.")
def logs(pod: str, follow: bool, tail: int | None) -> None:
    """Print the log of a POD; the name of a job stands for its master."""
    platform = jobs.Platform.from_environment()
    name = pod if platform.cluster.get(pod) else f"{pod}-master"
    if platform.cluster.get(name) is None:
        known = ", ".join(status.name for status in platform.cluster.list()) or "none: the cluster has no pods"
        raise SpecError([FieldProblem("POD", repr(pod), known)], "the command line")
    for line in platform.cluster.logs(name, tail_lines=tail, follow=follow):
        click.echo(line)


@click.command()
@click.argument("job")
@output_option
def stop(job: str, output: str) -> None:
    """Stop a JOB and remove its pods."""
    platform = jobs.Platform.from_environment()
    pods = [pod.name for pod in _pods_of(platform, job)]
    if not jobs.stop(platform, job, "stopped from the command line"):
        raise ClusterError(f"job {job}: was not stopped")
    if output == "json":
        echo_json({"job": job, "stopped": True, "pods": pods})
    else:
        click.echo(f"{job}: stopped, {len(pods)} pods removed")


@click.group()
def agent() -> None:
    """The local cluster: one node agent that runs pods on this machine."""


@agent.command("start")
@click.option(
    "--cores", type=click.FloatRange(min=0, min_open=True), help="Capacity to offer; default: what the machine has."
)
@click.option("--memory", help="Capacity to offer, for example 8Gi; default: what the machine has.")
def agent_start(cores: float | None, memory: str | None) -> None:
    """Start the node agent in the background; does nothing when it runs."""
    from elastrec.platform.clusters.local import start_agent
    from elastrec.platform.specs.quantities import parse_bytes

    try:
        memory_bytes = None if memory is None else parse_bytes(memory)
        if memory_bytes == 0:
            raise ValueError("more than 0, for example 8Gi")
    except ValueError as error:
        raise SpecError([FieldProblem("--memory", repr(memory), str(error))], "the command line") from None
    state = jobs.home_folder() / "agent"
    start_agent(state, cores=cores, memory_bytes=memory_bytes, tls_folder=jobs.tls_folder())
    _show_capacity()


@agent.command("stop")
def agent_stop() -> None:
    """Stop the node agent and every pod it runs."""
    from elastrec.platform.clusters.local import stop_agent

    stop_agent(jobs.home_folder() / "agent", tls_folder=jobs.tls_folder())
    click.echo("stopped")


@agent.command("capacity")
def agent_capacity() -> None:
    """Show what the cluster has and what is free."""
    _show_capacity()


def _show_capacity() -> None:
    capacity = jobs.Platform.from_environment(start=False).cluster.capacity()
    for name, size in (("total", capacity.total), ("free", capacity.free)):
        click.echo(f"{name}: {size.cores:g} cores, {size.memory_bytes / 2**30:.1f}Gi memory")
    if not capacity.limits_enforced:
        click.echo("limits are not enforced: cgroups cannot be written; pods only get thread counts")
