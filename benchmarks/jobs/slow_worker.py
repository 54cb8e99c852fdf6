"""Completion time of a job with a pod on a slow node: moved to another node, left alone, or restarted there.

    python -m benchmarks slow_worker [--role parameter_server] [--mode bsp] [--rounds 1] [--output json]

Two workers train on two nodes, each with its own agent. The node becomes slow artificially: from the first trained row
on, the kernel gives every pod there a fifth of its granted cores. The platform moves the pod by default. The restart is
ordered when the master of the moved job has decided; it saves, and continues with both workers on the other node. All
jobs continue one model, as daily jobs do, so a restart saves and restores its rows.

With `--role parameter_server`, one of two servers is on the slow node, and the only worker is not. Every step waits for
the slow server in every mode. There is no earlier model.

Modes: with `bsp`, every step waits for the slow worker. With `async`, the default, shards are distributed by speed:
without its slow worker, a job of two loses at most half of its speed, one of ten a tenth. With `ssp`, the fast worker
is `staleness` steps ahead, and then as slow as with `bsp`.

Until the decision, the moved and the restarted job are equally slow. Afterwards, the moved job saves what the restart
costs (a save, the end of all pods, their start, and a restore), less what the slow pod costs until its successor works.
So the comparison with the restart depends on the size of the model and on the length of the job.

DLRover-RM (Fig. 13) reports 48.5 % less than without intervention and 37 % less than with stop-and-restart, for a
worker with 3 % of its cores; for a server (Fig. 12) 36.4 % and 27.6 %. If the master never finds a slow pod
(`SlowPods.look`: return None), the figures are red, because its job is left alone, too.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.common.continued import continue_model
from benchmarks.common.figures import Figure, OtherLoad, run_benchmark
from benchmarks.common.groups import hold_back, outweigh_other_load
from benchmarks.common.jobs import expect_limits, platform_on, private_home
from benchmarks.common.live_jobs import Interfere, Sides, Trained, leave_alone, restart, train
from benchmarks.common.nodes import started_nodes
from benchmarks.common.nodes.backend import connect
from elastrec.platform import jobs
from elastrec.platform.clusters.local import LocalCluster
from elastrec.platform.clusters.pods import PodSize
from elastrec.platform.data.generating.generator import GenerateReport, GenerateSpec, generate, training_data_for
from elastrec.platform.specs.metrics import TrainingMetrics

GOOD, SLOW = "good-node", "slow-node"
_SLOW_SHARE = 0.2
"""Of the cores that a pod on the slow node was granted."""
_LIMITS: dict[str, dict[str, Any]] = {
    "worker": {
        "model": {"embedding_dimension": 16, "options": {"layer_sizes": [1024, 512, 256]}},
        "worker": {"count": 2, "cores": 0.5},
        "parameter_server": {"count": 1, "cores": 0.5, "memory": "10Gi"},
    },
    "parameter_server": {
        "model": {"embedding_dimension": 63, "options": {"layer_sizes": [8]}},
        "worker": {"count": 1, "cores": 0.5},
        "parameter_server": {"count": 2, "cores": 0.1},
    },
}
"""By the role of the slow pod: a network of some size and a server that has enough; long rows and hardly a network."""
_GOALS = {"worker": {"restart": -37.0, "none": -48.5}, "parameter_server": {"restart": -27.6, "none": -36.4}}
_WORDS = {"worker": "worker-", "parameter_server": "ps-"}
"""In the names of its pods."""
_MODEL_ROWS = 40_000_000
"""Of the tables that the jobs of a slow worker continue, together; some 3.8 GB, a small model for a click log."""
_EPOCHS = {"worker": 22, "parameter_server": 44}
_LOG = GenerateSpec(path="clicks", rows_per_day=20_000, days=2, seed=1, lists=0)
_NODE, _WEIGHT = PodSize(3.0, 16 * 2**30), 8
_CONSISTENCY: dict[str, dict[str, Any]] = {
    "async": {"mode": "async"},
    "bsp": {"mode": "bsp"},
    "ssp": {"mode": "ssp", "staleness": 4},
}


@dataclass(frozen=True)
class Surroundings:
    """The surroundings of all jobs of the benchmark.

    Attributes:
        platform: platform with both nodes.
        without_slow: the same, where the slow node takes no new pods.
        slow_agent: agent of the slow node.
        log: training data of all jobs.
        folder: folder for other logs.
    """

    platform: jobs.Platform
    without_slow: jobs.Platform
    slow_agent: LocalCluster
    log: GenerateReport
    folder: Path


def job_content(
    log: GenerateReport, mode: str, epochs: int, role: str = "worker", *, moves: bool = True
) -> dict[str, Any]:
    """Pods of the role limit the speed of the job."""
    limits = _LIMITS[role]
    spec = {
        "model": {"architecture": "wide_and_deep", **limits["model"]},
        "data": json.loads(training_data_for(log.spec).model_dump_json(exclude_none=True)),
        "training": {
            "batch_size": 512, "batches_per_shard": 2, "epochs": epochs, "consistency": _CONSISTENCY[mode],
        },
        "resources": {
            "master": {"cores": 0.2, "memory": "512Mi"},
            "worker": {"memory": "2Gi", **limits["worker"]},
            "parameter_server": {"memory": "6Gi", **limits["parameter_server"]},
        },
        "checkpoint": {"interval": "0s"},
    }  # fmt: skip
    if not moves:
        spec["faults"] = {"slow_pod_moves": 0}
    return {"metadata": {"name": "slow"}, "spec": spec}


class SlowNode:
    """Slows down every pod of a job on the node. It is called repeatedly, because the agent may set limits again.

    Attributes:
        seen: names of those pods.
    """

    def __init__(self, agent: LocalCluster) -> None:
        self._agent, self._agent_id = agent, agent.agent().agent_id
        self.seen: set[str] = set()

    def __call__(self, job_id: str, seconds: float, metrics: TrainingMetrics) -> None:
        for pod in self._agent.list(job_id):
            self.seen.add(pod.name)
            hold_back(self._agent_id, pod.uid, _SLOW_SHARE * pod.size.cores)


class Restart:
    """Restarts a job once on the good node, when so many seconds of its training are over."""

    def __init__(self, platform: jobs.Platform, seconds: float) -> None:
        self._platform, self._seconds = platform, seconds
        self.is_done = False

    def __call__(self, job_id: str, seconds: float, metrics: TrainingMetrics) -> None:
        if not self.is_done and seconds >= self._seconds:
            self.is_done = True
            restart(self._platform, job_id, {})


def moved_seconds(trained: Trained) -> float:
    """From the begin of training until the decision to move the slow pod.

    Raises:
        RuntimeError: there was none.
    """
    return trained.seconds_until("is slow: its successor", "the slow pod was not moved")


@contextlib.contextmanager
def surroundings() -> Iterator[Surroundings]:
    """Both nodes, empty, and an ordinary click log."""
    with private_home() as home, started_nodes(home / "nodes", {GOOD: _NODE, SLOW: _NODE}) as config:
        cluster = connect(config)
        for agent in cluster.agents.values():
            outweigh_other_load(agent.agent().agent_id, _WEIGHT)
        cordoned = msgspec.structs.replace(config, unschedulable=(SLOW,))
        try:
            log = generate(_LOG.model_copy(update={"path": str(home / "clicks")}))
            yield Surroundings(platform_on(home, config), platform_on(home, cordoned), cluster.agents[SLOW], log, home)
        finally:
            cluster.close()


def run(around: Surroundings, content: dict[str, Any], role: str, also: Interfere) -> Trained:
    """Trains a job whose second pod of a role begins on the slow node.

    Raises:
        RuntimeError: there was no such pod.
    """
    slow = SlowNode(around.slow_agent)

    def interfere(job_id: str, seconds: float, metrics: TrainingMetrics) -> None:
        slow(job_id, seconds, metrics)
        also(job_id, seconds, metrics)

    trained = train(around.platform, content, interfere)
    if not any(f"-{_WORDS[role]}" in pod for pod in slow.seen):
        raise RuntimeError(f"no {role} was on the slow node; its pods: {sorted(slow.seen)}")
    return trained


def measure(arguments: argparse.Namespace) -> list[Figure]:
    with surroundings() as around, OtherLoad() as load:
        expect_limits(around.platform, "slow_worker")
        role = arguments.role
        epochs = arguments.epochs or _EPOCHS[role]
        content, alone = (job_content(around.log, arguments.mode, epochs, role, moves=moves) for moves in (True, False))
        if role == "worker":
            continue_model(around.platform, [content, alone], _LOG, around.folder / "model", _MODEL_ROWS)
        sides = Sides(
            "moved",
            helped=lambda: run(around, content, role, leave_alone),
            alone=lambda: run(around, alone, role, leave_alone),
            restarted=lambda seconds: run(around, alone, role, Restart(around.without_slow, seconds)),
            decided_after=moved_seconds,
        )
        measured = sides.measure(arguments.rounds)
    settings = {
        "mode": arguments.mode, "role": role, "workers": content["spec"]["resources"]["worker"]["count"],
        "slow_share": _SLOW_SHARE, "all_cores": round(load.cores, 2),
    }  # fmt: skip
    name = "slow_worker" if role == "worker" else "slow_worker.server"
    return sides.figures(name, measured, _GOALS[role], settings)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--role", choices=tuple(_LIMITS), default="worker", help="of the slow pod (default worker)")
    parser.add_argument("--mode", choices=tuple(_CONSISTENCY), default="bsp", help="how workers wait (default bsp)")
    parser.add_argument("--rounds", type=int, default=1, help="of all three sides (default 1)")
    parser.add_argument("--epochs", type=int, help=f"over 20,000 rows (default {_EPOCHS})")


if __name__ == "__main__":
    run_benchmark(__doc__, measure, add_options, has_pods=True)
