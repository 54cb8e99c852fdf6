"""A round of scaling over a thousand jobs whose masters answer over sockets, with workers and servers movable.

    python -m benchmarks scaling_round [--jobs 1000] [--silent 20] [--output json]

The round is the live one (`jobs.scaling.rounds.plan`): masters are asked, profiles made, every job's plans searched
for, and one plan each chosen. The cluster is a list of pods. Servers of this process stand for the masters, so that
their CPU time counts, too; each reports what a job of its own truth has measured in three sizes. Several jobs share a
server, because a process cannot open a thousand of them beside the round's own connections. Nothing is applied, and
there is no history to read.

`silent` more masters take the connection and say nothing: together they may cost the round less than twice the time
that one of them is waited for.

A mutation that turns it red: masters are asked one after another (`round-one-by-one` in `tests/mutants.toml`).
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
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from benchmarks.common.figures import Figure, OtherLoad, run_benchmark
from elastrec.platform.clusters.nodes import Node
from elastrec.platform.clusters.pods import PodPhase, PodSize, PodStatus
from elastrec.platform.jobs.scaling import masters
from elastrec.platform.jobs.scaling.rounds import plan
from elastrec.platform.jobs.surroundings import Platform
from elastrec.platform.master.pods.launch import pod_name
from elastrec.platform.scaling.amounts import GIBIBYTE, Allocation
from elastrec.platform.scaling.types import ModelShape
from elastrec.platform.simulator.mixes import coefficients_of
from elastrec.platform.simulator.speed import Step, steps_of
from elastrec.platform.specs.environment import TOKEN_FILE
from elastrec.platform.specs.metrics import Phase, Role
from elastrec.platform.specs.scaling import ScalingSettings
from elastrec.platform.specs.shape import Places, Shape
from elastrec.platform.specs.text.loading import job_to_json, load_job
from elastrec.platform.transport import RpcServer
from elastrec.platform.transport.messages.profile import GetProfile, Measured, Profile

_SERVERS = 50
_TOKEN = "of-this-benchmark"
_MODEL = ModelShape(batch_size=512, dense_bytes=1_000_000, embedding_dimension=16)
_NODE = PodSize(4096.0, 16384 * GIBIBYTE)


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


def told_by(number: int) -> Profile:
    """What the master of a job has measured: three sizes of a job with a truth of its own."""
    random = np.random.default_rng(number)
    job = load_job(
        {
            "apiVersion": "elastrec.io/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": f"clicks-{number}", "team": "ads"},
            "spec": {
                "model": {"architecture": "dlrm", "embedding_dimension": _MODEL.embedding_dimension},
                "data": {"path": "clicks", "sparse": [{"name": "user"}], "dense": [{"name": "age"}]},
                "training": {"batch_size": _MODEL.batch_size},
                "scaling": {"maximum_workers": 64, "maximum_parameter_servers": 16},
            },
        }
    )
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
    return Profile(
        job_json=job_to_json(job).encode(), phase=Phase.TRAINING, configuration=_shape(now), is_settled=True,
        measured=[_measured(each, steps(each)) for each in passed],
        remaining_samples=int(10 ** random.uniform(7, 9)), dense_bytes=_MODEL.dense_bytes, servers_move=True,
    )  # fmt: skip


@contextmanager
def cluster(jobs: int, silent: int) -> Iterator[Platform]:
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
        # Nobody listens there: a round without history.
        yield Platform(launcher, None, "http://127.0.0.1:1", "", Path(folder))  # type: ignore[arg-type]


def one_round(jobs: int, silent: int) -> tuple[float, float, int, int]:
    """(seconds, CPU seconds, jobs decided about, jobs that are to change) of a round.

    Raises:
        RuntimeError: a master that answers was left out of the round.
    """
    with cluster(jobs, silent) as platform:
        began, began_cpu = time.monotonic(), time.process_time()
        decided, left_alone = plan(platform, ScalingSettings())
        seconds, cpu = time.monotonic() - began, time.process_time() - began_cpu
    missing = {each.job_id: each.reason for each in left_alone if not each.job_id.startswith("silent-")}
    if missing or decided.problems:
        raise RuntimeError(f"not every job was decided about: {json.dumps({**missing, **decided.problems})[:500]}")
    return seconds, cpu, len(decided.plans), sum(bool(each.changes) for each in decided.plans)


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """A round without and one with silent masters."""
    with OtherLoad() as others:
        one_round(min(arguments.jobs, 20), 0)
        seconds, cpu, decided, changing = one_round(arguments.jobs, 0)
        with_silent, _, _, _ = one_round(arguments.jobs, arguments.silent)
    shown = {"jobs": decided, "to_change": changing, "others_cores": round(others.cores, 2)}
    waited = masters.ANSWER_SECONDS
    return [
        Figure("scaling_round.seconds", seconds, f"s for {arguments.jobs} jobs", at_most=30.0, simulated=True,
               settings=shown),
        Figure("scaling_round.cpu_milliseconds_per_job", 1000 * cpu / decided, "ms, masters included", simulated=True),
        Figure("scaling_round.silent_masters_cost", with_silent - seconds, "s more", at_most=2.0 * waited,
               simulated=True, settings={**shown, "silent": arguments.silent, "each_is_waited_for_s": waited}),
    ]  # fmt: skip


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--jobs", type=int, default=1000, help="whose masters answer (default 1000)")
    parser.add_argument("--silent", type=int, default=20, help="masters that never answer (default 20)")


if __name__ == "__main__":
    run_benchmark(__doc__, measure, add_options)
