"""One pod on its node: files, process, restarts, resizes, end; and its status as the node reports it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from elastrec.platform.clusters.pods import PodSize
from elastrec.platform.specs.errors import ClusterError
from tests.spikes.kubernetes.api import MERGE, ApiError
from tests.spikes.kubernetes.manifests import CONTAINER, resources
from tests.spikes.kubernetes.statuses import quantity

if TYPE_CHECKING:
    from tests.spikes.kubernetes.node_agent import NodeAgent

log = structlog.get_logger(__name__)
_PASSED = ("PATH", "HOME", "LANG", "TMPDIR", "PYTHONPATH", "NUMBA_CACHE_DIR", "XDG_CACHE_HOME")
_LOOK_SECONDS = 0.2
_RESTART_SECONDS = 0.3
_ROOT = Path(__file__).resolve().parents[3]


class NodePod:
    """Runs in a separate thread until the pod has ended.

    Attributes:
        allocated: resources that the node has reserved for it.
        is_over: whether its process has ended and will not be restarted.
    """

    def __init__(self, agent: NodeAgent, item: dict[str, Any]) -> None:
        self.uid: str = item["metadata"]["uid"]
        self.allocated = _asked(item)
        self.is_over = False
        self.folder = agent.folder / self.uid
        self._agent, self._item = agent, item
        self._wake, self._abandoned = threading.Event(), False
        self._process: subprocess.Popen[bytes] | None = None
        self._started, self._restarts, self._last_end = "", 0, dict[str, Any]()
        self._word = ""
        self._told: dict[str, Any] = {}
        self.thread = threading.Thread(target=self._run, name=f"pod-{item['metadata']['name']}", daemon=True)

    @property
    def log_file(self) -> Path:
        return self.folder / "log"

    def is_called(self, namespace: str, name: str) -> bool:
        metadata = self._item["metadata"]
        return bool((metadata["namespace"], metadata["name"]) == (namespace, name))

    def update(self, item: dict[str, Any]) -> None:
        """The cluster has said something new about it."""
        self._item = item
        self._wake.set()

    def abandon(self) -> None:
        """The cluster does not know it any more: its process ends at once."""
        self._abandoned = True
        self._kill(signal.SIGKILL)
        self._wake.set()

    def end(self, number: signal.Signals = signal.SIGKILL, word: str = "") -> None:
        """Ends its process from outside; `word` is what the node gives as the reason, `OOMKilled`."""
        self._word = word
        self._kill(number)

    def _kill(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _run(self) -> None:
        try:
            if self._item["status"].get("phase") in ("Succeeded", "Failed"):
                self.is_over = True
            else:
                self._live()
            while not self._is_ending() and not self._abandoned:
                self._sleep(None)
            self._forget()
        finally:
            self.is_over = True
            self._kill(signal.SIGKILL)
            shutil.rmtree(self.folder, ignore_errors=True)

    def _live(self) -> None:
        if not self._make_folders():
            return
        while not self._abandoned:
            self._start()
            self._supervise()
            code = self._process.wait() if self._process else 0
            ended = {
                "exitCode": code if code >= 0 else 128 - code,
                "reason": self._word or ("Completed" if code == 0 else "Error"),
                "startedAt": self._started,
                "finishedAt": _now(),
            }
            self._word = ""
            if self._is_ending() or not self._restarts_after(ended["exitCode"]):
                self.is_over = True
                self._tell("Succeeded" if code == 0 else "Failed", {"terminated": ended})
                return
            self._last_end, self._restarts = {"terminated": ended}, self._restarts + 1
            self._tell("Running", {"waiting": {"reason": "CrashLoopBackOff"}})
            time.sleep(_RESTART_SECONDS)

    def _make_folders(self) -> bool:
        for volume in self._item["spec"]["volumes"]:
            (self.folder / volume["name"]).mkdir(parents=True, exist_ok=True)
            while "secret" in volume and not self._abandoned:
                metadata = self._item["metadata"]
                try:
                    files = self._agent.secret(metadata["namespace"], volume["secret"]["secretName"])
                except ClusterError as error:
                    log.warning("secret_not_read", pod=metadata["name"], reason=str(error))
                    self._tell("Pending", {"waiting": {"reason": "ContainerCreating", "message": str(error)}})
                    if self._is_ending():
                        self.is_over = True
                        return False
                    self._sleep(_LOOK_SECONDS)
                    continue
                for name, body in files.items():
                    (self.folder / volume["name"] / name).write_bytes(body)
                break
        return not self._abandoned

    def _start(self) -> None:
        container = self._item["spec"]["containers"][0]
        head, *rest = container["command"]
        with self.log_file.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable if head == "python" else head, *rest], env=self._environment(container),
                stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True, cwd=_ROOT,
            )  # fmt: skip
        self._started = _now()
        process = self._process
        threading.Thread(target=lambda: (process.wait(), self._wake.set()), daemon=True).start()
        if self._abandoned:
            self._kill(signal.SIGKILL)
        self._tell("Running", {"running": {"startedAt": self._started}})

    def _environment(self, container: dict[str, Any]) -> dict[str, str]:
        fields = {"status.podIP": "127.0.0.1", "spec.nodeName": self._agent.name}
        mounts = {mount["mountPath"]: str(self.folder / mount["name"]) for mount in container["volumeMounts"]}
        variables = {name: os.environ[name] for name in _PASSED if name in os.environ}
        for entry in container["env"]:
            value = entry.get("value") or fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]
            variables[entry["name"]] = mounts.get(value, value)
        return {**variables, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}

    def _supervise(self) -> None:
        kill_at: float | None = None
        while self._process is not None and self._process.poll() is None:
            if self._is_ending() and kill_at is None:
                kill_at = time.monotonic() + self._item["metadata"].get("deletionGracePeriodSeconds", 0)
                self._kill(signal.SIGTERM)
            if kill_at is not None and time.monotonic() >= kill_at:
                self._kill(signal.SIGKILL)
            waits = kill_at is None and self._look_after_size()
            self._sleep(_LOOK_SECONDS if waits or kill_at is not None else None)

    def _look_after_size(self) -> bool:
        """Gives the size that is asked for, or says why not; whether it has to be tried again."""
        asked, free = _asked(self._item), self._agent.free_but(self.uid)
        pending: dict[str, Any] = {"$patch": "delete"}
        if asked != self.allocated:
            if self._agent.refuses_resizes:
                pending = {"status": "True", "reason": "Infeasible", "message": "Node has static processors"}
            elif not _fits(asked, free):
                pending = {"status": "True", "reason": "Deferred", "message": f"Node has only {free.cores:g} cores"}
            else:
                self.allocated = asked
        state = {"running": {"startedAt": self._started}}
        generation = self._item["metadata"].get("generation", 0)
        if pending.get("status"):
            pending |= {"observedGeneration": generation}
        self._tell("Running", state, [{"type": "PodResizePending", **pending}])
        return pending.get("reason") == "Deferred"

    def _restarts_after(self, code: int) -> bool:
        for rule in self._item["spec"]["containers"][0].get("restartPolicyRules", []):
            is_named = code in rule["exitCodes"]["values"]
            if is_named == (rule["exitCodes"]["operator"] == "In"):
                return True
        return False

    def _is_ending(self) -> bool:
        return bool(self._item["metadata"].get("deletionTimestamp"))

    def _tell(self, phase: str, state: dict[str, Any], conditions: list[dict[str, Any]] | None = None) -> None:
        """Patches the pod's status, as often as it takes; nothing where the cluster knows it already."""
        is_ready = "True" if phase == "Running" and "running" in state else "False"
        container = {
            "name": CONTAINER,
            "image": "elastrec",
            "imageID": "",
            "restartCount": self._restarts,
            "ready": is_ready == "True",
            "state": {**dict.fromkeys(("running", "waiting", "terminated")), **state},
            "lastState": self._last_end,
            # Without it the API server refuses resizes: the node could not do them.
            "resources": resources(self.allocated),
            "allocatedResources": resources(self.allocated)["requests"],
        }
        status: dict[str, Any] = {
            "phase": phase,
            "podIP": "127.0.0.1",
            "podIPs": [{"ip": "127.0.0.1"}],
            "conditions": [{"type": name, "status": is_ready} for name in ("Ready", "ContainersReady")]
            + (conditions or []),
            "containerStatuses": [container],
        }
        if status == self._told:
            return
        metadata = self._item["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status"
        while not self._abandoned:
            try:
                if not self._agent.is_silent:
                    self._agent.api.call("PATCH", path, {"metadata": {"uid": self.uid}, "status": status}, MERGE)
                    self._told = status
                    return
            except ApiError as error:
                if error.status in (404, 409):
                    return
                log.warning("status_not_reported", pod=metadata["name"], reason=str(error))
            except ClusterError as error:
                log.warning("status_not_reported", pod=metadata["name"], reason=str(error))
            time.sleep(_LOOK_SECONDS)

    def _forget(self) -> None:
        metadata = self._item["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
        while not self._abandoned:
            try:
                if not self._agent.is_silent:
                    self._agent.api.call("DELETE", path, {**body, "preconditions": {"uid": self.uid}})
                    return
            except ApiError as error:
                if error.status in (404, 409):
                    return
            except ClusterError as error:
                log.warning("pod_not_removed", pod=metadata["name"], reason=str(error))
            time.sleep(_LOOK_SECONDS)

    def _sleep(self, seconds: float | None) -> None:
        self._wake.wait(seconds)
        self._wake.clear()


def _asked(item: dict[str, Any]) -> PodSize:
    limits = item["spec"]["containers"][0]["resources"]["limits"]
    return PodSize(quantity(limits["cpu"]), round(quantity(limits["memory"])))


def _fits(size: PodSize, room: PodSize) -> bool:
    return size.cores <= room.cores and size.memory_bytes <= room.memory_bytes


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
