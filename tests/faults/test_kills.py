"""kill -9 of the master, or of a worker and then a server, does not change the result of a run."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from elastrec.platform.data.generating.generator import GenerateReport, GenerateSpec, generate
from tests.e2e.conftest import write_job
from tests.processes import Elastrec, elastrec_at, pod_processes, wait_for

pytestmark = pytest.mark.services

ROWS = 200_000
BATCH, BATCHES, EPOCHS = 256, 20, 2
TRAINING = {"batch_size": BATCH, "batches_per_shard": BATCHES, "epochs": EPOCHS, "seed": 1}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> GenerateReport:
    folder = tmp_path_factory.mktemp("data") / "clicks"
    return generate(GenerateSpec(path=str(folder), days=2, rows_per_day=ROWS, dense=4, sparse=8, seed=3))


@pytest.fixture(scope="module")
def elastrec(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elastrec]:
    with elastrec_at(tmp_path_factory.mktemp("home")) as command_line:
        yield command_line


def train(elastrec: Elastrec, file: Path, kill: Sequence[str] = ()) -> dict[str, Any]:
    """Runs the job; with every quarter that is trained, kills the first process whose pod's name has `-{kill}`."""
    running = elastrec.start("run", str(file), "--output", "json")
    try:
        for quarter, role in enumerate(kill, start=1):

            def is_trained(quarter: int = quarter) -> str | None:
                return next((j.job for j in elastrec.jobs() if j.shards_done * 4 >= quarter * j.shards_total > 0), None)

            job = wait_for(is_trained, 240, f"{quarter} quarters of the shards")
            victims = pod_processes(job, role, elastrec.home)
            assert victims
            victims[0].kill()
        output, errors = running.communicate(timeout=600)
        assert running.returncode == 0, errors
        result: dict[str, Any] = json.loads(output.splitlines()[-1])
        return result
    finally:
        running.kill()
        running.communicate()


@pytest.fixture(scope="module")
def undisturbed(elastrec: Elastrec, log: GenerateReport) -> dict[str, Any]:
    file = write_job(elastrec.home, log, continual={"start_from": "nothing"}, training=TRAINING)
    return train(elastrec, file)


@pytest.mark.parametrize("victims", [("master",), ("worker-0", "ps-0")], ids=" and ".join)
def test_a_killed_process_costs_no_sample_and_hardly_any_quality(
    elastrec: Elastrec, log: GenerateReport, undisturbed: dict[str, Any], victims: tuple[str, ...]
) -> None:
    file = write_job(elastrec.home, log, continual={"start_from": "nothing"}, training=TRAINING)
    outcome = train(elastrec, file, victims)
    assert outcome["shards_done"] == outcome["shards_total"] == EPOCHS * math.ceil(ROWS / (BATCH * BATCHES))
    assert outcome["samples_trained"] >= outcome["samples_total"] == EPOCHS * ROWS
    assert abs(outcome["auc"] - undisturbed["auc"]) < 0.003
    if victims == ("master",):
        # Pods outlive their master: nothing is trained twice.
        assert outcome["samples_trained"] == EPOCHS * ROWS
