"""YarnCluster: a ResourceManager and NodeManagers on loopback, in a folder of their own, each a JVM of at most 256 MB.

The jars come from Maven Central once. Needs Java 17 or above and Maven. The ResourceManager keeps its state, so that it
can be killed and restarted; nodes can be killed.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tools.jars import JVM, Jars
from tools.ports import free_ports
from tools.yarn.configuration import client_settings, node_settings, resource_manager_settings, write_folder

JARS = Jars("yarn", Path(__file__).with_name("pom.xml"))
_START_SECONDS = 90.0
_SERVICES = ("address", "scheduler.address", "resource-tracker.address", "admin.address", "webapp.address")
_RESOURCE_MANAGER = "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager"
_NODE_MANAGER = "org.apache.hadoop.yarn.server.nodemanager.NodeManager"


class YarnClusterError(Exception):
    """A daemon did not start; contains the last lines of its log."""


class YarnCluster:
    """A running cluster; the end of the `with` block or `close` removes everything.

    Args:
        nodes: number of configured nodes.
        started: number of nodes that run from the beginning; None: all.

    Attributes:
        url: of the ResourceManager's REST API.
        user: owner of the applications.
        client_configuration: folder for a client's class path.
        folder: of all files of the cluster.

    Raises:
        JarsError: the jars could not be fetched.
        YarnClusterError: a daemon did not start.
    """

    def __init__(self, nodes: int = 2, started: int | None = None) -> None:
        self.jars = JARS.fetch()
        self.folder = Path(tempfile.mkdtemp(prefix="elastrec-yarn-"))
        self.user = getpass.getuser()
        ports = free_ports(len(_SERVICES) + 5 * nodes)
        services = dict(zip(_SERVICES, ports, strict=False))
        self.url = f"http://127.0.0.1:{services['webapp.address']}"
        client = client_settings(services)
        self.client_configuration = self._configuration("client", client)
        own = resource_manager_settings(self.folder / "resourcemanager")
        self._configurations = {"resourcemanager": self._configuration("resourcemanager", client | own)}
        for number in range(nodes):
            name, first = f"node-{number}", len(_SERVICES) + 5 * number
            settings = client | node_settings(self.folder / name, number, ports[first : first + 5])
            self._configurations[name] = self._configuration(name, settings)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._left: list[psutil.Process] = []
        try:
            self.start_resource_manager()
            running = nodes if started is None else started
            for number in range(running):
                self.start_node(number)
            self.wait_for_nodes(running)
        except BaseException:
            self.close()
            raise

    def start_resource_manager(self) -> None:
        """Starts it, or restarts it after `kill_resource_manager`; returns when it answers."""
        self._start("resourcemanager", _RESOURCE_MANAGER)
        self._wait("resourcemanager", lambda: self.get("/ws/v1/cluster/info")["clusterInfo"]["state"] == "STARTED")

    def kill_resource_manager(self) -> None:
        """Kills it, as a power failure does; its files are kept."""
        self._kill("resourcemanager")

    def start_node(self, number: int) -> None:
        """Starts a node; `wait_for_nodes` waits for it."""
        self._start(f"node-{number}", _NODE_MANAGER)

    def kill_node(self, number: int) -> None:
        """Kills a node's daemon. Its containers continue, as on a machine whose network has failed."""
        name = f"node-{number}"
        self._left += psutil.Process(self._processes[name].pid).children(recursive=True)
        self._kill(name)

    def wait_for_nodes(self, count: int) -> None:
        """Waits until a number of nodes accepts containers."""

        def are_active() -> bool:
            return bool(self.get("/ws/v1/cluster/metrics")["clusterMetrics"]["activeNodes"] == count)

        self._wait("resourcemanager", are_active)

    def get(self, path: str) -> Any:
        """JSON of the ResourceManager's REST API.

        Raises:
            OSError: it does not answer.
        """
        with urllib.request.urlopen(f"{self.url}{path}", timeout=5.0) as answer:
            return json.load(answer)

    def processes(self, variable: str, value: str) -> list[psutil.Process]:
        """Python processes in containers of this cluster, and of no other, that have a variable of this value."""
        processes = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                variables = process.environ()
                is_ours = variables.get("LOCAL_DIRS", "").startswith(f"{self.folder}/")
                if is_ours and variables.get(variable) == value and "python" in process.name():
                    processes.append(process)
        return processes

    def log(self, name: str) -> str:
        """The end of a daemon's log: `resourcemanager` or `node-0`, …"""
        return (self.folder / f"{name}.log").read_text(errors="replace")[-4000:]

    def close(self) -> None:
        """Ends the daemons and the processes of their containers, and removes the folder."""
        for name, process in self._processes.items():
            if name != "resourcemanager" and process.poll() is None:
                self._left += psutil.Process(process.pid).children(recursive=True)
        for name in list(self._processes):
            self._kill(name)
        for remaining in self._left:
            with contextlib.suppress(psutil.NoSuchProcess):
                remaining.kill()
        psutil.wait_procs(self._left, timeout=10.0)
        self._left = []
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> YarnCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _configuration(self, name: str, settings: dict[str, object]) -> Path:
        return write_folder(self.folder / "conf" / name, settings, self.folder / name / "scratch", self.user)

    def _start(self, name: str, main: str) -> None:
        # Web applications are unpacked there, and a killed daemon does not remove them.
        temporary = self.folder / name / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        own_folders = (f"-Dyarn.log.dir={self.folder}", f"-Djava.io.tmpdir={temporary}")
        command = [*JVM, *own_folders, "-cp", f"{self._configurations[name]}:{self.jars}/*", main]
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True, cwd=self.folder
            )

    def _kill(self, name: str) -> None:
        process = self._processes.pop(name, None)
        if process is not None:
            process.kill()
            process.wait()

    def _wait(self, name: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            with contextlib.suppress(OSError):
                if condition():
                    return
            dead = [name for name, process in self._processes.items() if process.poll() is not None]
            if dead or time.monotonic() > deadline:
                name = dead[0] if dead else name
                raise YarnClusterError(f"{name} did not start: {self.log(name)}")
            time.sleep(0.1)
