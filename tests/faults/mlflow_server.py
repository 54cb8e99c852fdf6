"""A real MLflow server that can be killed, and restarted at the same address with the same data."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tools.stack.processes import Service, kill_session, start_service, wait_until
from tools.stack.services import answers, free_ports


class MlflowServer:
    """A tracking server that can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        self._command = [str(Path(sys.executable).with_name("mlflow")), "server", "--host", "127.0.0.1"]
        self._command += ["--port", str(port), "--workers", "1", "--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
        self._command += ["--artifacts-destination", str(folder / "artifacts")]
        self._service: Service | None = None

    def start(self) -> None:
        variables = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        self._service = start_service("mlflow", self._command, variables, self._folder / "log", self._folder)
        wait_until(lambda: answers(f"{self.url}/health"), [self._service], "MLflow", 120)

    def kill(self) -> None:
        if self._service is not None:
            kill_session(self._service.process.pid)
            self._service.process.wait()
            self._service = None
