"""Completion time of a job with a hot parameter server: relieved by a move of buckets, left alone, or restarted.

    python -m benchmarks hot_server [--rounds 1] [--output json]

Eight of the 256 buckets, all on one of three servers, contain the ids of half of all look-ups, so every step waits for
that server. The platform relieves it by default. The restart is ordered when the master of the relieved job has
decided; it saves, and continues with four servers with the same cores in total, among which the hot buckets are
distributed evenly. Every pod has a fraction of a core by its control group. Hot and cold rows take 46 and 370 MB, so
that a look-up costs about the same on each server; with cold rows of 1.5 GB, those of the hot server were much cheaper.

All jobs continue one model, as daily jobs do, whose rows come from a pass over distinct ids. Relief copies only the
rows of the hot buckets, a restart saves and restores all of them.

DLRover-RM (Fig. 12) reports 27.6 % less than with stop-and-restart, and 36.4 % less than without intervention. The
relieved job is about 1.75 times as fast as before, so its time would be 43 % less if it were relieved immediately and
copying cost nothing. Both figures depend on the length of the job: the longer it is, the nearer comes the one against
none to that 43 %, and the smaller becomes the one against a restart, which costs this model about 70 s. With cold rows
of 1.5 GB and 120 epochs, they were -32 and -36 %. If the master never relieves a server (`HotServers.look`: return
None), both figures are red.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.continued import Array, continue_model, replace_ids
from benchmarks.common.figures import Figure, OtherLoad, run_benchmark
from benchmarks.common.jobs import expect_limits, private_platform
from benchmarks.common.live_jobs import Sides, Trained, leave_alone, restart, train
from elastrec.platform import jobs
from elastrec.platform.data.generating.generator import GenerateReport, GenerateSpec, generate, training_data_for
from elastrec.platform.specs.metrics import TrainingMetrics
from elastrec.trainers.parameter_server.hashing import buckets_of

_SERVERS, _SERVER_CORES, _WORKERS, _WORKER_CORES = 3, 0.2, 2, 0.5
_BUCKETS, _HOT_BUCKETS, _HOT_SHARE = 256, 8, 0.5
_ROWS, _SPARSE, _HOT_POOL_IDS, _COLD_POOL_IDS = 100_000, 12, 160_000, 40_000
_MODEL_ROWS = 4_000_000
"""Of the tables that the job continues, together; some 3.2 GB."""
_LOG = GenerateSpec(path="clicks", rows_per_day=_ROWS, days=2, seed=1, dense=4, sparse=_SPARSE, lists=0)
_RESTART = {
    "spec.resources.parameter_server.count": _SERVERS + 1,
    "spec.resources.parameter_server.cores": _SERVERS * _SERVER_CORES / (_SERVERS + 1),
}


def hot_ids(table: str, rng: np.random.Generator) -> Array:
    """Ids of a table in the hot buckets: the first ones of server 0, which begins with every third bucket."""
    ids = rng.integers(1, 2**31, _HOT_POOL_IDS)
    return np.asarray(ids[np.isin(buckets_of(ids, table, _BUCKETS), _SERVERS * np.arange(_HOT_BUCKETS))])


def skewed_log(folder: Path) -> GenerateReport:
    """A click log; in each column a share of the ids is drawn from those of the hot buckets."""
    log = generate(_LOG.model_copy(update={"path": str(folder)}))
    rng = np.random.default_rng(3)
    pools = {f"C{i + 1}": hot_ids(f"C{i + 1}", rng) for i in range(_SPARSE)}
    cold = {name: rng.integers(1, 2**31, _COLD_POOL_IDS) for name in pools}

    def drawn(name: str, rows: int) -> Array:
        is_hot = rng.random(rows) < _HOT_SHARE
        return np.where(is_hot, rng.choice(pools[name], rows), rng.choice(cold[name], rows))

    replace_ids(folder, drawn)
    return log


def job_content(log: GenerateReport, epochs: int, *, relieves: bool = True) -> dict[str, Any]:
    """Long rows under Adam and hardly a network: servers are what limits."""
    spec = {
        "model": {"architecture": "wide_and_deep", "embedding_dimension": 63, "options": {"layer_sizes": [8]}},
        "data": json.loads(training_data_for(log.spec).model_dump_json(exclude_none=True)),
        "training": {"batch_size": 2048, "batches_per_shard": 2, "epochs": epochs, "overlap_pull": True},
        "optimizers": {"rows": {"kind": "adam", "learning_rate": 0.001}},
        "resources": {
            "master": {"cores": 0.2, "memory": "512Mi"},
            "worker": {"count": _WORKERS, "cores": _WORKER_CORES, "memory": "2Gi"},
            "parameter_server": {"count": _SERVERS, "cores": _SERVER_CORES, "memory": "3Gi"},
            "virtual_buckets": _BUCKETS,
        },
        "scaling": {"relieve_hot_servers": relieves},
        "checkpoint": {"interval": "0s"},
    }
    return {"metadata": {"name": "hot"}, "spec": spec}


class Restart:
    """Restarts a job once, when so many seconds of its training are over."""

    def __init__(self, platform: jobs.Platform, seconds: float, overrides: dict[str, Any]) -> None:
        self._platform, self._seconds, self._overrides = platform, seconds, overrides
        self.is_done = False

    def __call__(self, job_id: str, seconds: float, metrics: TrainingMetrics) -> None:
        if not self.is_done and seconds >= self._seconds:
            self.is_done = True
            restart(self._platform, job_id, self._overrides)


def relieved_seconds(trained: Trained) -> float:
    """From the begin of training until the first relief.

    Raises:
        RuntimeError: there was none.
    """
    return trained.seconds_until("hot buckets move away", "the hot server was not relieved")


def measure(arguments: argparse.Namespace) -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder, private_platform(cores=6.0) as platform, OtherLoad() as load:
        expect_limits(platform, "hot_server")
        log = skewed_log(Path(folder) / "clicks")
        content, alone = (job_content(log, arguments.epochs, relieves=relieves) for relieves in (True, False))
        continue_model(platform, [content, alone], _LOG, Path(folder) / "model", _MODEL_ROWS)
        sides = Sides(
            "relieved",
            helped=lambda: train(platform, content, leave_alone),
            alone=lambda: train(platform, alone, leave_alone),
            restarted=lambda seconds: train(platform, alone, Restart(platform, seconds, _RESTART)),
            decided_after=relieved_seconds,
        )
        measured = sides.measure(arguments.rounds)
    settings = {
        "server_cores": _SERVER_CORES, "hot_share": _HOT_SHARE, "model_rows": _MODEL_ROWS,
        "all_cores": round(load.cores, 2),
    }  # fmt: skip
    return sides.figures("hot_server", measured, {"restart": -27.6, "none": -36.4}, settings)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=1, help="of all three sides (default 1)")
    parser.add_argument("--epochs", type=int, default=180, help="over 100,000 rows (default 180)")


if __name__ == "__main__":
    run_benchmark(__doc__, measure, add_options, has_pods=True)
