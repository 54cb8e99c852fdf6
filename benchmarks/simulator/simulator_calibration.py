"""How well the simulator predicts the completion times of real jobs on the local cluster that it has not seen.

    python -m benchmarks simulator_calibration [--record FILE] [--replay FILE] [--draws 50] [--output json]

Fourteen real jobs of at least half a minute run one after the other, with one to four workers, one and two servers, and
pods of different sizes. Two lose a worker that is replaced, two get workers during training, and three change their
servers. Each job is predicted only from the others:

* step times come from the throughput model, fitted to runs of configurations that the job never has. The fit gets the
  same inputs as in a live job, also the measured part of a step in which workers compute;
* the time of its start, of lost or ordered pods, and of the pause in which rows are handed over to other servers is
  drawn from log-normal distributions fitted to the other runs.

From the job itself come only the decisions of its owner: pods, samples, and the share of the work after which a worker
is killed or another shape is requested. The prediction is the median of `--draws` simulated runs, the error that of the
completion time. `replayed` uses the recorded times of the run itself: this is the error of the model of the cluster
alone, not of a prediction.

`--record` keeps the recordings in a file; `--replay` reads them instead of running jobs.

Mutations that turn it red: `features` of the throughput model all 1, starts or pauses a hundred times as long
(`tests/mutants.toml`).
"""

from __future__ import annotations

import argparse
import itertools
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
from benchmarks.common.recorded_runs import BATCH, CASES, DIMENSION, RecordedRun, record
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
_LEAST_SHARE = 0.1
"""Chosen: of a run's time, which a number of pods was up; what was up for less shows how pods come, not a step."""
_DRAWS = 50
"""Chosen: the median of so many moves by less than 1 % with the seed."""


@dataclass(frozen=True)
class LogNormal:
    """A log-normal distribution, fitted by the moments of the logarithms.

    Attributes:
        spread: standard deviation of the logarithm; 0 for one value.
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


def shape_of(run: RecordedRun) -> ModelShape:
    """The constants of its throughput model."""
    return ModelShape(batch_size=BATCH, dense_bytes=int(run.dense_bytes), embedding_dimension=DIMENSION)


def allocation(run: RecordedRun, workers: int, servers: int) -> Allocation:
    """What the run had while so many pods were up."""
    return Allocation(
        workers=workers, parameter_servers=servers, worker_cores=run.worker_cores,
        parameter_server_cores=run.server_cores, worker_memory_bytes=2 * GIBIBYTE,
        parameter_server_memory_bytes=GIBIBYTE,
    )  # fmt: skip


def observations(run: RecordedRun) -> list[Observation]:
    """The measured steps of a run: one observation for each number of pods that it had for some time.

    Numbers of pods that it had only briefly are left out: at the start, for example, a worker that is still alone warms
    up.
    """
    whole = sum(each.worker_seconds for each in run.steps)
    return [
        Observation(
            allocation=allocation(run, each.workers, each.servers), iteration_seconds=each.step_seconds,
            compute_seconds=each.compute_seconds, iterations=max(1, int(each.worker_seconds / each.step_seconds)),
        )
        for each in run.steps
        if each.worker_seconds >= _LEAST_SHARE * whole
    ]  # fmt: skip


def configurations(run: RecordedRun) -> frozenset[Allocation]:
    """All that it passes through or was measured with, however shortly."""
    most = max(run.workers, run.workers_to)
    least = run.workers - (run.lose_at is not None)
    workers = range(max(1, least), most + 1)
    wanted = set(itertools.product(workers, {run.servers, run.servers_to or run.servers}))
    wanted |= {(each.workers, each.servers) for each in run.steps}
    return frozenset(allocation(run, *each) for each in wanted)


def simulated_seconds(
    run: RecordedRun,
    coefficients: Coefficients,
    start: float,
    pods_up: tuple[tuple[float, int, int], ...],
    pause: float,
) -> float:
    """The completion time in the simulator."""
    job = JobToRun(
        job_id=run.name, arrival_seconds=0.0, samples=float(run.samples), shape=shape_of(run),
        coefficients=coefficients, allocation=allocation(run, run.workers, run.servers), start_seconds=start,
        pods_up=pods_up,
    )  # fmt: skip
    quiet = Settings(noise=0.0, start_spread=0.0, migration_pause_seconds=pause)
    report = Simulation([job], Nodes(4, Resources(8.0, 64.0 * GIBIBYTE)), Static(), PRICES, quiet).run()
    return report.jobs[0].completion_seconds


def replayed_seconds(run: RecordedRun) -> float:
    """With the step times, the start, the pause and the pods over time of the run itself."""
    own = fit(shape_of(run), observations(run), job_id=run.name).coefficients
    return simulated_seconds(run, own, run.started_seconds, run.pods_up, run.pause_seconds or 0.0)


def kind(run: RecordedRun) -> str:
    """What is done to it while it trains."""
    if run.lose_at is not None:
        return "loses a worker"
    if run.change_at is None:
        return "nothing"
    return "servers change" if run.servers_to else "workers come"


@dataclass(frozen=True)
class Prediction:
    """The prediction of one run from the others.

    Attributes:
        seconds: completion times of all draws.
        unseen: configurations of the other runs to which its step times were fitted.
    """

    seconds: tuple[float, ...]
    unseen: int

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def predicted(run: RecordedRun, runs: Sequence[RecordedRun], draws: int = _DRAWS) -> Prediction:
    """The prediction of a run from all others, without their measurements in configurations of this run.

    Raises:
        ValueError: the others have no data about an event of the run.
    """
    own, others = configurations(run), [each for each in runs if each is not run]
    seen = [each for other in others for each in observations(other) if each.allocation not in own]
    alike = [each for each in others if kind(each) == kind(run)]
    delays = [each.delay_seconds for each in alike if each.delay_seconds is not None]
    pauses = [each.pause_seconds for each in alike if each.pause_seconds is not None]
    lacks = (kind(run) != "nothing" and not delays) or (kind(run) == "servers change" and not pauses)
    if not seen or lacks:
        raise ValueError(
            f"{run.name}: no other run of another configuration, or none of which one can say: {kind(run)}"
        )
    coefficients = fit(shape_of(run), seen, job_id=run.name).coefficients
    starts = LogNormal.of([each.started_seconds for each in others])
    changes, handing_over = (LogNormal.of(each) if each else LogNormal(0.0, 0.0) for each in (delays, pauses))
    random = np.random.default_rng(0)
    found = []
    for _ in range(draws):
        start, delay, pause = starts.draw(random), changes.draw(random), handing_over.draw(random)
        found.append(simulated_seconds(run, coefficients, start, _pods_up(run, coefficients, delay), pause))
    return Prediction(tuple(found), len({each.allocation for each in seen}))


def _pods_up(run: RecordedRun, coefficients: Coefficients, delay: float) -> tuple[tuple[float, int, int], ...]:
    """What its owner decides, when the simulator believes the share of the work to be done."""
    job = JobToRun(
        job_id=run.name, arrival_seconds=0.0, samples=float(run.samples), shape=shape_of(run),
        coefficients=coefficients, allocation=allocation(run, run.workers, run.servers),
    )  # fmt: skip
    alone = job.samples / job.samples_per_second(job.allocation)
    first = (0.0, run.workers, run.servers)
    if run.lose_at is not None:
        at = run.lose_at * alone
        return first, (at, run.workers - 1, run.servers), (at + delay, run.workers, run.servers)
    if run.change_at is not None:
        wanted = run.workers_to or run.workers, run.servers_to or run.servers
        return first, (run.change_at * alone + delay, *wanted)
    return (first,)


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
               settings={"what": "with its own step times, start, pause and pods: no prediction"}),
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
    run_benchmark(__doc__, measure, add_options, has_pods=True)
