"""How well the simulator repeats real runs: completion times of jobs on the local cluster, replayed.

    python -m benchmarks simulator_calibration [--record FILE] [--replay FILE] [--output json]

Six real jobs of half a minute and more: one, two and three workers, one and two servers, smaller pods, a worker that is
killed and replaced, a job that grows from one to three workers while it trains. Each is replayed with what was recorded
of itself: when its first worker began, how many workers trained when, how long a step took with so many. Beside it, as
a harder question, the step times come from a throughput model that has seen the other runs only (`left_out`).

`--record` keeps what was recorded in a file; `--replay` takes it from one instead of running jobs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.common.figures import Figure, run_benchmark
from benchmarks.common.recorded_runs import BATCH, CASES, RecordedRun, record
from benchmarks.common.simulated_jobs import PRICES
from elastrec.platform.scaling.amounts import GIBIBYTE, Allocation, Resources
from elastrec.platform.scaling.model.throughput import fit
from elastrec.platform.scaling.policies.static import Static
from elastrec.platform.scaling.types import Coefficients, ModelShape, Observation
from elastrec.platform.simulator.nodes import Nodes
from elastrec.platform.simulator.settings import Settings
from elastrec.platform.simulator.simulation import Simulation
from elastrec.platform.simulator.workload import JobToRun

_PREFIX = "simulator_calibration"
_SHAPE = ModelShape(batch_size=BATCH, dense_bytes=1_000_000, embedding_dimension=16)
_LEAST_SHARE = 0.1
_QUIET = Settings(noise=0.0, start_spread=0.0)


def allocation(run: RecordedRun, workers: int) -> Allocation:
    """What the run had while so many workers were up."""
    return Allocation(
        workers=workers, parameter_servers=run.servers, worker_cores=run.worker_cores,
        parameter_server_cores=run.server_cores, worker_memory_bytes=2 * GIBIBYTE,
        parameter_server_memory_bytes=GIBIBYTE,
    )  # fmt: skip


def observations(run: RecordedRun) -> list[Observation]:
    """What the run measured of its steps, one observation per number of workers that it had for some time.

    The moment in which the first worker waits for the second is made of warming up.
    """
    whole = sum(seconds for _, seconds in run.step_seconds.values())
    return [
        Observation(allocation=allocation(run, workers), iteration_seconds=step, iterations=max(1, int(seconds / step)))
        for workers, (step, seconds) in run.step_seconds.items()
        if seconds >= _LEAST_SHARE * whole
    ]


def replayed_seconds(run: RecordedRun, coefficients: Coefficients) -> float:
    """The completion time in the simulator."""
    job = JobToRun(
        job_id=run.name, arrival_seconds=0.0, samples=float(run.samples), shape=_SHAPE, coefficients=coefficients,
        allocation=allocation(run, run.workers), start_seconds=run.started_seconds, workers_up=run.workers_up,
    )  # fmt: skip
    report = Simulation([job], Nodes(4, Resources(8.0, 64.0 * GIBIBYTE)), Static(), PRICES, _QUIET).run()
    return report.jobs[0].completion_seconds


def own_coefficients(run: RecordedRun) -> Coefficients:
    """Step times of this run alone."""
    return fit(_SHAPE, observations(run), job_id=run.name).coefficients


def learned_coefficients(run: RecordedRun, runs: Sequence[RecordedRun]) -> Coefficients:
    """Step times by a model of all other runs."""
    others = [each for other in runs if other is not run for each in observations(other)]
    return fit(_SHAPE, others, job_id=run.name).coefficients


def figures(runs: Sequence[RecordedRun]) -> list[Figure]:
    """Errors of every run, and the largest."""
    found, errors, learned = [], [], []
    for run in runs:
        replayed = replayed_seconds(run, own_coefficients(run))
        predicted = replayed_seconds(run, learned_coefficients(run, runs))
        errors.append(100 * abs(replayed / run.ended_seconds - 1))
        learned.append(100 * abs(predicted / run.ended_seconds - 1))
        name = run.name.replace(", ", "_").replace(" ", "_")
        found.append(
            Figure(
                f"{_PREFIX}.error.{name}", errors[-1], "% of the completion time", at_most=10.0, simulated=True,
                settings={"real_s": round(run.ended_seconds, 1), "replayed_s": round(replayed, 1),
                          "left_out_%": round(learned[-1], 1), "repeated_samples": run.repeated_samples},
            )
        )  # fmt: skip
    return [
        Figure(f"{_PREFIX}.largest_error", max(errors), "% of the completion time", at_most=10.0, simulated=True,
               settings={"real_runs": len(runs)}),
        Figure(f"{_PREFIX}.left_out.median_error", statistics.median(learned), "% of the completion time",
               simulated=True, settings={"largest": round(max(learned), 1)}),
        *found,
    ]  # fmt: skip


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """Runs jobs, or takes recorded ones, and replays them."""
    if arguments.replay:
        runs = msgspec.json.decode(Path(arguments.replay).read_bytes(), type=list[RecordedRun])
    else:
        with tempfile.TemporaryDirectory() as folder:
            runs = record(CASES, folder, lambda line: print(line, file=sys.stderr, flush=True))
    if arguments.record:
        Path(arguments.record).write_bytes(msgspec.json.encode(runs))
    return figures(runs)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--record", help="file for what was recorded")
    parser.add_argument("--replay", help="file to take recorded runs from; no job runs")


if __name__ == "__main__":
    run_benchmark(__doc__, measure, add_options)
