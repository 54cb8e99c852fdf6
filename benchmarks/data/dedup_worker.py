"""The end-to-end gain of a job by clustering and deduplication: reader, parameter client and model of the real worker.

    python -m benchmarks dedup_worker [--rows 98304] [--rounds 3] [--models bst,din,dlrm] [--output json]

The first rows of one log (26 single ids, 13 dense features, one long history; see `LogShape`), in order of time and
clustered by `elastrec data cluster`. Each side is a worker process and a parameter server process; the sides take
turns:

    before         plain, rows in order of time
    clustered      plain, the clustered rows
    deduplicated   the same rows with `deduplication: auto`, decided as `elastrec run` decides it
    unclustered    `deduplication: auto` on the rows in order of time, which the rule leaves plain

Figures are CPU seconds per row of the worker's process, without the server, the best of a few passes; and bytes per row
from the servers, to them, and from the reader. Models: a transformer (`bst`), target attention (`din`), and mean
pooling (`dlrm`).
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import structlog

from benchmarks.common.child import Child, one_core
from benchmarks.common.figures import Figure, interleave, ratio, run_benchmark
from benchmarks.common.session_log import LogShape, session_log
from elastrec.platform.data.clustering.clustering import cluster
from elastrec.platform.data.manifest import build_manifest
from elastrec.platform.jobs.starting.deduplication import with_groups
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.text.loading import job_to_json

SINGLE, DENSE, IDS, DIMENSION = 26, 13, 10_000, 32
GOAL, UNCLUSTERED_GOAL = 6.0, 0.97
_MODULE = "benchmarks.processes.dedup_worker"
MODELS: dict[str, dict[str, Any]] = {
    "bst": {"sequences": ["u0"], "layer_sizes": [128, 64]},
    "din": {"attention": {"u0": "C1"}, "layer_sizes": [128, 64]},
    "dlrm": {"bottom_layer_sizes": [128], "top_layer_sizes": [128, 64]},
}
Counted = dict[str, float]


def write_log(folder: Path, shape: LogShape) -> None:
    """The session log with single ids and dense features beside it, in order of time."""
    log = session_log(shape)
    random = np.random.default_rng(shape.seed)
    for number in range(SINGLE):
        log = log.append_column(f"C{number + 1}", pa.array(random.integers(0, IDS, log.num_rows)))
    for number in range(DENSE):
        log = log.append_column(f"I{number + 1}", pa.array(random.standard_normal(log.num_rows)))
    folder.mkdir()
    pq.write_table(log.drop_columns(["i0"]), folder / "part-0.parquet", row_group_size=16_384)


def job_on(path: Path, model: str, batch: int, deduplication: str) -> TrainingJob:
    """A job file on a folder; rows are trained in the order of the files, so that sides on one folder do the same."""
    history = {"name": "u0", "is_list": True, "max_length": 1_000, "pooling": "mean" if model == "dlrm" else "sum"}
    content = {
        "metadata": {"name": "dedup"},
        "spec": {
            "model": {"architecture": model, "embedding_dimension": DIMENSION, "options": MODELS[model]},
            "data": {
                "path": str(path),
                "partitioning": "none",
                "evaluation_path": str(path),
                "session": "session",
                "timestamp": "time",
                "dense": [{"name": f"I{number + 1}", "transform": "none"} for number in range(DENSE)],
                "sparse": [*({"name": f"C{number + 1}"} for number in range(SINGLE)), history],
            },
            "training": {"batch_size": batch, "shuffle": False},
            "deduplication": deduplication,
        },
    }
    job = TrainingJob.model_validate(content)
    return with_groups(job, build_manifest(job.spec.data))[0]


class Side:
    """A server and a worker on one job."""

    def __init__(self, stack: contextlib.ExitStack, folder: Path, name: str, job: TrainingJob) -> None:
        environment = one_core()
        file = folder / f"{name}.json"
        file.write_text(job_to_json(job))
        server = stack.enter_context(Child(_MODULE, "server", str(file), environment=environment))
        self._worker = stack.enter_context(
            Child(_MODULE, "worker", str(file), server.hello["address"], environment=environment)
        )
        self.groups = job.spec.deduplication.groups or ()

    def run(self, rows: int) -> Counted:
        """Reads and trains the first rows once; returns the worker's counters."""
        counted: Counted = self._worker.ask(rows=rows)
        return counted


def measure_model(root: Path, model: str, arguments: argparse.Namespace, settings: dict[str, Any]) -> list[Figure]:
    """All sides of one model."""
    # Processes of equal jobs differ by some per cent: the close comparison has two of each.
    wanted = {"before": ("time", "off"), "unclustered": ("time", "auto"), "clustered": ("clustered", "off"),
              "deduplicated": ("clustered", "auto"), "unclustered again": ("time", "auto"),
              "before again": ("time", "off")}  # fmt: skip
    with contextlib.ExitStack() as stack:
        sides = {
            name: Side(stack, root, f"{model}-{name}", job_on(root / path, model, arguments.batch, how))
            for name, (path, how) in wanted.items()
        }
        if not sides["deduplicated"].groups:
            raise RuntimeError(f"{model}: the rule left the clustered rows plain, so there is nothing to compare")
        rows = arguments.trained - arguments.trained % arguments.batch
        runs: dict[str, Callable[[], Counted]] = {name: partial(side.run, rows) for name, side in sides.items()}
        interleave(runs, 1)
        counted = interleave(runs, arguments.rounds)
    seconds = {name: [min(each["cpu_seconds"] for each in rounds)] for name, rounds in counted.items()}
    for name in ("before", "unclustered"):
        seconds[name] = min(seconds[name], seconds[f"{name} again"])
    last = {name: rounds[-1] for name, rounds in counted.items()}
    plain, ours = last["clustered"], last["deduplicated"]
    factor = plain["bytes_read"] / ours["bytes_read"]
    settings = {
        **settings,
        "plain_us_per_row": round(1e6 * seconds["clustered"][0] / plain["samples"], 2),
        "deduplicated_us_per_row": round(1e6 * seconds["deduplicated"][0] / ours["samples"], 2),
    }
    name, goal = f"dedup_worker.{model}", GOAL if model == "bst" else None
    unit = "× less CPU of the worker per row"
    figures = [
        Figure(
            f"{name}.end_to_end",
            ratio(seconds["before"], seconds["deduplicated"]),
            unit,
            at_least=goal,
            settings=settings,
        ),
        Figure(f"{name}.same_rows", ratio(seconds["clustered"], seconds["deduplicated"]), unit),
        Figure(
            f"{name}.unclustered", ratio(seconds["before"], seconds["unclustered"]), unit, at_least=UNCLUSTERED_GOAL
        ),
        Figure(f"{name}.bytes_from_reader", factor, "× fewer bytes per row"),
    ]
    for what, field in (("read", "bytes_read"), ("pulled", "bytes_pulled"), ("pushed", "bytes_pushed")):
        for side in ("before", "deduplicated"):
            value = last[side][field] / last[side]["samples"]
            figures.append(Figure(f"{name}.{what}_{side}", value, "bytes per row"))
    apart = abs(plain["loss_sum"] / plain["samples"] - ours["loss_sum"] / ours["samples"])
    figures.append(Figure(f"{name}.loss", apart, "apart on the same rows, after all passes"))
    return figures


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """Every model on one log."""
    # Decisions are no part of a benchmark's output.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    shape = LogShape(
        rows=arguments.rows, open_sessions=arguments.rows, length=arguments.length, stays=0.98,
        samples_per_session=arguments.session, vocabulary=IDS,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_log(root / "time", shape)
        described = job_on(root / "time", "dlrm", arguments.batch, "off")
        cluster(described.spec.data, str(root / "clustered"))
        settings = {
            "rows": arguments.rows, "trained": arguments.trained, "batch": arguments.batch, "dimension": DIMENSION,
            "rounds": arguments.rounds, "history": shape.length, "samples_per_session": shape.samples_per_session,
            "stays": shape.stays,
        }  # fmt: skip
        return [
            figure
            for model in arguments.models.split(",")
            for figure in measure_model(root, model, arguments, settings)
        ]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=98_304, help="rows of the log (default 98,304)")
    parser.add_argument("--trained", type=int, default=12_288, help="of them trained in a pass (default 12,288)")
    parser.add_argument("--batch", type=int, default=1_024, help="rows of a batch (default 1,024)")
    parser.add_argument("--length", type=int, default=100, help="ids of a history (default 100)")
    parser.add_argument("--session", type=float, default=30.0, help="mean rows of a session (default 30)")
    parser.add_argument("--rounds", type=int, default=3, help="passes of each side (default 3)")
    parser.add_argument("--models", default="bst,din,dlrm", help="default bst,din,dlrm")


if __name__ == "__main__":
    run_benchmark(__doc__, measure, add_options)
