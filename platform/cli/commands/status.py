"""`status`: shows the jobs of the cluster, or the pods of one job, once or continuously."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from elastrec.platform import jobs
from elastrec.platform.cli.completion import running_jobs
from elastrec.platform.cli.options import NotBlank, echo_json, output_option
from elastrec.platform.cli.progress import PLAIN_LINE_EVERY_SECONDS, progress_line
from elastrec.platform.cli.reader import interrupted_without_reader
from elastrec.platform.cli.tables import Columns
from elastrec.platform.clusters.pods import PodStatus
from elastrec.platform.jobs.known import not_in_cluster
from elastrec.platform.specs.metrics import IDLE, Phase, Role, TrainingMetrics
from elastrec.platform.specs.text import plain_words
from elastrec.platform.specs.text.quantities import format_bytes

_LOOK_SECONDS = 1.0
_PATIENCE_SECONDS = 3.0
"""For the node agent and for a master: a person waits for the table."""
NO_JOBS = "no jobs"
_JOB_COLUMNS = ("JOB", "PHASE", "SHARDS", "SAMPLES", "SAMPLES/S", "LOSS", "AUC", "WORKERS", "SERVERS", "AGE")
_JOB_EXPENDABLE = ("SERVERS", "WORKERS", "SAMPLES", "AGE", "SAMPLES/S", "LOSS", "AUC", "SHARDS")
_POD_COLUMNS = ("POD", "ROLE", "STATUS", "RESTARTS", "CORES", "MEMORY", "USED", "NODE", "AGE")
_POD_EXPENDABLE = ("NODE", "ROLE", "CORES", "MEMORY", "AGE", "RESTARTS", "USED")


@click.command()
@click.argument("job", required=False, type=NotBlank(), shell_complete=running_jobs)
@click.option("--watch", "-w", is_flag=True, help="Update the output until Ctrl-C, or until JOB has ended.")
@output_option
def status(job: str | None, watch: bool, output: str) -> None:
    """Show the jobs of the cluster, or the pods of one JOB.

    With --watch, the table is updated every second on a terminal. Without a terminal, a line is printed for each job
    when its phase changes, and every few seconds. With --output json, an object is printed every second.
    """
    platform = jobs.Platform.from_environment(start=False, patience_seconds=_PATIENCE_SECONDS)
    looks = _looks(platform, job, watch)
    try:
        with interrupted_without_reader():
            if output == "json":
                for look in looks:
                    echo_json(look.as_json())
                    sys.stdout.flush()
            elif sys.stdout.isatty():
                _show_on_terminal(looks, watch)
            elif watch:
                _print_lines(looks)
            else:
                # A pipe has no width, and a script must get whole names.
                for look in looks:
                    Console(width=look.columns.width(look.columns.headings) + 1).print(look.table(None))
                    for reason in look.reasons():
                        click.echo(reason)
    except KeyboardInterrupt:
        if not watch:
            raise


class Look:
    """The state of the cluster at one moment: all jobs, or the pods of one job."""

    def __init__(self, platform: jobs.Platform, job: str | None) -> None:
        self._job = job
        self._pods = pods_of(platform, job) if job else platform.launcher.jobs()
        self._observations = (
            [jobs.observe(platform, job, _PATIENCE_SECONDS)] if job else jobs.jobs(platform, _PATIENCE_SECONDS)
        )
        self.columns = _pods_columns(self._pods) if job else _jobs_columns(self._observations, self._pods)

    def as_json(self) -> Any:
        """One object (of a job) or a list of the jobs' metrics."""
        if self._job is None:
            return [observation.metrics.model_dump(mode="json") for observation in self._observations]
        observation = self._observations[0]
        return {
            "metrics": observation.metrics.model_dump(mode="json"),
            "failure": observation.failure,
            "reachable": observation.reachable,
            "pods": self._pods,
        }

    def table(self, width: int | None) -> RenderableType:
        """A table that fits into a width (None: no limit); on a terminal with the reasons below it."""
        if not self.columns.rows:
            return Text(NO_JOBS)
        reasons = self.reasons() if width is not None else []
        return Group(self.columns.render(width), *map(Text, reasons))

    def reasons(self) -> list[str]:
        """Why a job failed or its master does not answer, what it waits for, that its saves fail, and which change of
        its pods makes no progress or was undone.

        For a single job also the record from which it started, pods whose orders differ, and what it waits for while
        it trains.
        """
        begun = [one.metrics for one in self._observations if self._job and one.metrics.started_from]
        troubled = [one for one in self._observations if one.metrics.phase is Phase.FAILED or not one.reachable]
        waiting = [one.metrics for one in self._observations if one not in troubled and self._shows_reason(one.metrics)]
        idle = [pod for one in self._observations if self._job for pod in one.metrics.pods if pod.state == IDLE]
        return [
            *(f"{metrics.job}: started from {metrics.started_from}" for metrics in begun),
            *(f"{pod.name}: {pod.reason}" for pod in idle),
            *(f"{one.metrics.job}: {one.metrics.reason}" for one in troubled if one.metrics.reason),
            *(f"{metrics.job}: {metrics.reason}" for metrics in waiting if metrics.reason),
            *(
                f"{one.metrics.job}: {words}"
                for one in self._observations
                if (words := plain_words.failing_saves(one.metrics))
            ),
        ]

    def _shows_reason(self, metrics: TrainingMetrics) -> bool:
        """Whether the reason of a job that has not failed is shown: in a list of jobs, short waits of jobs that train
        are not."""
        waits = not metrics.phase.is_final and (self._job is not None or metrics.phase is not Phase.TRAINING)
        return waits or metrics.is_stalled

    def lines(self) -> dict[str, tuple[str, str]]:
        """(phase, line) of each job."""
        all_metrics = (observation.metrics for observation in self._observations)
        return {
            metrics.job: (metrics.phase.value, f"{metrics.job}  {progress_line(metrics)}") for metrics in all_metrics
        }


def _looks(platform: jobs.Platform, job: str | None, watch: bool) -> Iterator[Look]:
    """One observation, or one per second; ends when the observed job has ended."""
    yield Look(platform, job)
    while watch:
        time.sleep(_LOOK_SECONDS)
        if job and not jobs.pods_of_job(platform, job):
            click.echo(f"{job} has ended; to see what happened: elastrec explain {job}", err=True)
            return
        yield Look(platform, job)


def _show_on_terminal(looks: Iterator[Look], watch: bool) -> None:
    console = Console()
    if not watch:
        console.print(next(looks).table(console.width))
        return
    with Live(console=console, auto_refresh=False) as live:
        for look in looks:
            live.update(look.table(console.width), refresh=True)


def _print_lines(looks: Iterator[Look], clock: Callable[[], float] = time.monotonic) -> None:
    """Prints a line for each job when its phase has changed, or after some seconds."""
    printed: dict[str, tuple[str, str, float]] = {}
    has_printed = False
    for look in looks:
        lines = look.lines()
        for gone in set(printed) - set(lines):
            click.echo(f"{gone}  gone")
            del printed[gone]
        if not lines and not has_printed:
            click.echo(NO_JOBS)
        has_printed = True
        for name, (phase, line) in lines.items():
            before = printed.get(name)
            quiet = before is not None and clock() - before[2] < PLAIN_LINE_EVERY_SECONDS
            if before is None or before[0] != phase or (before[1] != line and not quiet):
                click.echo(line)
                printed[name] = (phase, line, clock())
        sys.stdout.flush()


def pods_of(platform: jobs.Platform, job: str) -> list[PodStatus]:
    """The pods of a job.

    Raises:
        SpecError: the cluster has no such job; names its jobs, and the commands for a job that has ended.
    """
    pods = jobs.pods_of_job(platform, job)
    if not pods:
        raise not_in_cluster(platform, job)
    return pods


def _age(pod: PodStatus) -> str:
    return plain_words.span((pod.finished_unix_seconds or time.time()) - pod.created_unix_seconds)


def _jobs_columns(observations: list[jobs.Observation], pods: list[PodStatus]) -> Columns:
    columns = Columns(_JOB_COLUMNS, _JOB_EXPENDABLE)
    ages = {pod.job: _age(pod) for pod in pods if pod.role is Role.MASTER}
    for observation in observations:
        metrics = observation.metrics
        up = {Role.WORKER: 0, Role.PARAMETER_SERVER: 0}
        for pod in metrics.pods:
            if pod.role in up and pod.state.lower() in ("ready", "running"):
                up[pod.role] += 1
        columns.add(
            metrics.job,
            metrics.phase.value,
            f"{metrics.shards_done}/{metrics.shards_total}",
            f"{metrics.samples_trained:,}",
            f"{metrics.samples_per_second:,.0f}",
            "-" if metrics.loss is None else f"{metrics.loss:.4f}",
            "-" if metrics.auc is None else f"{metrics.auc:.4f}",
            str(up[Role.WORKER]),
            str(up[Role.PARAMETER_SERVER]),
            ages.get(metrics.job, "-"),
        )
    return columns


def _pods_columns(pods: list[PodStatus]) -> Columns:
    columns = Columns(_POD_COLUMNS, _POD_EXPENDABLE)
    for pod in pods:
        columns.add(
            pod.name,
            plain_words.role(pod.role),
            f"{pod.phase.value} ({pod.reason})" if pod.reason else pod.phase.value,
            str(pod.restarts),
            f"{pod.size.cores:g}",
            format_bytes(pod.size.memory_bytes),
            f"{pod.memory_bytes / 2**20:.0f}Mi",
            pod.node,
            _age(pod),
        )
    return columns
