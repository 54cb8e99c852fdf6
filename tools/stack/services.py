"""A whole private stack on this machine: MLflow, Airflow and a node agent, on loopback, inside one home folder.

For the demo and for tests, not for production: SQLite, no log-in, all users of this machine may open the pages.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from importlib import resources
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING
from urllib.parse import quote

import structlog

from elastrec.operators import settings
from elastrec.platform.history.database import ensure_database
from elastrec.platform.transport.security import new_token, write_secret
from tools.stack.processes import (
    Service,
    ServiceError,
    end_forgotten,
    hold,
    kill_session,
    remember,
    start_service,
    stop_sessions,
    wait_until,
)

if TYPE_CHECKING:
    from elastrec.platform.clusters import ClusterConfig

log = structlog.get_logger(__name__)

_START_SECONDS = 120.0
_LOCK_SECONDS = 60.0
_LOOPBACK = "127.0.0.1"
AIRFLOW_SERVICES = {
    "core": ("api-server", "--apps", "core"),
    "execution": ("api-server", "--apps", "execution"),
    # Log servers would bind to every interface of the machine; the API server reads the files themselves.
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
    "triggerer": ("triggerer", "--skip-serve-logs"),
}


class ServiceStack:
    """MLflow, Airflow's five processes and a node agent; a context manager that leaves nothing running.

    Args:
        home: folder of all files of the services. A second stack on the same home is refused.
        dags: folder of DAG files.
        base_folder: base of relative data paths in job files; default: the current folder.
        cores, memory_bytes: that the node agent may give to pods.
    """

    def __init__(
        self,
        home: Path,
        *,
        dags: Path | None = None,
        base_folder: Path | None = None,
        cores: float | None = None,
        memory_bytes: int | None = None,
    ) -> None:
        self.home = home.absolute()
        self.dags = (dags or default_dags_folder()).absolute()
        self.base_folder = (base_folder or Path.cwd()).absolute()
        self.agent_state = self.home / "agent"
        self.services: dict[str, Service] = {}
        self._cores = cores
        self._memory_bytes = memory_bytes
        self._ports: dict[str, int] = {}
        self._environment: dict[str, str] = {}
        # Held while services are ended or started, because a watch does so from another thread.
        self.changes = threading.RLock()

    @property
    def airflow_url(self) -> str:
        """Address of Airflow's pages and REST API."""
        return f"http://{_LOOPBACK}:{self._ports['core']}"

    @property
    def mlflow_url(self) -> str:
        """Address of MLflow's pages and REST API."""
        return f"http://{_LOOPBACK}:{self._ports['mlflow']}"

    @property
    def log_in_url(self) -> str:
        """Address of the DAG's page that needs no log-in."""
        return f"{self.airflow_url}/auth/token/login?next={quote(f'/dags/{settings.DAG_ID}', safe='')}"

    def __enter__(self) -> ServiceStack:
        if not self.services:
            self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Starts everything and returns when it is healthy.

        Raises:
            ServiceError: a service ended, is not healthy within two minutes, or another stack uses this home.
        """
        self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        # It may exist already, with other rights, because the demo's click log is written first.
        self.home.chmod(0o700)
        self._lock = hold(self.home / "services.lock")
        forgotten = end_forgotten(self._record)
        if forgotten:
            log.warning("ended_forgotten_services", home=str(self.home), services=forgotten)
        try:
            self._start_all()
        except BaseException:
            self.stop()
            raise

    def _start_all(self) -> None:
        self._ports = dict(zip(("core", "execution", "mlflow"), free_ports(3), strict=True))
        self._environment = self._make_environment()
        self._start_mlflow()
        self._start_agent()
        self._migrate()
        for name in AIRFLOW_SERVICES:
            self.start_airflow(name)
        running = list(self.services.values())
        wait_until(lambda: answers(f"{self.mlflow_url}/health"), running, "MLflow", _START_SECONDS)
        wait_until(self._airflow_is_healthy, running, "Airflow", _START_SECONDS)
        log.info("services_ready", home=str(self.home), airflow=self.airflow_url, mlflow=self.mlflow_url)

    def stop(self) -> None:
        """Stops everything: first Airflow, so that no more jobs start, then jobs and their agent, then MLflow."""
        airflow = [service.process.pid for name, service in self.services.items() if name in AIRFLOW_SERVICES]
        stop_sessions(airflow)
        self._stop_agent()
        stop_sessions([service.process.pid for service in self.services.values()])
        for service in self.services.values():
            service.process.wait()
        self.services.clear()
        self._record.unlink(missing_ok=True)
        self._lock.close()

    def start_airflow(self, name: str) -> None:
        """Starts or restarts a process of Airflow: core, execution, scheduler, dag-processor or triggerer."""
        command = [_tool("airflow"), *AIRFLOW_SERVICES[name]]
        if name in ("core", "execution"):
            command += ["--host", _LOOPBACK, "--port", str(self._ports[name]), "--workers", "1"]
        self._start(name, command)

    def restart(self, name: str) -> None:
        """Restarts a service; first ends its remaining processes."""
        with self.changes:
            self.kill(name)
            if name in AIRFLOW_SERVICES:
                self.start_airflow(name)
            else:
                self._start_mlflow()

    def kill(self, name: str) -> None:
        """Kills one service and all of its children, as `kill -9` does."""
        with self.changes:
            service = self.services.pop(name)
            kill_session(service.process.pid)
            service.process.wait()

    def cluster_config(self) -> ClusterConfig:
        """How to reach the node agent."""
        from elastrec.platform.clusters.local.life_cycle import find_agent
        from elastrec.platform.jobs import tls_folder

        agent = find_agent(self.agent_state, tls_folder())
        if agent is None:
            raise ServiceError(f"no node agent runs in {self.agent_state}; see {self.agent_state}")
        return agent.config

    def environment(self) -> dict[str, str]:
        """Environment with which `airflow` and `elastrec` commands use this stack."""
        return dict(self._environment)

    @property
    def _record(self) -> Path:
        return self.home / "services.json"

    def _start(self, name: str, command: list[str]) -> None:
        folder = self.home / "run"
        folder.mkdir(exist_ok=True)
        with self.changes:
            self.services[name] = start_service(
                name, command, self._environment, self.home / "logs" / f"{name}.log", folder
            )
            remember(self._record, list(self.services.values()))

    def _start_mlflow(self) -> None:
        artifacts = self.home / "artifacts"
        artifacts.mkdir(exist_ok=True)
        # If a server were killed while it creates its tables, the home could not be used again.
        ensure_database(self.home / "mlflow.db")
        command = [_tool("mlflow"), "server", "--host", _LOOPBACK, "--port", str(self._ports["mlflow"])]
        command += ["--workers", "1", "--x-frame-options", "NONE"]
        command += ["--backend-store-uri", f"sqlite:///{self.home}/mlflow.db"]
        command += ["--artifacts-destination", str(artifacts)]
        self._start("mlflow", command)

    def _start_agent(self) -> None:
        from elastrec.platform.clusters.local.life_cycle import start_agent
        from elastrec.platform.jobs import tls_folder

        start_agent(self.agent_state, cores=self._cores, memory_bytes=self._memory_bytes, tls_folder=tls_folder())

    def _stop_agent(self) -> None:
        from elastrec.platform.clusters.local.life_cycle import stop_agent
        from elastrec.platform.jobs import tls_folder

        stop_agent(self.agent_state, tls_folder=tls_folder())

    def _migrate(self) -> None:
        log_file = self.home / "logs" / "migrate.log"
        with log_file.open("ab") as output:
            done = subprocess.run(
                [_tool("airflow"), "db", "migrate"],
                env=self._environment,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=_START_SECONDS,
                check=False,
            )
        if done.returncode:
            tail = "\n".join(log_file.read_text(errors="replace").splitlines()[-25:])
            raise ServiceError(f"airflow db migrate ended with exit code {done.returncode}:\n{tail}")

    def _airflow_is_healthy(self) -> bool:
        if not answers(f"http://{_LOOPBACK}:{self._ports['execution']}/execution/health"):
            return False
        health = self.airflow_health()
        parts = ("metadatabase", "scheduler", "triggerer", "dag_processor")
        return all(health.get(part) == "healthy" for part in parts)

    def airflow_health(self) -> dict[str, str]:
        """Airflow's health by component, `healthy` or `unhealthy`; empty while its API does not answer."""
        health = fetch_json(f"{self.airflow_url}/api/v2/monitor/health")
        return {part: str((found or {}).get("status")) for part, found in health.items()}

    def _make_environment(self) -> dict[str, str]:
        secret = self._secrets()
        home = self.home / "airflow"
        connection = {
            "conn_type": settings.CONNECTION_TYPE,
            "extra": {
                "agent_state": str(self.agent_state),
                "tracking_uri": self.mlflow_url,
                "work_uri": str(self.home / "work"),
                "mlflow_ui_url": self.mlflow_url,
                "base_folder": str(self.base_folder),
            },
        }
        own = {
            "AIRFLOW_HOME": home,
            "AIRFLOW__CORE__DAGS_FOLDER": self.dags,
            "AIRFLOW__CORE__LOAD_EXAMPLES": False,
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__PARALLELISM": 4,
            "AIRFLOW__CORE__FERNET_KEY": secret["fernet_key"],
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": True,
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://{_LOOPBACK}:{self._ports['execution']}/execution/",
            "AIRFLOW__API_AUTH__JWT_SECRET": secret["jwt_secret"],
            "AIRFLOW__API__SECRET_KEY": secret["api_secret"],
            "AIRFLOW__API__BASE_URL": self.airflow_url,
            # Airflow's processes do not try again when the database is locked: on a busy machine they may end.
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db?timeout={_LOCK_SECONDS:.0f}",
            "AIRFLOW__LOGGING__BASE_LOG_FOLDER": home / "logs",
            "AIRFLOW__LOGGING__DAG_PROCESSOR_CHILD_PROCESS_LOG_DIRECTORY": home / "logs" / "dag_processor",
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": 15,
            "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": 1,
            "AIRFLOW__SCHEDULER__ENABLE_HEALTH_CHECK": False,
            "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": 30,
            "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": 15,
            "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": 1,
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": False,
            f"AIRFLOW_CONN_{settings.DEFAULT_CONNECTION_ID.upper()}": json.dumps(connection),
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "MLFLOW_TRACKING_URI": self.mlflow_url,
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "DO_NOT_TRACK": "1",
            "ELASTREC_HOME": self.home,
            "PYTHONUNBUFFERED": "1",
            "NO_PROXY": f"{_LOOPBACK},localhost",
            "no_proxy": f"{_LOOPBACK},localhost",
        }
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "MLFLOW"))}
        return {**inherited, **{name: str(value) for name, value in own.items()}}

    def _secrets(self) -> dict[str, str]:
        file = self.home / "secrets.json"
        if not file.exists():
            made = {
                "fernet_key": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
                "jwt_secret": new_token(),
                "api_secret": new_token(),
            }
            write_secret(file, json.dumps(made))
        content: dict[str, str] = json.loads(file.read_text())
        return content


def default_dags_folder() -> Path:
    """The DAG files that come with elastrec."""
    # Looked up, not imported, because operators must not import DAG files.
    return Path(str(resources.files("elastrec.dags")))


def free_ports(count: int) -> list[int]:
    """Different loopback ports that are free at present."""
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind((_LOOPBACK, 0))
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()


def answers(url: str) -> bool:
    """Whether an address answers with a status below 400."""
    try:
        with _direct.open(url, timeout=5) as answer:
            return bool(answer.status < 400)
    except (urllib.error.URLError, OSError):
        return False


def fetch_json(url: str) -> dict[str, dict[str, str] | None]:
    """A JSON object, empty while the address does not answer."""
    try:
        with _direct.open(url, timeout=5) as answer:
            content: dict[str, dict[str, str] | None] = json.load(answer)
            return content
    except (urllib.error.URLError, OSError, ValueError):
        return {}


# Loopback is accessed directly even if the user's environment names a proxy.
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _tool(name: str) -> str:
    return str(Path(sys.executable).with_name(name))
