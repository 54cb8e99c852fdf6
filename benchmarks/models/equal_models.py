"""Whether many workers train the same model as one process: AUC after one pass over the same generated rows.

Compared are torchrec in one process without any server, and jobs of one worker, of four workers async, bsp and ssp(2).
Every side makes steps of the same size: with bsp a step is one minibatch of every worker, so its workers take a quarter
of the batch; with the others each push is a step of its own. The best possible AUC is known from the teacher model that
drew the labels.

    python -m benchmarks equal_models [--rows 2000000] [--rounds 1] [--output json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.common.child import Child, one_core
from benchmarks.common.figures import Figure, interleave, run_benchmark
from benchmarks.common.jobs import private_platform, run_job
from elastrec.platform.data.generating.generator import GenerateReport, GenerateSpec, generate, training_data_for

BATCH, WORKERS, SERVERS = 512, 4, 2
MODES: dict[str, dict[str, Any]] = {
    "one_worker": {"workers": 1, "batch": BATCH, "consistency": {"mode": "async"}},
    "async": {"workers": WORKERS, "batch": BATCH, "consistency": {"mode": "async"}},
    "bsp": {"workers": WORKERS, "batch": BATCH // WORKERS, "consistency": {"mode": "bsp"}},
    "ssp_2": {"workers": WORKERS, "batch": BATCH, "consistency": {"mode": "ssp", "staleness": 2}},
}
ONE_PROCESS = "one_process"


def click_log(folder: Path, rows: int) -> GenerateReport:
    """A day to train on and one to score, with the same true probabilities, so that drift has no effect."""
    spec = GenerateSpec(
        path=str(folder), rows_per_day=rows, days=2, seed=1, dense=4, sparse=6, lists=0, heaps_factor=1.0,
        drift_radians=0.0,
    )  # fmt: skip
    return generate(spec)


def job_content(log: GenerateReport, mode: str, seed: int) -> dict[str, Any]:
    """The job file of one side, from which the single process's model is built, too."""
    of = MODES.get(mode, MODES["one_worker"])
    shard_batches = 32 * BATCH // of["batch"]
    spec = {
        "model": {
            "architecture": "dcn_v2",
            "embedding_dimension": 8,
            "options": {"layer_sizes": [64, 32]},
        },
        "data": json.loads(training_data_for(log.spec).model_dump_json(exclude_none=True)),
        "training": {
            "batch_size": of["batch"],
            "batches_per_shard": shard_batches,
            "seed": seed,
            "consistency": of["consistency"],
        },
        "optimizers": {
            "rows": {"kind": "adagrad", "learning_rate": 0.05},
            "dense": {"kind": "adam", "learning_rate": 0.001},
        },
        # Ids that were seen once or never should say nothing.
        "tables": {f"C{number + 1}": {"initial_range": 0.02} for number in range(log.spec.sparse)},
        "resources": {
            "worker": {"count": of["workers"], "cores": 1.0, "memory": "2Gi"},
            "parameter_server": {"count": SERVERS, "cores": 1.0, "memory": "1Gi"},
        },
        # Only the final record: what is asked is the model, not its safety.
        "checkpoint": {"interval": "0s"},
        "continual": {"start_from": "nothing"},
    }
    return {"metadata": {"name": "equal"}, "spec": spec}


def one_process(content: dict[str, Any], log: GenerateReport) -> float:
    """AUC of torchrec alone, trained by a child process."""
    with Child("benchmarks.processes.torchrec_alone", environment=one_core()) as process:
        answer = process.ask(content=content, most_scored=None)
    expected = sum(day.rows for day in log.days[:-1])
    if answer["rows"] != expected:
        raise RuntimeError(f"one process trained {answer['rows']} samples instead of {expected}")
    return float(answer["auc"][-1])


def rows_before_the_last_worker(ledger: pa.Table) -> int:
    """Rows of the training shards that ended before every worker had begun one.

    With bsp, steps are smaller until then: as many minibatches as there are workers. Their larger gradients reduce the
    step sizes of Adagrad permanently, so the AUC is lower on a machine on which workers start one by one.
    """
    table = ledger.to_pandas()
    table = table[table["kind"] == "train"]
    last = table.groupby("pod", observed=True)["began_seconds"].min().max()
    early = table[table["ended_seconds"] <= last]
    return int((early["to"] - early["from"]).sum())


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """Every side `rounds` times, with another seed each time."""
    with tempfile.TemporaryDirectory() as folder, private_platform() as platform:
        log = click_log(Path(folder) / "clicks", arguments.rows)
        seeds = dict.fromkeys([ONE_PROCESS, *MODES], 0)

        def side(name: str) -> Callable[[], float]:
            def run() -> float:
                seeds[name] += 1
                note = ""
                content = job_content(log, name, seeds[name])
                if name == ONE_PROCESS:
                    auc = one_process(content, log)
                else:
                    ended = run_job(platform, content)
                    metrics = ended.metrics
                    alone = rows_before_the_last_worker(ended.ledger) / arguments.rows
                    note = f", {alone:.1%} of the rows before all workers were up"
                    if metrics.auc is None or metrics.samples_trained != arguments.rows:
                        raise RuntimeError(f"{name}: trained {metrics.samples_trained} samples, AUC {metrics.auc}")
                    auc = metrics.auc
                print(f"{name}, seed {seeds[name]}: AUC {auc:.5f}{note}", file=sys.stderr)
                return auc

            return run

        results = interleave({name: side(name) for name in seeds}, arguments.rounds)
    return figures_of(results, log, arguments.rounds)


def figures_of(results: dict[str, list[float]], log: GenerateReport, rounds: int) -> list[Figure]:
    """The distances, from the median AUC of each side."""
    teacher = log.days[-1].best_auc
    assert teacher is not None, "a generated day has labels of both kinds"
    medians = {name: statistics.median(aucs) for name, aucs in results.items()}
    settings = {
        "rows": log.days[0].rows, "evaluation_rows": log.days[-1].rows, "rounds": rounds, "step": f"{BATCH} samples",
        "bsp_batch_per_worker": BATCH // WORKERS, "workers": WORKERS, "servers": SERVERS, "network": "dcn_v2",
    }  # fmt: skip
    return [
        Figure("equal_models.spread", max(medians.values()) - min(medians.values()), "AUC", at_most=0.002,
               settings=settings),
        Figure("equal_models.below_the_teacher", teacher - min(medians.values()), "AUC", at_most=0.01,
               settings={"teacher": teacher, **settings}),
        *(Figure(f"equal_models.{name}", auc, "AUC", settings={"each": results[name]})
          for name, auc in medians.items()),
    ]  # fmt: skip


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows per day (default 2,000,000)")
    parser.add_argument("--rounds", type=int, default=1, help="rounds of each side, a seed each (default 1)")


if __name__ == "__main__":
    run_benchmark(__doc__, measure, add_options, has_pods=True)
