"""The gain of more pods: rows per second with 1, 2 and 4 workers, and with 1, 2 and 4 servers if these are the
bottleneck.

Every pod has a fraction of a core by its control group, so that one small machine holds them all. Speeds come from the
ledger: rows in the time in which every worker trained. The throttling counters of the groups, in the settings, show
whether the limits were the bottleneck. The pods have a higher CPU weight than other load on the machine.

Pulls overlap from the first step (`overlap_pull: true`), as they do by default once a model has taken its first steps:
the steady state is measured.

    python -m benchmarks scaling_out [--rounds 3] [--case workers] [--output json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.common.figures import Figure, interleave, ratio, run_benchmark
from benchmarks.common.groups import Throttling, pod_groups, throttling
from benchmarks.common.jobs import expect_limits, private_platform, run_job
from elastrec.platform import jobs
from elastrec.platform.data.generating.generator import GenerateReport, GenerateSpec, generate, training_data_for
from elastrec.platform.specs.metrics import Phase, TrainingMetrics

COUNTS = (1, 2, 4)
GOALS = {2: 1.9, 4: 3.5}
_SHARD_ROWS, _WARM_SHARDS = 2048, 5
_WEIGHT = 128
_ROWS = 20_000


@dataclass(frozen=True)
class Case:
    """The role whose number of pods varies, and sizes with which this role is the bottleneck.

    Attributes:
        samples_each: samples per pod of the role, so that all runs take about the same time.
        zipf_exponent: exponent of the ids; the lower, the more distinct ids a batch has, and the more work servers
            have.
    """

    role: str
    worker_cores: float
    server_cores: float
    others: int
    model: dict[str, Any]
    samples_each: int
    batch: int = 512
    zipf_exponent: float = 1.0
    rows: dict[str, Any] = field(default_factory=dict)

    def resources(self, count: int) -> dict[str, Any]:
        workers, servers = (count, self.others) if self.role == "worker" else (self.others, count)
        return {
            "master": {"cores": 0.2, "memory": "512Mi"},
            "worker": {"count": workers, "cores": self.worker_cores, "memory": "2Gi"},
            "parameter_server": {"count": servers, "cores": self.server_cores, "memory": "1Gi"},
        }


CASES = {
    # A deep network on few features: a worker computes about twenty times as long as a server.
    "workers": Case(
        "worker", worker_cores=0.4, server_cores=0.3, others=1, samples_each=120_000,
        model={"architecture": "dlrm", "embedding_dimension": 16,
               "options": {"bottom_layer_sizes": [512, 256, 64], "top_layer_sizes": [512, 256]}},
    ),
    # Long rows under Adam, hardly two alike in a batch, and hardly a network: a fortieth of a core cannot keep up.
    # Every server answers every minibatch, so its work on rows must outweigh what a request costs by itself.
    "servers": Case(
        "parameter_server", worker_cores=0.4, server_cores=0.025, others=4, samples_each=150_000, batch=2048,
        zipf_exponent=0.3,
        model={"architecture": "wide_and_deep", "embedding_dimension": 63, "options": {"layer_sizes": [8]}},
        rows={"kind": "adam", "learning_rate": 0.001},
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Run:
    """One job: rows per second, and how its pods fared while it trained."""

    speed: float
    throttled: dict[str, float]
    """By role, the median share of scheduling periods in which a pod reached its limit."""


def job_content(log: GenerateReport, case: Case, count: int) -> dict[str, Any]:
    """The job file of a case with `count` pods of its role."""
    spec = {
        "model": case.model,
        "data": json.loads(training_data_for(log.spec).model_dump_json(exclude_none=True)),
        "training": {
            "batch_size": case.batch,
            "batches_per_shard": _SHARD_ROWS // case.batch,
            "epochs": max(1, round(case.samples_each * count / log.days[0].rows)),
            "overlap_pull": True,
        },
        "optimizers": {"rows": case.rows} if case.rows else {},
        "resources": case.resources(count),
        "checkpoint": {"interval": "0s"},
        "continual": {"start_from": "nothing"},
    }
    return {"metadata": {"name": "scaling"}, "spec": spec}


def steady_speed(ledger: pa.Table, workers: int) -> float:
    """Rows per second in the time in which all workers trained, without their first shards, in which they warm up.

    Attempts that overlap this time count in proportion.

    Raises:
        RuntimeError: there was no such time.
    """
    table = ledger.to_pandas()
    table = table[(table["kind"] == "train") & (table["outcome"] == "done")]
    by_pod = [group.sort_values() for _, group in table.groupby("pod", observed=True)["ended_seconds"]]
    if len(by_pod) != workers or min(map(len, by_pod)) <= _WARM_SHARDS:
        raise RuntimeError(
            f"{len(by_pod)} of {workers} workers trained, and not {_WARM_SHARDS} shards each; train more samples"
        )
    begin, end = max(one.iloc[_WARM_SHARDS - 1] for one in by_pod), min(one.iloc[-1] for one in by_pod)
    if end <= begin:
        raise RuntimeError("the workers never trained all at once; train more samples")
    began, ended = table["began_seconds"].to_numpy(), table["ended_seconds"].to_numpy()
    inside = np.clip(np.minimum(ended, end) - np.maximum(began, begin), 0.0, None)
    rows = (table["to"] - table["from"]).to_numpy() * inside / np.maximum(ended - began, 1e-9)
    return float(rows.sum() / (end - begin))


class Watch:
    """Looks at the pods' groups while a job trains."""

    def __init__(self) -> None:
        self._groups: dict[str, Path] = {}
        self._first: dict[str, Throttling] = {}
        self._last: dict[str, Throttling] = {}

    def __call__(self, metrics: TrainingMetrics) -> bool:
        """Whether training is over: what follows is not looked at."""
        if metrics.samples_trained and metrics.phase is Phase.TRAINING:
            if not self._first:
                self._groups = pod_groups(metrics.job)
                self._first = {pod: throttling(group) for pod, group in self._groups.items()}
            self._last = {pod: throttling(group) for pod, group in self._groups.items()}
        return bool(metrics.samples_total) and metrics.samples_trained >= metrics.samples_total

    def throttled(self) -> dict[str, float]:
        """By role, the median share of periods in which a pod was stopped by its limit."""
        roles: dict[str, list[float]] = {}
        for pod, last in self._last.items():
            roles.setdefault(pod.rsplit("-", 2)[1] if pod[-1].isdigit() else "master", []).append(
                last.since(self._first[pod]).share
            )
        return {role: round(statistics.median(shares), 2) for role, shares in sorted(roles.items())}


def measure_case(platform: jobs.Platform, log: GenerateReport, name: str, rounds: int) -> list[Figure]:
    """Speeds at every count, in rounds that take turns, and the two speed-ups."""
    case = CASES[name]

    def side(count: int) -> Callable[[], Run]:
        def run() -> Run:
            watch = Watch()
            content = job_content(log, case, count)
            ended = run_job(platform, content, until=watch)
            speed = steady_speed(ended.ledger, content["spec"]["resources"]["worker"]["count"])
            throttled = watch.throttled()
            print(f"{count} {name}: {speed:,.0f} rows/s, throttled {throttled}", file=sys.stderr)
            return Run(speed, throttled)

        return run

    results = interleave({str(count): side(count) for count in COUNTS}, rounds)
    speeds = {count: [run.speed for run in results[str(count)]] for count in COUNTS}
    settings = {
        "worker_cores": case.worker_cores, "server_cores": case.server_cores, "batch": case.batch, "rounds": rounds,
        ("servers" if case.role == "worker" else "workers"): case.others, "network": case.model["architecture"],
    }  # fmt: skip
    figures = [
        Figure(f"scaling_out.{name}_{count}", ratio(speeds[count], speeds[1]), "times the speed of 1",
               at_least=GOALS[count], settings=settings)
        for count in COUNTS[1:]
    ]  # fmt: skip
    for count in COUNTS:
        throttled = {
            role: statistics.median(run.throttled[role] for run in results[str(count)])
            for role in results[str(count)][0].throttled
        }
        settings = {"each": [round(speed) for speed in speeds[count]], "throttled_share_of_periods": throttled}
        value = statistics.median(speeds[count])
        figures.append(Figure(f"scaling_out.{name}_{count}.speed", value, "rows per second", settings=settings))
    return figures


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """All cases, one after the other."""
    with tempfile.TemporaryDirectory() as folder, private_platform(weight=_WEIGHT) as platform:
        expect_limits(platform, "scaling_out")
        figures = []
        for name in arguments.case or list(CASES):
            log = click_log(Path(folder) / name, CASES[name])
            figures += measure_case(platform, log, name, arguments.rounds)
        return figures


def click_log(folder: Path, case: Case) -> GenerateReport:
    """Few rows, which are gone through as often as it takes."""
    spec = GenerateSpec(
        path=str(folder), rows_per_day=_ROWS, days=2, seed=1, dense=8, sparse=12, lists=0, heaps_exponent=0.9,
        zipf_exponent=case.zipf_exponent,
    )  # fmt: skip
    return generate(spec)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each count (default 3)")
    parser.add_argument("--case", action="append", choices=list(CASES), help="default: all")


if __name__ == "__main__":
    run_benchmark(__doc__, measure, add_options, has_pods=True)
