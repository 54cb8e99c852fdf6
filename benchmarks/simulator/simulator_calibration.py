"""How well the simulator predicts real runs: completion times of jobs on the local cluster that it has never seen.

    python -m benchmarks simulator_calibration [--record FILE] [--replay FILE] [--draws 50] [--output json]

Eleven real jobs of half a minute and more, one after the other: one to four workers, one and two servers, pods of
different sizes; two lose a worker that is replaced, two grow while they train. Each is predicted from the others alone:

* step times by the throughput model, fitted to runs of other configurations: none that the job itself passes through;
* its start, and how long its lost or ordered workers take, drawn from log-normals fitted to the other runs.

What is taken from the job itself is what its owner decides: pods, samples, and at which share of the work a worker is
killed or more are ordered. The prediction is the median over `--draws` simulated runs, the error that of its completion
time. `replayed` is the same with what was recorded of the run itself: it shows what is lost in the model of the
cluster alone, and says nothing about predictions.

A mutation that turns it red: `features` of the throughput model all 1, or starts a hundred times as long
(`tests/mutants.toml`).

`--record` keeps what was recorded in a file; `--replay` takes it from one instead of running jobs.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

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
_DRAWS = 50


@dataclass(frozen=True)
class LogNormal:
    """Fitted by the moments of the logarithms.

    Attributes:
        spread: standard deviation of the logarithm; 0 of one value.
    """

    median: float
    spread: float

    @staticmethod
    def of(seconds: Sequence[float]) -> LogNormal:
        """Of at least one value above 0."""
        logarithms = [math.log(each) for each in seconds]
        return LogNormal(
            math.exp(statistics.fmean(logarithms)), statistics.stdev(logarithms) if len(logarithms) > 1 else 0.0
        )

    def draw(self, random: np.random.Generator) -> float:
        """One value."""
        return self.median * float(random.lognormal(0.0, self.spread))


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


def configurations(run: RecordedRun) -> frozenset[Allocation]:
    """All that it passes through or was measured with, however shortly."""
    most = max(run.workers, run.grow_to)
    least = run.workers - (run.lose_at is not None)
    wanted = set(range(max(1, least), most + 1)) | set(run.step_seconds)
    return frozenset(allocation(run, workers) for workers in wanted)


def simulated_seconds(
    run: RecordedRun, coefficients: Coefficients, start: float, workers_up: tuple[tuple[float, int], ...]
) -> float:
    """The completion time in the simulator."""
    job = JobToRun(
        job_id=run.name, arrival_seconds=0.0, samples=float(run.samples), shape=_SHAPE, coefficients=coefficients,
        allocation=allocation(run, run.workers), start_seconds=start, workers_up=workers_up,
    )  # fmt: skip
    report = Simulation([job], Nodes(4, Resources(8.0, 64.0 * GIBIBYTE)), Static(), PRICES, _QUIET).run()
    return report.jobs[0].completion_seconds


def replayed_seconds(run: RecordedRun) -> float:
    """With the step times, the start and the workers over time of the run itself."""
    own = fit(_SHAPE, observations(run), job_id=run.name).coefficients
    return simulated_seconds(run, own, run.started_seconds, run.workers_up)


@dataclass(frozen=True)
class Prediction:
    """Of one run by the others.

    Attributes:
        seconds: of every draw.
        unseen: configurations of the others that its step times come from.
    """

    seconds: tuple[float, ...]
    unseen: int

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def predicted(run: RecordedRun, runs: Sequence[RecordedRun], draws: int = _DRAWS) -> Prediction:
    """The run from all others; of those, what was measured in one of its own configurations is left out.

    Raises:
        ValueError: the others say nothing about something that the run does.
    """
    own, others = configurations(run), [each for each in runs if each is not run]
    seen = [each for other in others for each in observations(other) if each.allocation not in own]
    delays = [
        each.delay_seconds
        for each in others
        if each.delay_seconds is not None and (each.lose_at is None) == (run.lose_at is None)
    ]
    if not seen or (not delays and (run.lose_at is not None or run.grow_at is not None)):
        raise ValueError(f"{run.name}: no other run of another configuration, or none that lost or ordered workers")
    coefficients = fit(_SHAPE, seen, job_id=run.name).coefficients
    starts = LogNormal.of([each.started_seconds for each in others])
    changes = LogNormal.of(delays) if delays else LogNormal(0.0, 0.0)
    random = np.random.default_rng(0)
    found = []
    for _ in range(draws):
        start, delay = starts.draw(random), changes.draw(random)
        found.append(simulated_seconds(run, coefficients, start, _workers_up(run, coefficients, delay)))
    return Prediction(tuple(found), len({each.allocation for each in seen}))


def _workers_up(run: RecordedRun, coefficients: Coefficients, delay: float) -> tuple[tuple[float, int], ...]:
    """What its owner decides, when the simulator believes the share of the work to be done."""
    job = JobToRun(
        job_id=run.name, arrival_seconds=0.0, samples=float(run.samples), shape=_SHAPE, coefficients=coefficients,
        allocation=allocation(run, run.workers),
    )  # fmt: skip
    alone = job.samples / job.samples_per_second(job.allocation)
    if run.lose_at is not None:
        at = run.lose_at * alone
        return (0.0, run.workers), (at, run.workers - 1), (at + delay, run.workers)
    if run.grow_at is not None:
        return (0.0, run.workers), (run.grow_at * alone + delay, run.grow_to)
    return ((0.0, run.workers),)


def figures(runs: Sequence[RecordedRun], draws: int = _DRAWS) -> list[Figure]:
    """Errors over all runs, and of every one."""
    found, errors, replayed = [], [], []
    for run in runs:
        prediction = predicted(run, runs, draws)
        errors.append(100 * abs(prediction.median / run.ended_seconds - 1))
        replayed.append(100 * abs(replayed_seconds(run) / run.ended_seconds - 1))
        name = run.name.replace(", ", "_").replace(" ", "_")
        found.append(
            Figure(
                f"{_PREFIX}.error.{name}", errors[-1], "% of the completion time", simulated=True,
                settings={"real_s": round(run.ended_seconds, 1), "predicted_s": round(prediction.median, 1),
                          "other_configurations": prediction.unseen, "replayed_error_%": round(replayed[-1], 2),
                          "repeated_samples": run.repeated_samples},
            )
        )  # fmt: skip
    shown = {"real_runs": len(runs), "draws": draws, "start": "log-normal of the other runs"}
    return [
        Figure(f"{_PREFIX}.median_error", statistics.median(errors), "% of the completion time", at_most=15.0,
               simulated=True, settings=shown),
        Figure(f"{_PREFIX}.p90_error", float(np.quantile(errors, 0.9)), "% of the completion time", at_most=30.0,
               simulated=True, settings={"largest": round(max(errors), 1)}),
        Figure(f"{_PREFIX}.replayed.largest_error", max(replayed), "% of the completion time", simulated=True,
               settings={"what": "with its own step times, start and workers: no prediction"}),
        *found,
    ]  # fmt: skip


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """Runs jobs, or takes recorded ones, and predicts them."""
    if arguments.replay:
        runs = msgspec.json.decode(Path(arguments.replay).read_bytes(), type=list[RecordedRun])
    else:
        with tempfile.TemporaryDirectory() as folder:
            runs = record(CASES, folder, lambda line: print(line, file=sys.stderr, flush=True))
    if arguments.record:
        Path(arguments.record).write_bytes(msgspec.json.encode(runs))
    return figures(runs, arguments.draws)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--record", help="file for what was recorded")
    parser.add_argument("--replay", help="file to take recorded runs from; no job runs")
    parser.add_argument("--draws", type=int, default=_DRAWS, help=f"simulated runs per job (default {_DRAWS})")


if __name__ == "__main__":
    run_benchmark(__doc__, measure, add_options)
