"""Real jobs on the local cluster, and what the simulator has to know to replay them: starts, steps, workers over time.

Every pod has a fraction of a core by its control group. What is recorded comes from the job's own ledger: who trained
which rows from when to when, on the job's clock.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable
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
from elastrec.platform.jobs.watching.masters import wait_for_master
from elastrec.platform.specs.environment import POD
from elastrec.platform.specs.metrics import Role, TrainingMetrics
from elastrec.platform.specs.shape import PlacesChange
from elastrec.platform.transport.messages.observer import ChangeShape, ShapeAnswer

BATCH = 512
_SHARD_BATCHES = 4
_ROWS = 20_000


@dataclass(frozen=True)
class Case:
    """One real run.

    Attributes:
        samples: trained in all; a multiple of the log's rows.
        lose_at, grow_at: share of the shards done when a worker is killed, or when it gets `grow_to` workers.
    """

    name: str
    workers: int
    servers: int
    worker_cores: float
    server_cores: float
    epochs: int
    lose_at: float | None = None
    grow_at: float | None = None
    grow_to: int = 0


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
    Case("grows to three workers", 1, 1, 0.4, 0.3, epochs=80, grow_at=0.2, grow_to=3),
    Case("small workers grow to three", 1, 2, 0.3, 0.2, epochs=60, grow_at=0.3, grow_to=3),
)
"""Two that lose a worker and two that grow: how long either takes is never asked of the run itself."""


class RecordedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A real run; times are seconds on its job's clock, which begins when its master does.

    Attributes:
        started_seconds: when its first worker took its first shard.
        ended_seconds: when its last training shard was done: the completion time that is to be predicted.
        step_seconds: by number of workers that were up, mean of a worker's step, and how many seconds stand behind it.
        workers_up: (seconds since the first shard, workers that trained from then on).
        repeated_samples: trained a second time after a loss.
        lose_at, grow_at, grow_to: of its case.
        delay_seconds: from the loss or the order until as many workers trained as were wanted; None without either.
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
    step_seconds: dict[int, tuple[float, float]]
    workers_up: tuple[tuple[float, int], ...]
    lose_at: float | None = None
    grow_at: float | None = None
    grow_to: int = 0
    delay_seconds: float | None = None


def job_content(log: GenerateReport, case: Case) -> dict[str, Any]:
    """The job file of a case."""
    spec = {
        "model": {"architecture": "dlrm", "embedding_dimension": 16,
                  "options": {"bottom_layer_sizes": [256, 64], "top_layer_sizes": [256, 128]}},
        "data": json.loads(training_data_for(log.spec).model_dump_json(exclude_none=True)),
        "training": {"batch_size": BATCH, "batches_per_shard": _SHARD_BATCHES, "epochs": case.epochs},
        "resources": {
            "master": {"cores": 0.2, "memory": "512Mi"},
            "worker": {"count": case.workers, "cores": case.worker_cores, "memory": "2Gi"},
            "parameter_server": {"count": case.servers, "cores": case.server_cores, "memory": "1Gi"},
        },
        "scaling": {"maximum_workers": max(case.workers, case.grow_to), "start": "job_file"},
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
        RuntimeError: a job failed, or nothing could be done to it at the wanted moment.
    """
    spec = GenerateSpec(path=folder, rows_per_day=_ROWS, days=2, seed=1, dense=8, sparse=12, lists=0)
    log = generate(spec)
    runs = []
    for case in cases:
        with private_platform(weight=weight) as platform:
            ended = run_job(platform, job_content(log, case), _Disturb(platform, case))
        run = recorded(case, ended)
        say(f"{case.name}: {run.ended_seconds:.1f} s, {run.samples} samples, workers {run.workers_up}")
        runs.append(run)
    return runs


class _Disturb:
    """Does what the case wants, once, at its moment; never ends the job."""

    def __init__(self, platform: jobs.Platform, case: Case) -> None:
        self._platform, self._case, self._done = platform, case, False

    def __call__(self, metrics: TrainingMetrics) -> bool:
        at = self._case.lose_at if self._case.lose_at is not None else self._case.grow_at
        done, total = metrics.shards_done, metrics.shards_total
        if at is None or self._done or not total or done < at * total or done == total:
            return False
        self._done = True
        if self._case.lose_at is not None:
            _kill_a_worker(metrics.job)
        else:
            self._grow(metrics.job)
        return False

    def _grow(self, job_id: str) -> None:
        client = wait_for_master(self._platform, job_id)
        try:
            answer = client.call(
                ChangeShape(change={Role.WORKER: PlacesChange(count=self._case.grow_to)}),
                ShapeAnswer,
                timeout_seconds=15.0,
                remember=True,
            )
        finally:
            client.close()
        if not answer.accepted:
            raise RuntimeError(f"the master refused {self._case.grow_to} workers: {answer.reason}")


def _kill_a_worker(job_id: str) -> None:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            is_it = process.environ().get(POD, "").startswith(f"{job_id}-worker")
            if is_it and "elastrec.trainers.worker" in process.cmdline():
                os.kill(process.pid, signal.SIGKILL)
                return
    raise RuntimeError(f"job {job_id} has no worker process to kill")


def recorded(case: Case, ended: Ended) -> RecordedRun:
    """What follows from the ledger of a job that has ended."""
    table = ended.ledger.to_pandas()
    table = table[(table["kind"] == "train") & (table["ended_seconds"] > table["began_seconds"])]
    begin, end = float(table["began_seconds"].min()), float(table["ended_seconds"].max())
    spans = table.groupby("pod", observed=True).agg(began=("began_seconds", "min"), ended=("ended_seconds", "max"))
    moments = []
    for _, span in spans.iterrows():
        moments.append((float(span["began"]) - begin, 1))
        # Workers that stop within a shard of the end have found no more to do: that is the tail, not a loss.
        if span["ended"] < end - _longest_shard(table):
            moments.append((float(span["ended"]) - begin, -1))
    up, timeline = 0, []
    for seconds, change in sorted(moments):
        up += change
        timeline.append((seconds, up))
    trained = int((table["to"] - table["from"]).sum())
    repeated = int(table["repeated"].sum())
    return RecordedRun(
        name=case.name, workers=case.workers, servers=case.servers, worker_cores=case.worker_cores,
        server_cores=case.server_cores, samples=trained - repeated, repeated_samples=repeated, started_seconds=begin,
        ended_seconds=end, step_seconds=_steps(table, timeline, begin), workers_up=tuple(timeline),
        lose_at=case.lose_at, grow_at=case.grow_at, grow_to=case.grow_to,
        delay_seconds=_delay(case, timeline, (table.sort_values("ended_seconds")["ended_seconds"] - begin).tolist()),
    )  # fmt: skip


def _delay(case: Case, timeline: list[tuple[float, int]], done: list[float]) -> float | None:
    """Until a lost worker, or the last one of those that were ordered, trained.

    Args:
        done: when each shard was done, rising; the order was given when so large a share of them was.
    """
    if case.lose_at is not None:
        lost = next(at for (_, before), (at, after) in pairwise(timeline) if after < before)
        back = [at for at, up in timeline if at > lost and up >= case.workers]
        return back[0] - lost if back else None
    if case.grow_at is not None:
        there = [at for at, up in timeline if up >= case.grow_to]
        return there[0] - done[int(case.grow_at * len(done))] if there else None
    return None


def _longest_shard(table: pd.DataFrame) -> float:
    return float((table["ended_seconds"] - table["began_seconds"]).quantile(0.95))


def _steps(table: pd.DataFrame, timeline: list[tuple[float, int]], begin: float) -> dict[int, tuple[float, float]]:
    """Seconds per step of a worker by the number of workers up; its first shards, which warm it up, count too.

    A worker fetches a shard before it has done the last one: a shard's own time is that since the one before was done.
    """
    at = np.array([seconds + begin for seconds, _ in timeline])
    ups = np.array([up for _, up in timeline])
    spent: dict[int, list[float]] = {}
    for _, shards in table[table["outcome"] == "done"].sort_values("ended_seconds").groupby("pod", observed=True):
        ends = shards["ended_seconds"].to_numpy()
        begins = np.concatenate([[shards["began_seconds"].min()], ends[:-1]])
        up = ups[np.maximum(np.searchsorted(at, (begins + ends) / 2, side="right") - 1, 0)]
        steps = (shards["to"] - shards["from"]).to_numpy() / BATCH
        for count in np.unique(up).tolist():
            total = spent.setdefault(int(count), [0.0, 0.0])
            total[0] += float((ends - begins)[up == count].sum())
            total[1] += float(steps[up == count].sum())
    return {count: (seconds / steps, seconds) for count, (seconds, steps) in sorted(spent.items()) if steps > 0}
