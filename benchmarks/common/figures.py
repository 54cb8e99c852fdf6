"""The common form of figures: goals, interleaved rounds, medians, printing.

def measure(arguments: argparse.Namespace) -> list[Figure]:
    seconds = interleave({"ours": run_ours, "theirs": run_theirs}, rounds=arguments.rounds)
    return [Figure("speed_ratio", ratio(seconds["theirs"], seconds["ours"]), "×", at_least=0.9)]

if __name__ == "__main__":
    run_benchmark(__doc__, measure, add_options)
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

import structlog
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from scipy import stats

from benchmarks.common import results

T = TypeVar("T")
Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Figure:
    """One measured number.

    Attributes:
        at_least, at_most: the goal; a figure without one explains another.
        compared: whether it is one of several similar figures, such as one for each peer or assumption: the page has
            all of them in one table, with or without a goal, and with the last part of their names as its columns.
        simulated: whether part of the system was replaced; the settings name this part.
        settings: for repeating the measurement.
    """

    figure: str
    value: float
    unit: str
    at_least: float | None = None
    at_most: float | None = None
    simulated: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    compared: bool = False

    @property
    def goal(self) -> str | None:
        parts = [f"≥ {self.at_least:g}"] if self.at_least is not None else []
        parts += [f"≤ {self.at_most:g}"] if self.at_most is not None else []
        return ", ".join(parts) or None

    @property
    def met(self) -> bool | None:
        """None without a goal."""
        if self.at_least is None and self.at_most is None:
            return None
        above = self.at_least is None or self.value >= self.at_least
        return above and (self.at_most is None or self.value <= self.at_most)

    def document(self) -> dict[str, Any]:
        """The figure as `--output json` prints it."""
        return {
            "figure": self.figure,
            "value": self.value,
            "unit": self.unit,
            "goal": self.goal,
            "met": self.met,
            "simulated": self.simulated,
            "settings": dict(self.settings),
            "compared": self.compared,
        }


def interleave(sides: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """Runs the sides in turn, A B A B, so that a temporarily slower machine affects all of them."""
    results: dict[str, list[T]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, run in sides.items():
            results[name].append(run())
    return results


def take_turns(sides: Mapping[Name, Callable[[], T]], slices: int) -> dict[Name, list[T]]:
    """Runs short slices of the sides in turn, A B B A, so that a machine that becomes slower favours no side."""
    results: dict[Name, list[T]] = {name: [] for name in sides}
    order = list(sides.items())
    for _ in range(slices):
        for name, run in order:
            results[name].append(run())
        order.reverse()
    return results


class OtherLoad:
    """The CPU use of other processes of this machine during a measurement; for figures of waits it must be near 0.

    A context manager around a measurement. Processes that the benchmark starts in it count as its own after their end.

    Attributes:
        cores: average number of cores of other processes; 0 if the system does not report it.
    """

    cores = 0.0

    def __enter__(self) -> Self:
        self._began, self._busy, self._own = time.monotonic(), _busy_seconds(), _own_seconds()
        return self

    def __exit__(self, *_: object) -> None:
        busy, own = _busy_seconds() - self._busy, _own_seconds() - self._own
        self.cores = max(0.0, busy - own) / (time.monotonic() - self._began)


def _own_seconds() -> float:
    """CPU seconds of this process and of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _busy_seconds() -> float:
    """CPU seconds of all processes since the machine started, as Linux counts them."""
    path = Path("/proc/stat")
    if not path.exists():
        return 0.0
    user, nice, system, _, _, interrupts, soft, *_ = map(int, path.read_text().splitlines()[0].split()[1:])
    return (user + nice + system + interrupts + soft) / os.sysconf("SC_CLK_TCK")


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Median of the ratios of rounds that ran next to each other."""
    return statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))


def mean_difference(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """Mean of the differences of pairs, and half of its 95 % confidence interval by Student's t; two pairs or more."""
    return mean_with_interval([mine - other for mine, other in zip(ours, theirs, strict=True)])


def mean_with_interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and half of its 95 % confidence interval by Student's t; two values or more."""
    deviation = statistics.stdev(values) / math.sqrt(len(values))
    return statistics.fmean(values), float(stats.t.ppf(0.975, len(values) - 1)) * deviation


def print_table(figures: Sequence[Figure]) -> None:
    """A table for users, followed by the settings of the measurement."""
    table, settings = Table(box=SIMPLE_HEAD), []
    table.add_column("figure", overflow="fold", ratio=3)
    for name in ("value", "goal", "met"):
        table.add_column(name, no_wrap=True)
    table.add_column("unit", overflow="fold", ratio=2)
    for each in figures:
        met = {None: "", True: "yes", False: "NO"}[each.met]
        name = f"{each.figure} (simulated)" if each.simulated else each.figure
        table.add_row(name, f"{each.value:.4g}", each.goal or "", met, each.unit)
        if each.settings:
            settings.append(f"{each.figure}: " + ", ".join(f"{key}={value}" for key, value in each.settings.items()))
    console = Console()
    console.print(table)
    for line in settings:
        console.print(line, style="dim", highlight=False, markup=False)


def run_benchmark(
    description: str | None,
    measure: Callable[[argparse.Namespace], list[Figure]],
    add_options: Callable[[argparse.ArgumentParser], None] | None = None,
    *,
    has_pods: bool = False,
) -> None:
    """The command line of one benchmark: parses options, measures, prints, saves. Its log goes to stderr.

    Args:
        has_pods: whether it starts a node agent. Pods are no children of the benchmark, so their CPU use cannot be
            distinguished from that of others, and saved figures have none.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", choices=("table", "json"), default="table")
    parser.add_argument("--save", action="store_true", help="keep the figures in benchmarks/results")
    if add_options is not None:
        add_options(parser)
    arguments = parser.parse_args()
    try:
        # Checked before the measurement, because figures without a commit cannot be saved.
        commit = results.measured_commit() if arguments.save else ""
    except ValueError as error:
        parser.error(str(error))
    # Only figures go to stdout.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    with OtherLoad() as load:
        figures = measure(arguments)
    documents = [figure.document() for figure in figures]
    if arguments.output == "json":
        json.dump(documents, sys.stdout, ensure_ascii=False)
        sys.stdout.write("\n")
    else:
        print_table(figures)
    if arguments.save:
        others_cores = None if has_pods else round(load.cores, 2)
        results.store(documents, results.Origin(datetime.date.today(), commit, others_cores))
