"""Start-up latency: from the trigger of the DAG to the first trained batch, and its parts.

`startup.trigger`: Airflow, MLflow and the node agent are up, and the DAG is triggered as `make demo` does it.
`startup.demo`: from the start of the demo's command in an empty folder on an installed machine, services and click log
included. The first batch counts when the job's master knows of it, at most a heartbeat after it was trained.

Parts in which a pod works also have CPU seconds, which are comparable on a busy machine, too.

    python -m benchmarks startup [--rounds 3] [--output json]
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import structlog

from benchmarks.common.figures import Figure, run_benchmark
from benchmarks.common.groups import pod_groups, throttling
from benchmarks.common.live_jobs import TRAINS
from elastrec.operators import settings
from elastrec.platform import jobs
from elastrec.platform.clusters.local import find_agent
from elastrec.platform.data.generating.generator import GenerateSpec, generate
from elastrec.platform.specs.metrics import Phase, TrainingMetrics
from elastrec.platform.transport.messages.ledger import Explanation
from tools.stack.rest import AirflowClient
from tools.stack.services import ServiceStack

JOB_FILE = "demo.yaml"
_LOOK_SECONDS, _PATIENCE_SECONDS = 0.1, 300.0
_TASKS = ("prepare_data", "warm_start", "launch")


def first_batch(platform: jobs.Platform) -> TrainingMetrics:
    """Waits until the one job of the platform has trained something.

    Raises:
        RuntimeError: the job failed, or trained nothing within five minutes.
    """
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        for seen in jobs.jobs(platform):
            if seen.metrics.phase is Phase.FAILED:
                raise RuntimeError(f"the job failed: {seen.failure}")
            if seen.metrics.samples_trained:
                return seen.metrics
        time.sleep(_LOOK_SECONDS)
    raise RuntimeError(f"no batch was trained within {_PATIENCE_SECONDS:.0f} s")


def parts_of(
    begun: float, tasks: dict[str, dict[str, Any]], explained: Explanation, trained: float
) -> dict[str, float]:
    """Seconds between consecutive moments; they sum to `trained - begun`.

    Args:
        begun, trained: seconds since the epoch, like all moments here.
        tasks: tasks of the DAG run, from Airflow's REST API.
        explained: the job's story.

    Raises:
        RuntimeError: a moment is missing.
    """
    moments = [("trigger", begun)]
    for task in _TASKS:
        moments.append((f"Airflow starts {task}", _unix(tasks, task, "start_date")))
        if task != "launch":  # the job goes on before that task is over
            moments.append((f"{task} runs", _unix(tasks, task, "end_date")))
    moments.append(("launch runs until the master has begun", _entry(explained, "began ", last=False)))
    moments.append(("servers and workers come up", _entry(explained, "started ", last=True)))
    moments.append(("servers are ready, training begins", _entry(explained, TRAINS, last=False)))
    moments.append(("the first batch is read, pulled, computed and pushed", trained))
    # A worker may train while another one is still coming up.
    rising = [moments[0]]
    for name, moment in moments[1:]:
        rising.append((name, min(max(moment, rising[-1][1]), trained)))
    return {name: moment - rising[index][1] for index, (name, moment) in enumerate(rising[1:])}


def _unix(tasks: dict[str, dict[str, Any]], task: str, name: str) -> float:
    text = tasks.get(task, {}).get(name)
    if not text:
        raise RuntimeError(f"Airflow gives no {name} of the task {task}")
    return datetime.fromisoformat(text).timestamp()


def _entry(explained: Explanation, words: str, *, last: bool) -> float:
    found = [entry.unix_seconds for entry in explained.timeline if words in entry.what]
    if not found:
        raise RuntimeError(f"the job's story has no entry with {words!r}")
    return found[-1] if last else found[0]


def from_trigger(
    stack: ServiceStack, airflow: AirflowClient, clicks: Path
) -> tuple[dict[str, float], dict[str, float]]:
    """One run of the DAG until its first batch: seconds by part, and CPU seconds by pod until then."""
    platform = jobs.Platform.connect(stack.cluster_config(), stack.mlflow_url, str(stack.home / "work"))
    conf = {"job_file": JOB_FILE, "overrides": {"spec.data.path": str(clicks), "spec.training.epochs": 1000}}
    begun = time.time()
    run_id = airflow.trigger(settings.DAG_ID, conf)
    metrics = first_batch(platform)
    trained = time.time()
    used = {pod: throttling(group).cpu_seconds for pod, group in pod_groups(metrics.job).items()}
    parts = parts_of(begun, airflow.tasks(settings.DAG_ID, run_id), jobs.explanation(platform, metrics.job), trained)
    airflow.end_active_runs(settings.DAG_ID)
    jobs.stop(platform, metrics.job, "the benchmark has seen its first batch")
    return parts, {pod.removeprefix(f"{metrics.job}-"): seconds for pod, seconds in used.items()}


def measure_trigger(home: Path, rounds: int) -> list[Figure]:
    """Rounds with the same services; the first one also warms caches."""
    clicks = home / "clicks"
    generate(GenerateSpec(path=str(clicks), rows_per_day=100_000, days=2, seed=1))
    with ServiceStack(home) as stack:
        airflow = AirflowClient(stack.airflow_url)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not airflow.has_dag(settings.DAG_ID):
            if time.monotonic() > deadline:
                raise RuntimeError(f"Airflow did not read the DAG {settings.DAG_ID}")
            time.sleep(_LOOK_SECONDS)
        airflow.unpause(settings.DAG_ID)
        runs = []
        for number in range(rounds):
            runs.append(from_trigger(stack, airflow, clicks))
            print(f"round {number}: {sum(runs[-1][0].values()):.1f} s", file=sys.stderr)
    return figures_of(runs)


def figures_of(runs: list[tuple[dict[str, float], dict[str, float]]]) -> list[Figure]:
    """Medians over the runs: the whole, its parts, and the pods' CPU seconds."""
    wholes = [sum(parts.values()) for parts, _ in runs]
    settings_ = {"rounds": len(runs), "each": [round(seconds, 1) for seconds in wholes], "job": JOB_FILE}
    figures = [
        Figure("startup.trigger", statistics.median(wholes), "s to the first batch", at_most=20.0, settings=settings_)
    ]
    for part in runs[0][0]:
        figures.append(Figure(f"startup.trigger: {part}", statistics.median(parts[part] for parts, _ in runs), "s"))
    for pod in sorted(set.intersection(*(set(used) for _, used in runs))):
        spent = statistics.median(used[pod] for _, used in runs)
        figures.append(Figure(f"startup.trigger: CPU of {pod}", spent, "CPU s until the first batch"))
    return figures


def measure_demo(home: Path) -> list[Figure]:
    """The demo's command until its job has trained a batch; then it is interrupted, as by Ctrl-C."""
    command = [sys.executable, "-m", "tools.stack.demo", "--home", str(home), "--no-wait"]
    began = time.monotonic()
    with (home.parent / "demo.log").open("w") as output:
        demo = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=dict(os.environ))
        try:
            while (cluster := find_agent(home / "agent")) is None:
                if demo.poll() is not None or time.monotonic() - began > _PATIENCE_SECONDS:
                    raise RuntimeError(f"the demo ended: {(home.parent / 'demo.log').read_text()[-2000:]}")
                time.sleep(_LOOK_SECONDS)
            services = time.monotonic() - began
            platform = jobs.Platform.connect(cluster.config, "", str(home / "work"))
            metrics = first_batch(platform)
            seconds = time.monotonic() - began
            cluster.close()
        finally:
            demo.send_signal(signal.SIGINT)
            demo.wait()
    return [
        Figure("startup.demo", seconds, "s to the first batch",
               settings={"samples_total": metrics.samples_total, "node_agent_up_after_seconds": round(services, 1)}),
    ]  # fmt: skip


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """With services up, and from nothing."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        figures = measure_trigger(Path(folder) / "services", arguments.rounds)
        return figures + ([] if arguments.no_demo else measure_demo(Path(folder) / "demo"))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=3, help="runs of the DAG (default 3)")
    parser.add_argument("--no-demo", action="store_true", help="leave the demo out")


if __name__ == "__main__":
    run_benchmark(__doc__, measure, add_options, has_pods=True)
