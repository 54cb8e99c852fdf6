"""The sides of `equal_models`: equal step sizes, the rows of the shards, and the figures."""

from __future__ import annotations

import pyarrow as pa
import pytest
import torch

from benchmarks.models.equal_models import (
    BATCH,
    MODES,
    ONE_PROCESS,
    click_log,
    figures_of,
    job_content,
    rows_before_the_last_worker,
)
from benchmarks.processes.joining_workers import Joining
from benchmarks.processes.torchrec_alone import read, train_and_score
from elastrec.platform.data.generating.generator import GenerateReport
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.row_ranges import shard_order


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> GenerateReport:
    return click_log(tmp_path_factory.mktemp("data") / "clicks", 40_000)


def test_a_step_takes_the_same_samples_and_a_shard_holds_the_same_rows_in_every_mode(log: GenerateReport) -> None:
    for mode in (ONE_PROCESS, *MODES):
        training = TrainingJob.model_validate(job_content(log, mode, 1)).spec.training
        pushes_of_a_step = MODES[mode]["workers"] if training.consistency.mode == "bsp" else 1
        assert training.batch_size * pushes_of_a_step == BATCH
        assert training.batch_size * training.batches_per_shard == 32 * BATCH


def test_the_single_process_reads_every_row_once_in_the_order_of_a_jobs_shards(log: GenerateReport) -> None:
    job = TrainingJob.model_validate(job_content(log, ONE_PROCESS, 1))
    trained = read(job, 0, BATCH, None, shuffled=True)
    as_they_lie = read(job, 0, BATCH, None, shuffled=False)
    assert sum(len(batch.label_B) for batch in trained) == 40_000
    assert sum(float(batch.label_B.sum()) for batch in trained) == log.days[0].positives
    ends = [number for number, batch in enumerate(trained) if len(batch.label_B) < BATCH]
    order = shard_order(1, 0, 3).tolist()
    assert ends == [32 * order.index(2) + 14]  # 40,000 rows are two shards of 16,384 and 7,232 rows
    first = trained[: 32 if order[0] < 2 else 15]
    ids = torch.cat([batch.sparse["C1"].values() for batch in first])
    there = torch.cat([batch.sparse["C1"].values() for batch in as_they_lie])[order[0] * 32 * BATCH :][: len(ids)]
    assert torch.equal(ids.sort().values, there.sort().values)
    assert not torch.equal(ids, there)


def test_the_single_process_learns_something_of_the_teacher(log: GenerateReport) -> None:
    answer = train_and_score({"content": job_content(log, ONE_PROCESS, 1), "most_scored": None})
    best = log.days[1].best_auc
    assert answer["rows"] == 40_000
    assert best is not None and 0.6 < answer["auc"][-1] < best


def test_rows_trained_before_the_last_worker_was_up_are_counted_apart() -> None:
    def attempt(pod: str, began: float, ended: float) -> dict[str, object]:
        return {"kind": "train", "pod": pod, "began_seconds": began, "ended_seconds": ended, "from": 10, "to": 110}

    attempts = [attempt("w-0", 0.0, 1.0), attempt("w-0", 1.0, 2.0), attempt("w-0", 2.0, 3.0), attempt("w-1", 2.5, 3.0)]
    assert rows_before_the_last_worker(pa.Table.from_pylist(attempts)) == 200


def test_the_figures_are_the_distances_between_medians_and_to_the_teacher(log: GenerateReport) -> None:
    best = log.days[1].best_auc
    assert best is not None
    results = {"a": [best - 0.001, best - 0.004, best - 0.003], "b": [best - 0.009, best - 0.009, best]}
    spread, below, *each = figures_of(results, log, 3)
    assert (spread.value, spread.met) == (pytest.approx(0.006), False)
    assert (below.value, below.met) == (pytest.approx(0.009), True)
    assert [figure.value for figure in each] == [best - 0.003, best - 0.009]


def test_rates_of_workers_that_join_rise_to_those_of_the_job_and_of_all_workers_only_on_request() -> None:
    newcomers = Joining(ramp_steps=4)
    assert [newcomers.scale_of(1, step) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert newcomers.scale_of(0, 0) == 1.0
    everyone = Joining(ramp_steps=2, ramp_from=0.5, all_ramp=True)
    assert [everyone.scale_of(worker, step) for worker in (0, 3) for step in range(3)] == [0.75, 1.0, 1.0] * 2
    assert Joining(rate_scale=0.5).scale_of(0, 0) == Joining(rate_scale=0.5).scale_of(1, 9) == 0.5
