"""A round of scaling over a thousand jobs whose masters answer over sockets, with all resources scalable.

    python -m benchmarks scaling_round [--jobs 1000] [--silent 20] [--history 200] [--output json]

The round is the live one (`jobs.scaling.rounds.plan`): it asks masters, reads MLflow's history, makes profiles,
forecasts the memory of every job, searches for plans, and chooses one for each job. Nothing is applied.

The cluster is a list of pods. Servers in this process imitate the masters, so their CPU time counts, too. Each reports
measurements of a job with its own parameters in three sizes, the growth of its tables, and the usage of its servers.
Numbers and sizes of workers and servers are scalable; one job in ten outgrows its servers. Several jobs share a server,
because a process cannot open a thousand of them beside the round's connections.

The history has as many finished jobs as a round reads, in MLflow's database file. Half of them have the same model as
running jobs, and have saved their throughput model, so that the running jobs have a prior.

`silent` more masters accept the connection and do not answer: together they may cost the round less than twice the
timeout of one of them.

Mutation that turns it red: masters are asked one after another (`round-one-by-one` in `tests/mutants.toml`).
"""

from __future__ import annotations

import argparse
import json
import math
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.common.figures import Figure, OtherLoad, run_benchmark
from elastrec.platform.clusters.nodes import Node
from elastrec.platform.clusters.pods import PodPhase, PodSize, PodStatus
from elastrec.platform.history.decisions import Decisions
from elastrec.platform.history.history import History
from elastrec.platform.jobs.scaling import masters
from elastrec.platform.jobs.scaling.rounds import plan
from elastrec.platform.jobs.scaling.story import fitted
from elastrec.platform.jobs.starting.starting_sizes import LOOKED_AT, allocation_asked_for
from elastrec.platform.jobs.surroundings import Platform
from elastrec.platform.jobs.types import Interval, Prepared
from elastrec.platform.master.pods.launch import pod_name
from elastrec.platform.scaling.amounts import GIBIBYTE, Allocation, Change
from elastrec.platform.scaling.types import ModelShape
from elastrec.platform.simulator.mixes import coefficients_of
from elastrec.platform.simulator.speed import Step, steps_of
from elastrec.platform.specs.environment import TOKEN_FILE
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.metrics import Phase, Role
from elastrec.platform.specs.scaling import ScalingSettings
from elastrec.platform.specs.shape import Places, Shape
from elastrec.platform.specs.text.loading import job_to_json, load_job
from elastrec.platform.transport import RpcServer
from elastrec.platform.transport.messages.profile import GetProfile, Measured, Profile, ServerUse, TableGrowth

_SERVERS = 50
_TOKEN = "of-this-benchmark"
_MODEL = ModelShape(batch_size=512, dense_bytes=1_000_000, embedding_dimension=16)
_NODE = PodSize(4096.0, 16384 * GIBIBYTE)
_TABLES = ("user", "item", "query")
_SERVER_BYTES, _ROW_BYTES, _COUNTS = 8 * GIBIBYTE, 136.0, 60
"""Memory of a server, of a row, and counts of a table's rows that a master has kept."""


def _shape(now: Allocation) -> Shape:
    return Shape(
        {
            Role.PARAMETER_SERVER: Places(
                now.parameter_servers, PodSize(now.parameter_server_cores, now.parameter_server_memory_bytes)
            ),
            Role.WORKER: Places(now.workers, PodSize(now.worker_cores, now.worker_memory_bytes)),
        }
    )


def _measured(now: Allocation, step: Step) -> Measured:
    seconds = step.seconds
    return Measured(
        configuration=_shape(now), steps_ever=1000, steps=1000.0, samples=1000.0 * _MODEL.batch_size,
        worker_seconds=1000.0 * seconds, pull_seconds=500.0 * (seconds - step.compute),
        push_seconds=500.0 * (seconds - step.compute),
    )  # fmt: skip


def job_of(number: int) -> TrainingJob:
    """A job's file: limits of everything that plans may change."""
    return load_job(
        {
            "apiVersion": "elastrec.io/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": f"clicks-{number}", "team": "ads"},
            "spec": {
                "model": {"architecture": "dlrm", "embedding_dimension": _MODEL.embedding_dimension},
                "data": {
                    "path": "clicks", "sparse": [{"name": name} for name in _TABLES], "dense": [{"name": "age"}],
                },
                "training": {"batch_size": _MODEL.batch_size},
                "resources": {
                    "worker": {"count": 4, "cores": 2, "memory": "4Gi"},
                    "parameter_server": {"count": 2, "cores": 2, "memory": _SERVER_BYTES},
                },
                "scaling": {
                    "maximum_workers": 64, "maximum_parameter_servers": 16,
                    "minimum_worker_cores": 0.5, "maximum_worker_cores": 8, "minimum_worker_memory": "1Gi",
                    "minimum_parameter_server_cores": 0.5, "maximum_parameter_server_cores": 8,
                    "minimum_parameter_server_memory": "1Gi", "maximum_parameter_server_memory": "64Gi",
                },
            },
        }
    )  # fmt: skip


def _memory(random: np.random.Generator, servers: int, trained: int, remaining: int, *, fills: bool) -> dict[str, Any]:
    """How its tables grew until now, and what its servers use; `fills`: they outgrow their memory before its end."""
    exponents = [float(random.uniform(0.4, 0.8)) for _ in _TABLES]
    at_end = _SERVER_BYTES * servers * (float(random.uniform(1.2, 2.0)) if fills else float(random.uniform(0.1, 0.6)))
    samples = np.unique(np.geomspace(max(trained // 500, 1), trained, _COUNTS).astype(np.int64))
    tables, held = [], 0.0
    for name, exponent in zip(_TABLES, exponents, strict=True):
        rows_at_end = at_end / len(_TABLES) / _ROW_BYTES
        noise = 1.0 + 0.01 * random.standard_normal(len(samples))
        rows = np.maximum.accumulate(rows_at_end * (samples / (trained + remaining)) ** exponent * noise)
        tables.append(
            TableGrowth(
                table=name, samples=samples.tolist(), rows=rows.astype(np.int64).tolist(), bytes_per_row=_ROW_BYTES
            )
        )
        held += float(rows[-1]) * _ROW_BYTES
    each = int(held / servers)
    return {
        "tables_growth": tables,
        "servers": [
            ServerUse(
                pod=f"server-{place}", used_bytes=each + GIBIBYTE // 4, limit_bytes=_SERVER_BYTES, table_bytes=each
            )
            for place in range(servers)
        ],
        "worker_used_bytes": GIBIBYTE,
    }  # fmt: skip


def told_by(number: int) -> Profile:
    """What the master of a job has measured: three sizes of a job with a truth of its own, and its memory."""
    random = np.random.default_rng(number)
    job = job_of(number)
    now = Allocation(
        workers=int(random.integers(2, 17)), parameter_servers=int(random.integers(1, 5)), worker_cores=2.0,
        parameter_server_cores=2.0, worker_memory_bytes=4 * GIBIBYTE, parameter_server_memory_bytes=8 * GIBIBYTE,
    )  # fmt: skip
    shares = tuple(float(each) for each in random.dirichlet((6.0, 1.0, 0.5, 4.0, 1.0)))
    shares = (*shares[:-1], 1.0 - math.fsum(shares[:-1]))
    steps = steps_of(_MODEL, coefficients_of(_MODEL, now, float(random.uniform(0.05, 0.2)), shares))
    passed = [
        Allocation(
            workers=workers, parameter_servers=servers, worker_cores=2.0, parameter_server_cores=2.0,
            worker_memory_bytes=4 * GIBIBYTE, parameter_server_memory_bytes=8 * GIBIBYTE,
        )
        for workers, servers in (
            (max(1, now.workers // 2), now.parameter_servers), (now.workers, now.parameter_servers + 1),
            (now.workers, now.parameter_servers),
        )
    ]  # fmt: skip
    remaining = int(10 ** random.uniform(7, 9))
    trained = int(remaining * random.uniform(0.1, 1.0))
    speed = now.workers * _MODEL.batch_size / steps(now).seconds
    return Profile(
        job_json=job_to_json(job).encode(), phase=Phase.TRAINING, configuration=_shape(now), is_settled=True,
        measured=[_measured(each, steps(each)) for each in passed], trained_samples=trained,
        remaining_samples=remaining, dense_bytes=_MODEL.dense_bytes, servers_move=True, are_servers_settled=True,
        samples_per_second=speed, speed_deviation=0.05 * speed,
        **_memory(random, now.parameter_servers, trained, remaining, fills=number % 10 == 0),
    )  # fmt: skip


def write_history(uri: str, jobs: int, experiment: str) -> None:
    """So many finished jobs, every second of which has left the throughput model that was fitted to it."""
    history, decisions = History(uri, experiment), Decisions(uri, experiment)
    for number in range(jobs):
        job = job_of(number % _SERVERS)
        prepared = Prepared(
            job_id=f"earlier-{number}", job_json=job_to_json(job), interval=Interval(""), training_manifest="",
            evaluation_manifest="", training_rows=10_000_000, evaluation_rows=0,
        )  # fmt: skip
        run_id = history.start_run(prepared, allocation_asked_for(job))
        if number % 2 == 0 and (model := fitted(told_by(number % _SERVERS))) is not None:
            decisions.log_coefficients(run_id, model.coefficients, model.shape.dense_bytes)
        history.finish_run(run_id, Phase.SUCCEEDED)


@contextmanager
def cluster(jobs: int, silent: int, tracking_uri: str) -> Iterator[Platform]:
    """A cluster in which so many masters answer and so many do not."""
    addresses: dict[str, str] = {}

    def pods() -> list[PodStatus]:
        return [
            PodStatus(
                name=pod_name(job, Role.MASTER), uid=job, job=job, role=Role.MASTER, phase=PodPhase.RUNNING,
                size=PodSize(0.5, GIBIBYTE // 2), address=address,
            )
            for job, address in addresses.items()
        ]  # fmt: skip

    with ExitStack() as opened, tempfile.TemporaryDirectory() as folder:
        servers = []
        for number in range(min(_SERVERS, jobs)):
            answer = told_by(number)
            server = RpcServer({GetProfile: lambda _, answer=answer: answer}, token=_TOKEN)
            server.serve_in_background()
            opened.callback(server.stop)
            servers.append(server.address)
        addresses.update({f"job-{number}": servers[number % len(servers)] for number in range(jobs)})
        for number in range(silent):
            listening = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
            addresses[f"silent-{number}"] = "{}:{}".format(*listening.getsockname())
        launcher = SimpleNamespace(
            jobs=pods, find=lambda job: next((pod for pod in pods() if pod.job == job), None),
            address=lambda pod: addresses[pod.job], secrets=lambda name, uid: {TOKEN_FILE: _TOKEN},
            nodes=lambda: [Node(name="node", size=_NODE, free=_NODE)], pods=lambda job=None: [],
        )  # fmt: skip
        yield Platform(launcher, None, tracking_uri, "", Path(folder))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Round:
    """One round over all jobs.

    Attributes:
        decided: number of jobs with a decision; `changing`: those with a change.
        more_memory, resized: those whose servers get more memory in total, and those whose pods get another size.
    """

    seconds: float
    cpu_seconds: float
    decided: int
    changing: int
    more_memory: int
    resized: int


def one_round(jobs: int, silent: int, tracking_uri: str) -> Round:
    """Runs one round and measures its time.

    Raises:
        RuntimeError: a master that answers was left out of the round.
    """
    with cluster(jobs, silent, tracking_uri) as platform:
        began, began_cpu = time.monotonic(), time.process_time()
        decided, left_alone = plan(platform, ScalingSettings())
        seconds, cpu = time.monotonic() - began, time.process_time() - began_cpu
    missing = {each.job_id: each.reason for each in left_alone if not each.job_id.startswith("silent-")}
    if missing or decided.problems:
        raise RuntimeError(f"not every job was decided about: {json.dumps({**missing, **decided.problems})[:500]}")
    plans = decided.plans
    return Round(
        seconds=seconds, cpu_seconds=cpu, decided=len(plans), changing=sum(bool(each.changes) for each in plans),
        more_memory=sum(_server_bytes(each.allocation) > _server_bytes(each.before) for each in plans),
        resized=sum(bool(each.changes & {Change.WORKER_SIZE, Change.SERVER_SIZE}) for each in plans),
    )  # fmt: skip


def _server_bytes(of: Allocation) -> int:
    return of.parameter_servers * of.parameter_server_memory_bytes


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """A round without and one with silent masters."""
    with tempfile.TemporaryDirectory() as folder:
        uri = f"sqlite:///{folder}/mlflow.db"
        write_history(uri, arguments.history, ScalingSettings().experiment)
        with OtherLoad() as others:
            one_round(min(arguments.jobs, 20), 0, uri)
            found = one_round(arguments.jobs, 0, uri)
            with_silent = one_round(arguments.jobs, arguments.silent, uri)
    shown = {
        "jobs": found.decided, "to_change": found.changing, "to_get_memory": found.more_memory,
        "to_resize": found.resized, "earlier_jobs": arguments.history, "others_cores": round(others.cores, 2),
    }  # fmt: skip
    waited = masters.ANSWER_SECONDS
    return [
        Figure("scaling_round.seconds", found.seconds, f"s for {arguments.jobs} jobs", at_most=30.0, simulated=True,
               settings=shown),
        Figure("scaling_round.cpu_milliseconds_per_job", 1000 * found.cpu_seconds / found.decided,
               "ms, masters included", simulated=True),
        Figure("scaling_round.silent_masters_cost", with_silent.seconds - found.seconds, "s more",
               at_most=2.0 * waited, simulated=True,
               settings={**shown, "silent": arguments.silent, "each_is_waited_for_s": waited}),
    ]  # fmt: skip


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--jobs", type=int, default=1000, help="whose masters answer (default 1000)")
    parser.add_argument("--silent", type=int, default=20, help="masters that never answer (default 20)")
    parser.add_argument("--history", type=int, default=LOOKED_AT, help=f"finished jobs (default {LOOKED_AT})")


if __name__ == "__main__":
    run_benchmark(__doc__, measure, add_options)
