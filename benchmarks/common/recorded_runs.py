"""Real jobs on the local cluster, and their records for replays in the simulator: starts, steps, pods over time.

Every pod has a fraction of a core by its control group. The record comes from the job's ledger (the worker and the
times of all trained rows, on the job's clock), from its migrations, and from its master's profile for rounds of
scaling.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import psutil

from benchmarks.common.jobs import Ended, private_platform, run_job
from elastrec.platform import jobs
from elastrec.platform.data.generating.generator import GenerateReport, GenerateSpec, generate, training_data_for
from elastrec.platform.jobs.scaling.asking import ask_for_shape
from elastrec.platform.master.scaling.facts import observation_of
from elastrec.platform.specs.environment import POD
from elastrec.platform.specs.metrics import Role, TrainingMetrics
from elastrec.platform.specs.shape import MigrationSeen, PlacesChange
from elastrec.platform.transport.messages.profile import Profile

BATCH, DIMENSION = 512, 16
_SHARD_BATCHES = 4
_ROWS = 20_000


@dataclass(frozen=True)
class Case:
    """One real run.

    Attributes:
        samples: trained in all; a multiple of the log's rows.
        lose_at, change_at: share of the shards done when a worker is killed, or when another shape is ordered.
        workers_to, servers_to: that shape; 0: as many as before.
    """

    name: str
    workers: int
    servers: int
    worker_cores: float
    server_cores: float
    epochs: int
    lose_at: float | None = None
    change_at: float | None = None
    workers_to: int = 0
    servers_to: int = 0


CASES = (
    Case("one worker", 1, 1, 0.4, 0.3, epochs=40),
    Case("two workers", 2, 1, 0.4, 0.3, epochs=80),
    Case("three workers, two servers", 3, 2, 0.4, 0.2, epochs=100),
    Case("small workers", 2, 1, 0.25, 0.3, epochs=50),
    Case("small server", 2, 1, 0.4, 0.2, epochs=80),
    Case("two small servers", 2, 2, 0.3, 0.2, epochs=60),
    Case("four small workers", 4, 2, 0.25, 0.2, epochs=100),
    Case("a worker is killed", 2, 1, 0.4, 0.3, epochs=80, lose_at=0.4),
    Case("a small worker is killed", 2, 1, 0.3, 0.3, epochs=60, lose_at=0.3),
    Case("grows to three workers", 1, 1, 0.4, 0.3, epochs=80, change_at=0.2, workers_to=3),
    Case("small workers grow to three", 1, 2, 0.3, 0.2, epochs=60, change_at=0.3, workers_to=3),
    Case("gets a second server", 2, 1, 0.4, 0.2, epochs=80, change_at=0.3, servers_to=2),
    Case("small workers get a second server", 3, 1, 0.25, 0.2, epochs=80, change_at=0.3, servers_to=2),
    Case("gives a server back", 2, 2, 0.3, 0.3, epochs=60, change_at=0.3, servers_to=1),
)
"""Two that lose a worker, two that get workers, three whose servers change; durations are never taken from the
predicted run itself."""


class MeasuredStep(msgspec.Struct, frozen=True, kw_only=True):
    """The steps with one number of workers and servers.

    Attributes:
        step_seconds: mean of a worker's step.
        worker_seconds: number of measured ones.
        compute_seconds: the part of a step without waits for servers, from the master's profile; None if the profile
            has none, because pods were joining or leaving.
    """

    workers: int
    servers: int
    step_seconds: float
    worker_seconds: float
    compute_seconds: float | None = None


class RecordedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A real run; times are seconds on its job's clock, which begins when its master does.

    Attributes:
        started_seconds: when its first worker leased its first shard.
        ended_seconds: when its last training shard was done; the completion time to be predicted.
        dense_bytes: of the model's dense parameters.
        pods_up: (seconds since the first shard, workers and servers that trained from then on).
        repeated_samples: trained a second time after a loss.
        lose_at, change_at, workers_to, servers_to: of its case.
        delay_seconds: from the loss or the order until the wanted number of workers trained, or until rows were handed
            over to the wanted servers; None without either.
        pause_seconds: of the hand-over of rows; None if servers did not change.
    """

    name: str
    workers: int
    servers: int
    worker_cores: float
    server_cores: float
    samples: int
    repeated_samples: int
    started_seconds: float
    ended_seconds: float
    dense_bytes: float
    steps: tuple[MeasuredStep, ...]
    pods_up: tuple[tuple[float, int, int], ...]
    lose_at: float | None = None
    change_at: float | None = None
    workers_to: int = 0
    servers_to: int = 0
    delay_seconds: float | None = None
    pause_seconds: float | None = None


def job_content(log: GenerateReport, case: Case) -> dict[str, Any]:
    """The job file of a case."""
    spec = {
        "model": {"architecture": "dlrm", "embedding_dimension": DIMENSION,
                  "options": {"bottom_layer_sizes": [256, 64], "top_layer_sizes": [256, 128]}},
        "data": json.loads(training_data_for(log.spec).model_dump_json(exclude_none=True)),
        "training": {"batch_size": BATCH, "batches_per_shard": _SHARD_BATCHES, "epochs": case.epochs},
        "resources": {
            "master": {"cores": 0.2, "memory": "512Mi"},
            "worker": {"count": case.workers, "cores": case.worker_cores, "memory": "2Gi"},
            "parameter_server": {"count": case.servers, "cores": case.server_cores, "memory": "1Gi"},
        },
        "scaling": {
            "maximum_workers": max(case.workers, case.workers_to), "start": "job_file",
            "maximum_parameter_servers": max(case.servers, case.servers_to),
        },
        "checkpoint": {"interval": "0s"},
        "continual": {"start_from": "nothing"},
    }  # fmt: skip
    return {"metadata": {"name": "recorded"}, "spec": spec}


def record(cases: tuple[Case, ...], folder: str, say: Callable[[str], None], weight: int = 128) -> list[RecordedRun]:
    """Runs every case on a node agent of its own.

    Args:
        folder: for the training data; emptied by the caller.
        weight: of all pods against other load.

    Raises:
        RuntimeError: a job failed, or could not be changed at the intended time.
    """
    spec = GenerateSpec(path=folder, rows_per_day=_ROWS, days=2, seed=1, dense=8, sparse=12, lists=0)
    log = generate(spec)
    runs = []
    for case in cases:
        with private_platform(weight=weight) as platform:
            ended = run_job(platform, job_content(log, case), _Disturb(platform, case))
        run = recorded(case, ended)
        say(f"{case.name}: {run.ended_seconds:.1f} s, {run.samples} samples, pods {run.pods_up}")
        runs.append(run)
    return runs


class _Disturb:
    """Applies the case's fault or change once, at its time; never ends the job."""

    def __init__(self, platform: jobs.Platform, case: Case) -> None:
        self._platform, self._case, self._done = platform, case, False

    def __call__(self, metrics: TrainingMetrics) -> bool:
        at = self._case.lose_at if self._case.lose_at is not None else self._case.change_at
        done, total = metrics.shards_done, metrics.shards_total
        if at is None or self._done or not total or done < at * total or done == total:
            return False
        self._done = True
        if self._case.lose_at is not None:
            _kill_a_worker(metrics.job)
        else:
            self._change(metrics.job)
        return False

    def _change(self, job_id: str) -> None:
        wanted = {Role.WORKER: self._case.workers_to, Role.PARAMETER_SERVER: self._case.servers_to}
        change = {role: PlacesChange(count=count) for role, count in wanted.items() if count}
        answer = ask_for_shape(self._platform, job_id, change)
        if not answer.accepted:
            raise RuntimeError(f"the master refused {change}: {answer.reason}")


def _kill_a_worker(job_id: str) -> None:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            is_it = process.environ().get(POD, "").startswith(f"{job_id}-worker")
            if is_it and "elastrec.trainers.worker" in process.cmdline():
                os.kill(process.pid, signal.SIGKILL)
                return
    raise RuntimeError(f"job {job_id} has no worker process to kill")


def recorded(case: Case, ended: Ended) -> RecordedRun:
    """The record from the ledger, the migrations and the profile of an ended job.

    Raises:
        RuntimeError: its master no longer had a profile, or its servers did not change as ordered.
    """
    if ended.profile is None:
        raise RuntimeError(f"{case.name}: its master was gone before its profile was read")
    table = ended.ledger.to_pandas()
    table = table[(table["kind"] == "train") & (table["ended_seconds"] > table["began_seconds"])]
    begin, end = float(table["began_seconds"].min()), float(table["ended_seconds"].max())
    moves = [each for each in ended.explanation.migrations if each.pause_seconds is not None]
    if case.servers_to and len(moves) != 1:
        raise RuntimeError(f"{case.name}: {len(moves)} changes of servers are done; there should be one")
    timeline = _pods_up(case, table, begin, moves)
    trained = int((table["to"] - table["from"]).sum())
    repeated = int(table["repeated"].sum())
    done = (table.sort_values("ended_seconds")["ended_seconds"] - begin).tolist()
    return RecordedRun(
        name=case.name, workers=case.workers, servers=case.servers, worker_cores=case.worker_cores,
        server_cores=case.server_cores, samples=trained - repeated, repeated_samples=repeated, started_seconds=begin,
        ended_seconds=end, dense_bytes=float(ended.profile.dense_bytes),
        steps=_steps(table, timeline, begin, moves, ended.profile), pods_up=tuple(timeline),
        lose_at=case.lose_at, change_at=case.change_at, workers_to=case.workers_to, servers_to=case.servers_to,
        delay_seconds=_delay(case, timeline, done), pause_seconds=moves[0].pause_seconds if case.servers_to else None,
    )  # fmt: skip


def _pods_up(
    case: Case, table: pd.DataFrame, begin: float, moves: Sequence[MigrationSeen]
) -> list[tuple[float, int, int]]:
    """Workers by their first and last shards, servers by the moments when rows were handed over to others."""
    end = float(table["ended_seconds"].max())
    spans = table.groupby("pod", observed=True).agg(began=("began_seconds", "min"), ended=("ended_seconds", "max"))
    moments: list[tuple[float, int, int]] = []
    for _, span in spans.iterrows():
        moments.append((float(span["began"]) - begin, 1, 0))
        # Workers that stop within a shard of the end found no more shards, and were not lost.
        if span["ended"] < end - _longest_shard(table):
            moments.append((float(span["ended"]) - begin, -1, 0))
    for each in moves:
        assert each.handing_over_seconds is not None
        moments.append((each.handing_over_seconds - begin, 0, each.servers_after - each.servers_before))
    workers, servers, timeline = 0, case.servers, []
    for seconds, more_workers, more_servers in sorted(moments):
        workers, servers = workers + more_workers, servers + more_servers
        timeline.append((seconds, workers, servers))
    return timeline


def _delay(case: Case, timeline: list[tuple[float, int, int]], done: list[float]) -> float | None:
    """Seconds until the replaced worker or the last requested one trained, or until rows were handed over.

    Args:
        done: times at which shards were done, ascending; the loss or the request came at a share of them.
    """
    if case.lose_at is not None:
        lost = next(at for (_, before, _), (at, after, _) in pairwise(timeline) if after < before)
        back = [at for at, up, _ in timeline if at > lost and up >= case.workers]
        return back[0] - lost if back else None
    if case.change_at is not None:
        there = [
            at
            for at, up, servers in timeline
            if up >= case.workers_to and servers == (case.servers_to or case.servers)
        ]  # fmt: skip
        return there[0] - done[int(case.change_at * len(done))] if there else None
    return None


def _longest_shard(table: pd.DataFrame) -> float:
    return float((table["ended_seconds"] - table["began_seconds"]).quantile(0.95))


def _steps(
    table: pd.DataFrame, timeline: list[tuple[float, int, int]], begin: float, moves: Sequence[MigrationSeen],
    profile: Profile,
) -> tuple[MeasuredStep, ...]:  # fmt: skip
    """Steps of a worker by the pods that were up; its first shards, which warm it up, count too.

    A worker leases a shard before the end of the previous one, so that a shard's time is measured from the end of the
    previous one. Hand-overs of rows are not part of a step.
    """
    at = np.array([seconds + begin for seconds, *_ in timeline])
    ups = [(workers, servers) for _, workers, servers in timeline]
    spent: dict[tuple[int, int], list[float]] = {}
    for _, shards in table[table["outcome"] == "done"].sort_values("ended_seconds").groupby("pod", observed=True):
        ends = shards["ended_seconds"].to_numpy()
        begins = np.concatenate([[shards["began_seconds"].min()], ends[:-1]])
        seconds = ends - begins
        for each in moves:
            assert each.ended_seconds is not None and each.handing_over_seconds is not None  # it has a pause
            paused = np.minimum(ends, each.ended_seconds) - np.maximum(begins, each.handing_over_seconds)
            seconds = seconds - np.maximum(paused, 0.0)
        place = np.maximum(np.searchsorted(at, (begins + ends) / 2, side="right") - 1, 0)
        steps = (shards["to"] - shards["from"]).to_numpy() / BATCH
        for moment in np.unique(place).tolist():
            total = spent.setdefault(ups[moment], [0.0, 0.0])
            total[0] += float(seconds[place == moment].sum())
            total[1] += float(steps[place == moment].sum())
    computed = {
        (seen.allocation.workers, seen.allocation.parameter_servers): seen.compute_seconds
        for seen in (observation_of(each) for each in profile.measured if each.steps)
    }
    return tuple(
        MeasuredStep(
            workers=up[0], servers=up[1], step_seconds=seconds / steps, worker_seconds=seconds,
            compute_seconds=_part_of(seconds / steps, computed.get(up)),
        )
        for up, (seconds, steps) in sorted(spent.items())
        if steps > 0
    )  # fmt: skip


def _part_of(step: float, compute: float | None) -> float | None:
    """A part cannot be longer than the whole, which was measured over other steps than it."""
    return None if compute is None else min(compute, step)
