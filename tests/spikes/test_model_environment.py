"""`mlflow models serve` of a registered model, in an environment that MLflow builds from the requirements of the model.

The packages come from the index of uv on this machine: this takes a minute if they are cached; otherwise 4 GB are
downloaded.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import msgspec
import pandas as pd
import pytest

from elastrec.trainers.export.process import export
from tests.trainers.export.conftest import finished  # noqa: F401 (a fixture)
from tools.ports import free_ports

pytestmark = pytest.mark.services

if not os.environ.get("ELASTREC_SPIKES"):
    pytest.skip("builds whole environments: `make spikes` runs it", allow_module_level=True)

GOOD = {"price": 3.5, "user": 7, "city": "c1", "device": "0000002a", "history": [1, 2]}
START_SECONDS = 1800.0


@pytest.fixture(scope="module")
def registered(finished: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:  # noqa: F811
    """A tracking store, and the URI of a model that is registered in it."""
    folder = tmp_path_factory.mktemp("registry")
    uri = f"sqlite:///{folder}/mlflow.db"
    client = mlflow.MlflowClient(uri)
    experiment = client.create_experiment("elastrec", artifact_location=(folder / "artifacts").as_uri())
    run_id = client.create_run(experiment).info.run_id
    result = export(msgspec.structs.replace(finished.request, tracking_uri=uri, run_id=run_id), folder)
    client.create_registered_model("tiny")
    version = client.create_model_version("tiny", result.model_uri, run_id=run_id)
    return uri, f"models:/tiny/{version.version}"


def scripts() -> str:
    """The search path with the programs of this environment, uv among them."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


@pytest.fixture
def server(registered: tuple[str, str], tmp_path: Path) -> Iterator[str]:
    """The address of a server whose environment was built now."""
    if not shutil.which("uv", path=scripts()):
        pytest.skip("--env-manager uv needs uv")
    tracking, model = registered
    (port,) = free_ports(1)
    environment = {**os.environ, "MLFLOW_TRACKING_URI": tracking, "MLFLOW_ENV_ROOT": str(tmp_path), "PATH": scripts()}
    # What is imported must be what was installed.
    environment.pop("PYTHONPATH", None)
    command = ["mlflow", "models", "serve", "-m", model, "--env-manager", "uv", "-p", str(port), "-w", "1"]
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, cwd=tmp_path, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            wait_until_it_answers(f"http://127.0.0.1:{port}", process, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(60)


def wait_until_it_answers(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()[-4000:]
        try:
            with urllib.request.urlopen(f"{address}/ping", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    pytest.fail(log.read_text()[-4000:])


def test_a_served_model_answers_from_its_own_environment(server: str, registered: tuple[str, str]) -> None:
    rows = [GOOD, GOOD | {"device": "no id"}]
    body = json.dumps({"dataframe_records": rows}).encode()
    request = urllib.request.Request(f"{server}/invocations", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        answers = json.load(response)["predictions"]
    mlflow.set_tracking_uri(registered[0])
    wanted = mlflow.pyfunc.load_model(registered[1]).predict(pd.DataFrame(rows))
    assert answers[0]["probability"] == pytest.approx(wanted["probability"][0], abs=1e-6)
    assert [answer["is_bad"] for answer in answers] == [False, True]
