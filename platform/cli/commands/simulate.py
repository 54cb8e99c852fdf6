"""`simulate`: compares scaling policies on a workload in a simulated cluster."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from elastrec.platform.cli.options import OutputFile, echo_json, output_option, wide_console, write_output
from elastrec.platform.specs.errors import FieldProblem, SpecError

if TYPE_CHECKING:
    from elastrec.platform.jobs.what_if.comparison import Gathered
    from elastrec.platform.jobs.what_if.simulation_file import SimulationFile
    from elastrec.platform.simulator.report import Report


@click.command()
@click.argument("file", type=click.Path(dir_okay=False))
@click.option(
    "--policy", "-p", "policies", multiple=True, metavar="NAME", help="Simulate only this policy. Repeatable."
)
@click.option("--nodes", type=click.IntRange(min=1), help="Number of nodes, instead of the file's.")
@click.option("--seed", type=click.IntRange(min=0), help="Seed, instead of the file's; equal seeds give equal results.")
@click.option("--picture", type=OutputFile(), help="Write a picture of the comparison to this PNG file.")
@output_option
def simulate(
    file: str, policies: tuple[str, ...], nodes: int | None, seed: int | None, picture: str | None, output: str
) -> None:
    """Compare scaling policies on the jobs of FILE in a simulated cluster.

    FILE is a YAML file (see the page on the simulator), or a CSV file with one job per line: job_id, arrival_seconds,
    seconds, and the requested sizes. Traces of clusters with submit_time, duration and num_gpu can be read, too.

    \b
    The other policies are compared with the first one:
      by-hand             the requested sizes, without remedies for faults and slow pods
      static              the requested sizes, but slow pods are replaced and memory is forecast
      elastic-scheduler   adds or removes one worker per round
      optimus             adds or removes one worker or server per round
      optimus-greedy      adds as many workers or servers per round as pay
      three-stage         the default policy
      NAME                a policy that a package registers as elastrec.scaling_policies
      FILE.py:CLASS       your own policy in a file

    All results are simulated: ratios between policies are more reliable than hours.
    """
    from elastrec.platform.jobs.what_if.comparison import compare, gather
    from elastrec.platform.jobs.what_if.simulation_file import load_simulation

    asked = load_simulation(Path(file))
    changed: dict[str, Any] = {}
    if policies:
        if len(set(policies)) < len(policies):
            raise SpecError([FieldProblem("--policy", ", ".join(policies), "every name once")], "the command line")
        changed["policies"] = policies
    if nodes is not None:
        changed["cluster"] = asked.cluster.model_copy(update={"nodes": nodes})
    if seed is not None:
        changed["seed"] = seed
    asked = asked.model_copy(update=changed)
    gathered = _from_history(asked, Path(file)) if asked.workload.history else gather(asked, Path(file).parent)
    for note in gathered.notes:
        click.echo(f"note: {note}", err=True)
    with _Bars() as bars:
        reports = compare(asked, gathered, bars.show)
    if picture:
        from elastrec.platform.cli.commands.simulate_picture import png

        write_output(picture, png(reports), "the picture")
    if output == "json":
        echo_json(_plain(asked, gathered, reports))
        return
    wide_console().print(_table(reports, len(gathered.jobs), asked))
    for each in reports:
        if each.problems:
            cases, jobs = sum(each.problems.values()), len(each.problems)
            click.echo(
                f"{each.policy}: {jobs} jobs kept their sizes, because the policy made no valid plan {cases} times",
                err=True,
            )
        if each.unfinished:
            shown = ", ".join(each.unfinished[:3]) + (", ..." if len(each.unfinished) > 3 else "")
            click.echo(f"{each.policy}: {len(each.unfinished)} jobs did not end: {shown}", err=True)
    if picture:
        click.echo(f"written: {picture}")


def _from_history(asked: SimulationFile, file: Path) -> Gathered:
    from elastrec.platform.history.history import History
    from elastrec.platform.jobs.scaling.overheads import overheads_of
    from elastrec.platform.jobs.surroundings import tracking_uri
    from elastrec.platform.jobs.what_if.comparison import gather

    wanted = asked.workload.history
    assert wanted is not None
    records = History(tracking_uri(), wanted.experiment).job_records(limit=wanted.most)
    return gather(asked, file.parent, records, overheads_of(records))


class _Bars:
    """Progress on standard error: on a terminal one bar per policy, otherwise one line when a policy is done."""

    def __init__(self) -> None:
        console = Console(file=sys.stderr, highlight=False)
        self._live = console.is_terminal
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("jobs"),
            TimeElapsedColumn(), console=console, disable=not self._live,
        )  # fmt: skip
        self._tasks: dict[str, TaskID] = {}
        self._begun: set[str] = set()

    def show(self, name: str, ended: int, jobs: int) -> None:
        """Shows the finished jobs of each policy; 0 for a policy that has not started."""
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(name, total=jobs, start=False)
        if ended and name not in self._begun:
            self._begun.add(name)
            self._progress.start_task(self._tasks[name])
        self._progress.update(self._tasks[name], completed=ended, total=jobs)
        if ended == jobs and not self._live:
            click.echo(f"{name}: {jobs} jobs simulated", err=True)

    def __enter__(self) -> _Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


def _hours(seconds: float) -> str:
    """Infinity is the completion time of a job that has not ended."""
    if math.isinf(seconds):
        return "not ended"
    return f"{seconds / 3600:.2f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"


def _table(reports: list[Report], jobs: int, asked: SimulationFile) -> Table:
    cluster = asked.cluster
    title = f"simulated: {jobs} jobs on {cluster.nodes} nodes of {cluster.cores:g} cores, changes of {asked.changes}"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    table.add_column("POLICY")
    for heading in (
        "MEDIAN", "", "P90", "", "MEAN", "WAITED", "MAKESPAN", "HELD", "USED", "CORE-HOURS", "COST",
        "CHANGES", "LOST PODS", "MADE WAY", "OUT OF MEMORY", "CPU W/S", "MEMORY W/S", "UNFINISHED",
    ):  # fmt: skip
        table.add_column(heading, justify="right")
    base = reports[0].figures()
    for each in reports:
        figures = each.figures()

        def against(name: str, figures: dict[str, float] = figures) -> str:
            is_known = base[name] and math.isfinite(base[name]) and math.isfinite(figures[name])
            return f"{100 * (figures[name] / base[name] - 1):+.1f} %" if is_known and figures is not base else ""

        table.add_row(
            each.policy,
            _hours(figures["completion_seconds_median"]),
            "" if each is reports[0] else against("completion_seconds_median"),
            _hours(figures["completion_seconds_p90"]),
            "" if each is reports[0] else against("completion_seconds_p90"),
            _hours(figures["completion_seconds_mean"]),
            _hours(figures["waiting_seconds_mean"]),
            _hours(figures["makespan_seconds"]),
            f"{figures['cores_held']:.0%}",
            f"{figures['cores_used']:.0%}",
            f"{figures['core_hours']:,.0f}",
            f"{figures['cost']:,.0f}",
            f"{figures['changes']:,.0f}",
            f"{figures['failures']:,.0f}",
            f"{figures['evictions']:,.0f}",
            f"{figures['out_of_memory_share']:.1%}",
            f"{figures['worker_cpu_share']:.0%}/{figures['server_cpu_share']:.0%}",
            f"{figures['worker_memory_share']:.0%}/{figures['server_memory_share']:.0%}",
            f"{figures['unfinished']:.0f}",
        )
    return table


def _plain(asked: SimulationFile, gathered: Gathered, reports: list[Report]) -> dict[str, Any]:
    return {
        "simulated": True,
        "asked": asked.model_dump(mode="json"),
        "jobs": len(gathered.jobs),
        "notes": list(gathered.notes),
        "policies": [
            {
                "policy": each.policy,
                "figures": each.figures(),
                "problems": each.problems,
                "unfinished": list(each.unfinished),
                "completion_seconds": {job.job_id: round(job.completion_seconds, 3) for job in each.jobs},
            }
            for each in reports
        ],
    }
