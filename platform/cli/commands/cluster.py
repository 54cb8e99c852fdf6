"""`logs`, `stop` and `agent`: logs of pods, stopping a job, and the local cluster."""

from __future__ import annotations

import click

from elastrec.platform import jobs
from elastrec.platform.cli.commands.status import pods_of
from elastrec.platform.cli.completion import running_jobs, running_pods
from elastrec.platform.cli.options import FiniteRange, echo_json, output_option
from elastrec.platform.cli.reader import interrupted_without_reader
from elastrec.platform.clusters.nodes import Capacity, limits_enforced
from elastrec.platform.jobs.known import not_in_cluster
from elastrec.platform.specs.errors import ClusterError, FieldProblem, SpecError
from elastrec.platform.specs.text.some import counted


@click.command()
@click.argument("pod", shell_complete=running_pods)
@click.option("--follow", "-f", is_flag=True, help="Follow the log until the pod ends.")
@click.option("--tail", type=click.IntRange(min=1), help="Print only the last lines.")
def logs(pod: str, follow: bool, tail: int | None) -> None:
    """Print the log of a POD. For the name of a job, print the log of its master."""
    platform = jobs.Platform.from_environment(start=False)
    names = {status.name for status in platform.launcher.pods()}
    if pod not in names:
        first = platform.launcher.find(pod)
        if first is None:
            of_job = [name for name in sorted(names) if name.startswith(f"{pod.rpartition('-')[0]}-")]
            if not of_job:
                raise not_in_cluster(platform, pod)
            raise SpecError([FieldProblem("POD", repr(pod), ", ".join(of_job))], "the command line")
        pod = first.name
    with interrupted_without_reader():
        for line in platform.launcher.logs(pod, tail_lines=tail, follow=follow):
            click.echo(line)


@click.command()
@click.argument("job", shell_complete=running_jobs)
@output_option
def stop(job: str, output: str) -> None:
    """Stop a JOB and remove its pods. If a node agent that does not run has left pods, it is started for that."""
    from elastrec.platform.clusters.local import has_left_pods

    platform = jobs.Platform.from_environment(start=has_left_pods(jobs.home_folder() / "agent"))
    pods = [pod.name for pod in pods_of(platform, job)]
    if not jobs.stop(platform, job, "stopped from the command line"):
        raise ClusterError(f"job {job}: was not stopped")
    if output == "json":
        echo_json({"job": job, "stopped": True, "pods": pods})
    else:
        click.echo(f"{job}: stopped, {counted(len(pods), 'pod')} removed")


@click.group()
def agent() -> None:
    """The local cluster: one node agent that runs pods on this machine."""


@agent.command("start")
@click.option(
    "--cores",
    type=FiniteRange(min=0, min_open=True),
    help="Cores that pods may use; default: as at the last start, at first all of the machine.",
)
@click.option("--memory", help="Memory that pods may use, for example 8Gi; default: as with --cores.")
def agent_start(cores: float | None, memory: str | None) -> None:
    """Start the node agent in the background, unless it is running."""
    from elastrec.platform.clusters.local import start_agent
    from elastrec.platform.specs.text.quantities import parse_bytes, parsed

    def some_bytes(text: str) -> int:
        size_bytes = parse_bytes(text)
        if size_bytes == 0:
            raise ValueError("more than 0, for example 8Gi")
        return size_bytes

    memory_bytes = None if memory is None else parsed("--memory", memory, some_bytes, "the command line")
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
    """Show the total and the free resources of the cluster."""
    _show_capacity()


def _show_capacity() -> None:
    nodes = jobs.Platform.from_environment(start=False).launcher.nodes()
    capacity = Capacity.of(nodes)
    for name, size in (("total", capacity.total), ("free", capacity.free)):
        click.echo(f"{name}: {size.cores:g} cores, {size.memory_bytes / 2**30:.1f}Gi memory")
    if not limits_enforced(nodes):
        click.echo("limits are not enforced: cgroups cannot be written; pods only get thread counts")
