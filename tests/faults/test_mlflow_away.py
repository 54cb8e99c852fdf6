"""MLflow is unreachable from the launch to the end of a job: no result is lost, and nothing is trained twice."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from elastrec.platform.data.generating.generator import GenerateReport, GenerateSpec, generate
from elastrec.platform.history import metric_names
from tests.e2e.conftest import write_job
from tests.faults.mlflow_server import MlflowServer
from tests.processes import Elastrec, elastrec_at, pod_processes, wait_for

pytestmark = pytest.mark.services

ROWS, EPOCHS = 100_000, 3
TRAINING = {"batch_size": 256, "batches_per_shard": 20, "epochs": EPOCHS, "seed": 1}
LAUNCH_WAIT, PUBLISH_WAIT = "1s", "3s"


@dataclass
class WithTracking(Elastrec):
    """The command line with a tracking server."""

    tracking_uri: str = ""

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, "MLFLOW_TRACKING_URI": self.tracking_uri}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[MlflowServer]:
    made = MlflowServer(tmp_path / "mlflow")
    yield made
    made.kill()


@pytest.fixture
def log(tmp_path: Path) -> GenerateReport:
    spec = GenerateSpec(path=str(tmp_path / "clicks"), days=2, rows_per_day=ROWS, dense=4, sparse=8, seed=3)
    return generate(spec)


def ended(running: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        output, errors = running.communicate(timeout=600)
    finally:
        running.kill()
        running.communicate()
    return running.returncode, output, errors


def test_a_job_trained_during_an_outage_of_mlflow_is_published_later_with_all_figures(
    tmp_path: Path, server: MlflowServer, log: GenerateReport
) -> None:
    with elastrec_at(tmp_path / "home") as plain:
        # The password goes with every call; nothing that a person reads shows it.
        elastrec = WithTracking(plain.home, server.url.replace("//", "//user:s3cret@"))
        history = {"launch_wait": LAUNCH_WAIT, "publish_wait": PUBLISH_WAIT}
        file = write_job(plain.home, log, continual={"start_from": "nothing"}, training=TRAINING, history=history)
        running = elastrec.start("run", str(file), "--output", "json")

        def third() -> str | None:
            return next((j.job for j in elastrec.jobs() if j.shards_done * 3 >= j.shards_total > 0), None)

        job = wait_for(third, 240, "a third of the shards")
        (master,) = pod_processes(job, "master", plain.home)
        killed_at = time.time()
        master.kill()
        code, _, messages = ended(running)
        assert code == 1, messages
        assert "training without a run; figures will be sent later" in messages
        assert "does not answer; waiting for it up to 3 s more" in messages
        assert "http://user:***@127.0.0.1" in messages and "s3cret" not in messages
        key = re.search(r"is trained and stored in .* run the same command with --run-key (\w+)", messages)
        assert key, messages
        (trained,) = elastrec.jobs()

        server.start()
        back_at = time.time()
        code, output, messages = ended(elastrec.start("run", str(file), "--run-key", key[1], "--output", "json"))
        assert code == 0, messages
        assert "s3cret" not in messages + output
        result: dict[str, Any] = json.loads(output.splitlines()[-1])
        assert result["job_id"] == job
        assert result["samples_trained"] == trained.samples_trained == EPOCHS * ROWS, "nothing was trained again"
        client = MlflowClient(server.url)
        run = client.get_run(result["run_id"])
        assert "s3cret" not in str(run.to_dictionary())
        assert run.info.status == "FINISHED" and run.data.params["training.epochs"] == str(EPOCHS)
        moments = [
            point.timestamp / 1000
            for point in client.get_metric_history(result["run_id"], metric_names.SAMPLES_TRAINED)
        ]
        assert moments[0] < killed_at, "measured by a master that was killed before MLflow was there"
        assert [moment for moment in moments if killed_at < moment < back_at]
        version = client.get_model_version(result["registered_model"], result["version"])
        assert version.run_id == result["run_id"]
        assert elastrec.jobs() == []
