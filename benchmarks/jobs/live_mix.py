"""Six real jobs that share one small node: scaled in three stages, left as their owners sized them, and run by hand.

    python -m benchmarks live_mix [--rounds 1] [--output json]

The jobs arrive one after the other. Three are limited by computing, three fill their servers' memory. Of each kind, one
owner requests too little, one enough and one too much. The node grants hardly more cores than the machine has, which is
less than the sum of the requests, so jobs wait until there is room, as on a full cluster.

`static` is the same platform without plans: a server that the kernel killed for its memory is replaced by one with
twice the memory. `by_hand` has no such replacement: an operator who watches all the time stops the job at the first
kill and restarts it from its newest record, with twice the memory. Each side has its own node agent, and every job
starts with the sizes in its file, without learning from earlier jobs.

The completion time of a job is the time from its arrival until all is trained and saved. Cores count while they are
granted, used or not. If `apply` in `platform/jobs/scaling/rounds.py` changes no job, the first two sides are equal, and
the figures are red.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.common.figures import Figure, OtherLoad, interleave, ratio, run_benchmark
from benchmarks.common.jobs import expect_limits, launched, private_platform
from benchmarks.common.live_jobs import resume
from benchmarks.jobs import growing_tables
from elastrec.platform import jobs
from elastrec.platform.data.generating.generator import GenerateReport, GenerateSpec, generate, training_data_for
from elastrec.platform.jobs.scaling import rounds as scaling
from elastrec.platform.specs.errors import ClusterError, JobNotFoundError
from elastrec.platform.specs.metrics import Phase
from elastrec.platform.specs.scaling import ScalingSettings
from elastrec.trainers.parameter_server.warm_up import warm_kernels

NODE_CORES, _WEIGHT = 2.4, 128
_MASTER_CORES, _WORKER_CORES, _SERVER_CORES = 0.1, 0.25, 0.15
_ROUND_SECONDS, _LOOK_SECONDS, _TIMEOUT_SECONDS = 15.0, 0.5, 1200.0
_EPOCHS_PER_GROWING_EPOCH = 20
"""An epoch of a job that fills memory takes as long as so many of a job that computing limits."""
SETTINGS = ScalingSettings(
    round_interval=_ROUND_SECONDS, least_steps=20, cool_down=0.5 * _ROUND_SECONDS, no_reversal=5.0 * _ROUND_SECONDS
)
"""The jobs last minutes and not hours: as many rounds as an hour has of the default ones."""
_MEBIBYTE = 2**20


@dataclass(frozen=True)
class Owner:
    """The request of one owner, and its time.

    Attributes:
        grows: its tables fill the servers' memory; otherwise computing limits the job.
    """

    name: str
    arrives_seconds: float
    grows: bool
    workers: int = 1
    server_bytes: int = 1024 * _MEBIBYTE


OWNERS = (
    Owner("few-workers", 0.0, grows=False, workers=1),
    Owner("half-memory", 10.0, grows=True, server_bytes=512 * _MEBIBYTE),
    Owner("many-workers", 20.0, grows=False, workers=4),
    Owner("fitting-memory", 30.0, grows=True, server_bytes=1024 * _MEBIBYTE),
    Owner("fitting-workers", 40.0, grows=False, workers=2),
    Owner("double-memory", 50.0, grows=True, server_bytes=2048 * _MEBIBYTE),
)
MOST_WORKERS = 4


@dataclass(frozen=True)
class Logs:
    """What the two kinds of jobs train on."""

    computing: GenerateReport
    growing: GenerateReport


def generate_logs(folder: Path) -> Logs:
    clicks = GenerateSpec(
        path=str(folder / "clicks"), rows_per_day=60_000, days=2, seed=1, dense=8, sparse=12, lists=0
    )  # fmt: skip
    return Logs(generate(clicks), growing_tables.click_log(folder / "growing"))


def job_content(owner: Owner, logs: Logs, side: str, epochs: int) -> dict[str, Any]:
    """The job file of an owner; the sides differ in `scaling` alone.

    Args:
        epochs: of a job that computing limits; a job that fills memory has a twentieth, at least one.
    """
    is_scaled = side == "three_stage"
    if owner.grows:
        content = growing_tables.job_content(
            logs.growing, forecast=is_scaled, server_bytes=owner.server_bytes,
            most_bytes=owner.server_bytes if side == "by_hand" else 2 * 2048 * _MEBIBYTE,
        )  # fmt: skip
        content["spec"]["training"]["epochs"] = max(1, epochs // _EPOCHS_PER_GROWING_EPOCH)
    else:
        spec = {
            "model": {
                "architecture": "dlrm",
                "embedding_dimension": 16,
                "options": {"bottom_layer_sizes": [128, 64], "top_layer_sizes": [128, 64]},
            },
            "data": json.loads(training_data_for(logs.computing.spec).model_dump_json(exclude_none=True)),
            "training": {"batch_size": 512, "batches_per_shard": 10, "epochs": epochs},
            "resources": {
                "worker": {"count": owner.workers, "cores": _WORKER_CORES, "memory": "2Gi"},
                "parameter_server": {"count": 1, "cores": _SERVER_CORES, "memory": "1Gi"},
            },
            "scaling": {"enabled": is_scaled, "minimum_workers": 1, "maximum_workers": MOST_WORKERS},
            "checkpoint": {"interval": "10s"},
            "continual": {"start_from": "nothing"},
        }
        content = {"spec": spec}
    content["metadata"] = {"name": owner.name}
    content["spec"]["scaling"]["start"] = "job_file"
    content["spec"]["resources"]["master"] = {"cores": _MASTER_CORES, "memory": "512Mi"}
    if owner.grows:
        content["spec"]["resources"]["parameter_server"]["cores"] = _SERVER_CORES
    return content


@dataclass
class Side:
    """The results of the six jobs on one side.

    Attributes:
        seconds: completion times by owner.
        core_seconds: granted to all pods, from the first launch to the end of the last job.
        kills: number of servers that the kernel killed for memory.
        plans: number of plans that were carried out.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    core_seconds: float = 0.0
    kills: int = 0
    plans: int = 0

    @property
    def mean_seconds(self) -> float:
        return statistics.mean(self.seconds.values())


@dataclass
class Running:
    """A job that was launched and is not done."""

    owner: Owner
    job_id: str
    is_restarted: bool = False


def round_of(platform: jobs.Platform, running: list[Running], side: Side) -> None:
    """A round of scaling as the DAG `auto_scaling` has it; a cluster that does not answer just then costs the round."""
    with contextlib.suppress(ClusterError, JobNotFoundError):  # or one of the jobs has ended meanwhile
        decided, _ = scaling.plan(platform, SETTINGS, [each.job_id for each in tuple(running)])
        for plan in decided.plans:
            applied = scaling.apply(platform, plan)
            side.plans += applied.changed
            print(f"  {plan.job_id}: {applied.before} → {applied.after}: {applied.reason}", file=sys.stderr)


@contextlib.contextmanager
def rounds_beside(platform: jobs.Platform, running: list[Running], side: Side) -> Iterator[None]:
    """Rounds of scaling from a thread until the block ends: a launch takes seconds, and delays none."""
    is_over = threading.Event()

    def run() -> None:
        while not is_over.wait(_ROUND_SECONDS):
            if running:
                round_of(platform, running, side)

    thread = threading.Thread(target=run, name="rounds", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def look(platform: jobs.Platform, each: Running, side: Side, *, restarts: bool) -> bool:
    """Checks a job, as the operator who restarts it does; returns whether it has ended.

    Raises:
        RuntimeError: it failed.
    """
    seen = jobs.observe(platform, each.job_id)
    if seen.metrics.phase in (Phase.EVALUATING, Phase.SUCCEEDED):
        return True
    kills = growing_tables.kills_of(jobs.explanation(platform, each.job_id)) if each.owner.grows else 0
    if restarts and kills and not each.is_restarted:
        each.is_restarted = True
        side.kills += kills
        more = 2 * each.owner.server_bytes
        jobs.stop(platform, each.job_id, "a server was killed for its memory")
        resume(
            platform, each.job_id,
            {
                "spec.resources.parameter_server.memory": more,
                "spec.scaling.maximum_parameter_server_memory": more,
            },
            _TIMEOUT_SECONDS,
        )  # fmt: skip
    elif seen.metrics.phase.is_final:
        raise RuntimeError(f"{each.job_id} failed:\n{jobs.failure_report(platform, each.job_id)}")
    return False


def granted_cores(platform: jobs.Platform) -> float:
    """Of all pods now."""
    return sum(node.size.cores - node.free.cores for node in platform.launcher.nodes())


def run_owner(
    platform: jobs.Platform,
    owner: Owner,
    content: dict[str, Any],
    running: list[Running],
    side: Side,
    *,
    restarts: bool,
) -> None:
    """The job of an owner, from its arrival to its end; it may wait for room on the node.

    Args:
        running: has the job from its launch to its end.

    Raises:
        RuntimeError: the job failed or did not end in time.
    """
    time.sleep(owner.arrives_seconds)
    arrived_at = time.monotonic()
    with launched(platform, content, _TIMEOUT_SECONDS) as job_id:
        each = Running(owner, job_id)
        running.append(each)
        try:
            while not look(platform, each, side, restarts=restarts):
                if time.monotonic() > arrived_at + _TIMEOUT_SECONDS:
                    raise RuntimeError(f"{job_id} did not end")
                time.sleep(_LOOK_SECONDS)
            side.seconds[owner.name] = time.monotonic() - arrived_at
        finally:
            running.remove(each)
        if owner.grows:
            side.kills += growing_tables.kills_of(jobs.explanation(platform, job_id))
    print(f"  {owner.name}: {side.seconds[owner.name]:.1f} s", file=sys.stderr)


def run_mix(logs: Logs, name: str, epochs: int, owners: Sequence[Owner] = OWNERS) -> Side:
    """The jobs of the owners on a node of their own."""
    side, running = Side(), list[Running]()
    print(f"{name}:", file=sys.stderr)
    with private_platform(cores=NODE_CORES, weight=_WEIGHT) as platform, contextlib.ExitStack() as rounds:
        expect_limits(platform, "live_mix")
        if name == "three_stage":
            rounds.enter_context(rounds_beside(platform, running, side))
        looked = time.monotonic()
        with ThreadPoolExecutor(len(owners), "owner") as pool:
            left = {
                pool.submit(
                    run_owner, platform, owner, job_content(owner, logs, name, epochs), running, side,
                    restarts=name == "by_hand",
                )
                for owner in owners
            }  # fmt: skip
            while left:
                done, left = wait(left, _LOOK_SECONDS, FIRST_COMPLETED)
                now = time.monotonic()
                side.core_seconds += granted_cores(platform) * (now - looked)
                looked = now
                for job in done:
                    job.result()
    return side


def figures_of(sides: Mapping[str, list[Side]], other_cores: float) -> list[Figure]:
    """Of three stages against each other side, in the same round."""
    settings = {
        "seconds": {
            name: [{owner: round(seconds, 1) for owner, seconds in side.seconds.items()} for side in of_name]
            for name, of_name in sides.items()
        },
        "plans": [side.plans for side in sides["three_stage"]], "node_cores": NODE_CORES,
        "all_cores": round(other_cores, 2),
    }  # fmt: skip
    figures = []
    ours = sides["three_stage"]
    for name in ("static", "by_hand"):
        figures += [
            Figure(f"live_mix.{kind}_to_{name}", ratio([of(side) for side in ours], [of(side) for side in sides[name]]),
                   unit, at_most=1.0, settings=settings if kind == "mean_seconds" else {})
            for kind, of, unit in (
                ("mean_seconds", lambda side: side.mean_seconds, "of its mean completion time"),
                ("longest_seconds", lambda side: max(side.seconds.values()), "of its longest completion time"),
                ("core_seconds", lambda side: side.core_seconds, "of its core-seconds"),
            )
        ]  # fmt: skip
    return figures + [
        Figure(f"live_mix.{name}.kills", sum(side.kills for side in of_name), "by the kernel, in all rounds",
               at_most=0 if name == "three_stage" else None)
        for name, of_name in sides.items()
    ]  # fmt: skip


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """The three sides in turn."""
    # Servers that compile their kernels have taken more than their limit before the first row.
    warm_kernels()
    with tempfile.TemporaryDirectory() as folder, OtherLoad() as load:
        logs = generate_logs(Path(folder))

        def side(name: str) -> Callable[[], Side]:
            return lambda: run_mix(logs, name, arguments.epochs)

        # On a machine that has started no pod yet the first side has taken 1.4 times the seconds of the others.
        run_mix(logs, "static", 1, OWNERS[:2])
        sides = interleave({name: side(name) for name in ("three_stage", "static", "by_hand")}, arguments.rounds)
    return figures_of(sides, load.cores)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=1, help="of all three sides (default 1, 14 minutes)")
    parser.add_argument("--epochs", type=int, default=80, help="of the jobs that computing limits (default 80)")


if __name__ == "__main__":
    run_benchmark(__doc__, measure, add_options, has_pods=True)
