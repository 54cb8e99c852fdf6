"""Jobs to simulate from a CSV file: one line per job, or the lines of a cluster's trace. Every wrong field is named.

| column | meaning | without it |
|---|---|---|
| `job_id` | unique name | |
| `arrival_seconds` (in traces `submit_time`) | since the start, in the file's time unit | |
| `seconds` (`duration`) | training time with the requested sizes, in the file's time unit | |
| `workers` (`num_gpu`) | requested | 1 |
| `parameter_servers` | likewise | one per four workers |
| `worker_cores`, `parameter_server_cores` | of one pod | 4 |
| `worker_memory_gib`, `parameter_server_memory_gib` | of one pod | 8 |
| `memory_at_end` | share of a server's memory that its rows fill at the end; above 1 it runs out of memory | not
simulated | | `batch_size`, `embedding_dimension` | of the model | 512, 16 | | `step_seconds` | of a worker, with the
requested sizes | 0.1 | | `compute_share`, `update_share` | of a step, of workers and of servers that apply gradients |
0.45, 0.1 | | `network_share`, `lookup_share` | likewise, of dense parameters and of lookups; what is left is fixed |
0.05, 0.3 | | `max_workers`, `max_parameter_servers` | that plans may give it | 8 times the requested number | |
`priority` | 1 is normal | 1 | | `name` | by which warm start finds similar jobs | none |
| `team` (`user`) | the owner of the job | `default` |

`read_node_changes` reads another kind of file: `seconds` and `nodes`, which are added (above 0) or removed (below 0).
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from elastrec.platform.scaling.amounts import GIBIBYTE, Allocation
from elastrec.platform.scaling.types import Limits, ModelShape
from elastrec.platform.scaling.warm_start import Features
from elastrec.platform.simulator.memory import MemoryTruth
from elastrec.platform.simulator.mixes import coefficients_of, features_of
from elastrec.platform.simulator.node_changes import NodeChange
from elastrec.platform.simulator.workload import JobToRun
from elastrec.platform.specs.errors import FieldProblem, SpecError
from elastrec.platform.specs.text.loading import read_text

SHARES = {"compute_share": 0.45, "update_share": 0.1, "network_share": 0.05, "lookup_share": 0.3}
"""Lookups take 30–48 % of a step (DLRover-RM §2.2); the others are assumed."""
_TRACE_NAMES = {"submit_time": "arrival_seconds", "duration": "seconds", "num_gpu": "workers", "user": "team"}
_NEEDED = ("job_id", "arrival_seconds", "seconds")
_COUNTS = {"workers": 1, "batch_size": 512, "embedding_dimension": 16}
_NUMBERS = {
    "worker_cores": 4.0, "parameter_server_cores": 4.0, "worker_memory_gib": 8.0, "parameter_server_memory_gib": 8.0,
    "step_seconds": 0.1, "priority": 1.0,
}  # fmt: skip
_TABLE = "a CSV file in UTF-8"
_MOST_PROBLEMS = 20
_EXPONENT = 0.7


class Table(msgspec.Struct, frozen=True):
    """The contents of a file.

    Attributes:
        skipped: the problems of skipped lines, if skipping was allowed.
    """

    jobs: tuple[JobToRun, ...]
    skipped: tuple[str, ...]


def _rows(file: Path, needed: Sequence[str]) -> list[tuple[int, dict[str, str]]]:
    """The file's records, columns by our names, each with the number of its last line."""
    try:
        # Spreadsheets write a byte order mark.
        reader = csv.DictReader(io.StringIO(read_text(file, _TABLE, encoding="utf-8-sig", newline=""), newline=""))
        rows = [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        problem = FieldProblem("file", f"text that is no table ({error})", _TABLE)
        raise SpecError([problem], str(file)) from None
    if not rows:
        raise SpecError([FieldProblem("file", "no line", "a header and one line per job", "add jobs")], str(file))
    named = [
        (line, {_TRACE_NAMES.get(name, name): value or "" for name, value in row.items() if name}) for line, row in rows
    ]
    if missing := [name for name in needed if name not in named[0][1]]:
        columns = ", ".join(name for name in rows[0][1] if name)
        raise SpecError(
            [FieldProblem(f"column {name}", f"absent (found: {columns})", "a column of this name") for name in missing],
            str(file),
        )
    return named


def read_arrivals(file: Path, time_unit_seconds: float = 1.0) -> list[float]:
    """Only the arrivals of a CSV file, increasing, the first one at second 0.

    Raises:
        SpecError: the file cannot be read, has no such column, or contains an invalid time.
    """
    lines = [_Line(line, row) for line, row in _rows(file, ("arrival_seconds",))]
    seconds = sorted(line.arrival() * time_unit_seconds for line in lines)
    if wrong := [problem for line in lines for problem in line.problems]:
        raise SpecError(wrong[:_MOST_PROBLEMS], str(file))
    return [moment - seconds[0] for moment in seconds]


def read_node_changes(file: Path, time_unit_seconds: float = 1.0) -> tuple[NodeChange, ...]:
    """Changes of the number of nodes, one per line: `seconds` since the start and `nodes`, a whole number other than 0.

    Raises:
        SpecError: the file cannot be read, columns are missing, or fields are wrong.
    """
    lines = [_Line(line, row) for line, row in _rows(file, ("seconds", "nodes"))]
    changes = [line.node_change(time_unit_seconds) for line in lines]
    if wrong := [problem for line in lines for problem in line.problems]:
        raise SpecError(wrong[:_MOST_PROBLEMS], str(file))
    return tuple(each for each in changes if each is not None)


def read_jobs(file: Path, time_unit_seconds: float = 1.0, *, skip_wrong_lines: bool = False) -> Table:
    """The jobs of a CSV file with a header, by their arrival. Unknown columns are ignored.

    Args:
        time_unit_seconds: the unit of the file's times; 60 for minutes.
        skip_wrong_lines: whether to skip lines with wrong fields instead of refusing the file.

    Raises:
        SpecError: the file cannot be read, columns are missing, or fields are wrong; at most 20 problems are named.
    """
    jobs: dict[str, JobToRun] = {}
    wrong: list[FieldProblem] = []
    for line, row in _rows(file, _NEEDED):
        fields = _Line(line, row)
        job = fields.job(time_unit_seconds)
        if job is not None and job.job_id in jobs:
            fields.refuse("job_id", job.job_id, "a name that no line before has", "rename one")
        wrong += fields.problems
        if job is not None and not fields.problems:
            jobs[job.job_id] = job
    if wrong and not skip_wrong_lines:
        more = len(wrong) - _MOST_PROBLEMS
        left = [FieldProblem("file", f"{more} more problems", "none", "fix these first")] if more > 0 else []
        raise SpecError([*wrong[:_MOST_PROBLEMS], *left], str(file))
    if not jobs:
        raise SpecError([*wrong[:_MOST_PROBLEMS]], str(file))
    ordered = sorted(jobs.values(), key=lambda each: each.arrival_seconds)
    return Table(tuple(ordered), tuple(str(problem) for problem in wrong))


class _Line:
    """One line of a file; collects its problems while it is read."""

    def __init__(self, number: int, fields: Mapping[str, str]) -> None:
        self._number, self._fields = number, fields
        self.problems: list[FieldProblem] = []

    def refuse(self, name: str, value: str, allowed: str, remedy: str = "correct the line") -> None:
        """Adds a problem."""
        self.problems.append(FieldProblem(f"line {self._number}, {name}", repr(value), allowed, remedy))

    def _number_of(self, name: str, default: float | None, least: float, allowed: str) -> float:
        text = self._fields.get(name, "").strip()
        if not text and default is not None:
            return default
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < least:
            self.refuse(name, text, allowed)
            return math.nan
        return value

    def _above_0(self, name: str, default: float | None) -> float:
        return self._number_of(name, default, 1e-12, "a number above 0")

    def _count(self, name: str, default: int | None) -> int:
        value = self._number_of(name, default, 1, "a whole number of at least 1")
        if value == value and value != int(value):
            self.refuse(name, self._fields[name], "a whole number of at least 1")
        return int(value) if value == value else 1

    def arrival(self) -> float:
        """In the file's unit."""
        return self._number_of("arrival_seconds", None, 0.0, "a number of at least 0")

    def node_change(self, unit: float) -> NodeChange | None:
        """None when a field is wrong."""
        at = self._number_of("seconds", None, 0.0, "a number of at least 0")
        nodes = self._number_of("nodes", None, -math.inf, "a whole number but 0: nodes that come, or, below 0, go")
        if nodes == nodes and (nodes != int(nodes) or nodes == 0):
            self.refuse("nodes", self._fields["nodes"], "a whole number but 0: nodes that come, or, below 0, go")
        return None if self.problems else NodeChange(at * unit, int(nodes))

    def job(self, unit: float) -> JobToRun | None:
        """The job; None when a field is wrong."""
        job_id = self._fields.get("job_id", "").strip()
        if not job_id:
            self.refuse("job_id", "", "a name")
        arrival = self.arrival()
        seconds = self._above_0("seconds", None)
        counts = {name: self._count(name, default) for name, default in _COUNTS.items()}
        numbers = {name: self._above_0(name, default) for name, default in _NUMBERS.items()}
        servers = self._count("parameter_servers", max(1, counts["workers"] // 4))
        most_workers = self._count("max_workers", 8 * counts["workers"])
        most_servers = self._count("max_parameter_servers", 8 * servers)
        for name, most, value in (
            ("max_workers", most_workers, counts["workers"]),
            ("max_parameter_servers", most_servers, servers),
        ):
            if most < value:
                self.refuse(name, str(most), f"at least the {value} that are asked for")
        shares = [self._number_of(name, default, 0.0, "a share of 0 to 1") for name, default in SHARES.items()]
        if sum(shares) > 1.0 + 1e-9:
            self.refuse("compute_share + update_share + network_share + lookup_share", f"{sum(shares):g}", "at most 1")
        full = self._above_0("memory_at_end", math.inf)
        if self.problems:
            return None
        allocation = Allocation(
            workers=counts["workers"], parameter_servers=servers, worker_cores=numbers["worker_cores"],
            parameter_server_cores=numbers["parameter_server_cores"],
            worker_memory_bytes=round(numbers["worker_memory_gib"] * GIBIBYTE),
            parameter_server_memory_bytes=round(numbers["parameter_server_memory_gib"] * GIBIBYTE),
        )  # fmt: skip
        shape = ModelShape(
            batch_size=counts["batch_size"], dense_bytes=10_000_000, embedding_dimension=counts["embedding_dimension"]
        )
        samples = seconds * unit * allocation.workers * shape.batch_size / numbers["step_seconds"]
        team, name = self._fields.get("team", ""), self._fields.get("name", "")
        return JobToRun(
            job_id=job_id,
            arrival_seconds=arrival * unit,
            samples=samples,
            shape=shape,
            coefficients=coefficients_of(
                shape, allocation, numbers["step_seconds"], (*shares, max(0.0, 1.0 - sum(shares)))
            ),
            allocation=allocation,
            limits=Limits(
                workers=(1, most_workers),
                parameter_servers=(1, most_servers),
                worker_cores=(min(0.25, allocation.worker_cores), max(32.0, allocation.worker_cores)),
                parameter_server_cores=(
                    min(0.25, allocation.parameter_server_cores),
                    max(32.0, allocation.parameter_server_cores),
                ),
            ),
            priority=numbers["priority"],
            team=team or "default",
            memory=None if math.isinf(full) else _memory(allocation, samples, full),
            features=features_of(name or job_id, shape, samples) if name or team else Features(),
        )


def _memory(allocation: Allocation, samples: float, full: float) -> MemoryTruth:
    """Tables that fill this share of a server's memory (without its base) when the last sample is trained."""
    limit = allocation.parameter_server_memory_bytes
    base = 0.05 * limit
    rows = full * (limit - base) * allocation.parameter_servers / (1.1 * 136.0)
    return MemoryTruth(
        worker_bytes=0.5 * allocation.worker_memory_bytes, server_base_bytes=base, bytes_per_row=136.0,
        rows_scale=rows / samples**_EXPONENT, exponent=_EXPONENT,
    )  # fmt: skip
