from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from elastrec.platform.history import History
from elastrec.platform.jobs.types import Allocation, Interval, Prepared
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.text.loading import job_to_json
from tests.suite.migrated import migrated_once  # noqa: F401 (for all tests of the room)


class TrackingServer:
    """A real `mlflow server` process that can be stopped and started again on the same port and data."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [
            sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port), "--workers", "1",
            "--backend-store-uri", f"sqlite:///{self._folder}/mlflow.db",
            "--artifacts-destination", str(self._folder / "artifacts"),
        ]  # fmt: skip
        environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        environment.pop("MLFLOW_TRACKING_URI", None)
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, cwd=self._folder, start_new_session=True
            )
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"{self.uri}/health", timeout=2):
                    return
            except (OSError, urllib.error.URLError):
                if self._process.poll() is not None:
                    break
                time.sleep(0.1)
        self.stop()
        raise RuntimeError((self._folder / "server.log").read_text()[-3000:])

    def stop(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):  # it may have ended by itself
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


@pytest.fixture(scope="session")
def tracking_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrackingServer]:
    server = TrackingServer(tmp_path_factory.mktemp("mlflow"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def client(tracking_server: TrackingServer) -> MlflowClient:
    return MlflowClient(tracking_server.uri)


@pytest.fixture
def history(tracking_server: TrackingServer, request: pytest.FixtureRequest) -> History:
    """An experiment of its own for every test."""
    return History(tracking_server.uri, f"experiment of {request.node.name}")


@pytest.fixture
def allocation() -> Allocation:
    return Allocation(
        workers=3,
        parameter_servers=2,
        worker_cores=0.5,
        worker_memory_bytes=2**30,
        parameter_server_cores=0.25,
        parameter_server_memory_bytes=2**29,
        source="job file",
    )


MakePrepared = Callable[..., Prepared]


@pytest.fixture
def make_prepared(tmp_path: Path) -> MakePrepared:
    def make(
        job_id: str = "clicks-20260101",
        *,
        name: str = "clicks",
        rows: int = 1000,
        batch_size: int = 512,
        prices: dict[str, object] | None = None,
    ) -> Prepared:
        for manifest in ("training.json", "evaluation.json"):
            (tmp_path / manifest).write_text(f'{{"of": "{job_id}", "what": "{manifest}"}}')
        job = TrainingJob.model_validate(
            {
                "metadata": {"name": name, "team": "ads", "labels": {"market": "eu"}},
                "spec": {
                    "model": {"architecture": "dlrm", "options": {"over": [8, 1]}},
                    "data": {"path": "clicks", "sparse": [{"name": "ad"}], "dense": [{"name": "age"}]},
                    "training": {"batch_size": batch_size},
                    "history": {"prices": prices},
                },
            }
        )
        return Prepared(
            job_id=job_id,
            job_json=job_to_json(job),
            interval=Interval("2026-01-01T00:00:00+00:00", "2026-01-02T00:00:00+00:00", "2026-01-03T00:00:00+00:00"),
            training_manifest=str(tmp_path / "training.json"),
            evaluation_manifest=str(tmp_path / "evaluation.json"),
            training_rows=rows,
            evaluation_rows=rows // 10,
            start_record="file:///store/clicks/records/0",
            adaptation="table  ad  kept",
        )

    return make
