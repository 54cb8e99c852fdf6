"""YarnLauncher: jobs as applications, over the ResourceManager's REST API.

An application is found by a tag with the name of its job. YARN allows several with the same tag and keeps ended ones,
so an application without a staging folder counts as a removed job.
"""

from __future__ import annotations

import shlex
import shutil
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from elastrec.platform.clusters.nodes import Node, NodeCondition
from elastrec.platform.clusters.pods import EndReason, PodPhase, PodSpec, PodStatus, RestartPolicy
from elastrec.platform.specs.errors import ClusterError
from elastrec.platform.specs.metrics import Role
from tests.spikes.yarn.application.pod_log import PodLog
from tests.spikes.yarn.backend import YarnConfig
from tests.spikes.yarn.node_logs import LOG_FILE, read_log
from tests.spikes.yarn.nodes import nodes_of
from tests.spikes.yarn.rest import Object, Rest
from tests.spikes.yarn.sizes import pod_size, rounded

_TAG = "elastrec-job-"
_ATTEMPTS = 5
_ATTEMPTS_WITHIN_MS = 600_000
_SPEC_FILE = "master.json"
_WAIT_SECONDS = 60.0
_ENDS = {
    "SUCCEEDED": (PodPhase.SUCCEEDED, EndReason.COMPLETED),
    "FAILED": (PodPhase.FAILED, EndReason.ERROR),
    "KILLED": (PodPhase.FAILED, EndReason.DELETED),
}


class YarnLauncher:
    """Implements what a job's master needs of `Launcher`; a job whose first pod is no master is refused."""

    def __init__(self, config: YarnConfig) -> None:
        self._config, self._rest = config, Rest(config.url, config.user)

    def submit(self, first: PodSpec) -> PodStatus:
        """See `Launcher.submit`. Two callers at once may both submit: YARN has no put-if-absent."""
        found = self.find(first.job)
        if found is not None and not found.phase.is_final:
            return found
        request = self.dry_run(first)
        application = self._rest.new_application()
        folder = self._staging(application)
        (folder / "files").mkdir(parents=True, mode=0o700)
        for name, text in (first.files | first.secrets).items():
            (folder / "files" / name).touch(mode=0o600)
            (folder / "files" / name).write_text(text)
        secret_names = {"secrets": dict.fromkeys(first.secrets, "")}
        (folder / _SPEC_FILE).write_bytes(msgspec.json.encode(msgspec.structs.replace(first, files={}, **secret_names)))
        request["application-id"] = application
        variables = request["am-container-spec"]["environment"]["entry"]
        variables.append({"key": "ELASTREC_STAGING", "value": str(folder)})
        resources = [_resource(f"files/{name}", folder / "files" / name) for name in first.files | first.secrets]
        request["am-container-spec"]["local-resources"] = {"entry": resources}
        self._rest.call("POST", "/apps", request)
        status = self.find(first.job)
        if status is None:
            raise ClusterError(f"{application} was accepted and is not known", retryable=True)
        return status

    def dry_run(self, pod: PodSpec) -> dict[str, Any]:
        """The request of a submission, without the id and the files that come with it."""
        if pod.role is not Role.MASTER:
            raise ClusterError(f"role: {pod.role} is not allowed; allowed: {Role.MASTER}, an ApplicationMaster")
        config = self._config
        memory_mb, cores = rounded(pod.size, config.step_mb)
        words = [config.python, "-m", "tests.spikes.yarn.application.application_master"]
        variables = config.environment | pod.environment
        return {
            "application-name": pod.name,
            "application-type": "elastrec",
            "application-tags": {"tag": [f"{_TAG}{pod.job}"]},
            "queue": pod.queue or "default",
            "priority": pod.priority,
            "resource": {"memory": memory_mb, "vCores": cores},
            "max-app-attempts": _ATTEMPTS if pod.restart_policy is RestartPolicy.ON_FAILURE else 1,
            "attempt-failures-validity-interval": _ATTEMPTS_WITHIN_MS,
            "keep-containers-across-application-attempts": True,
            "am-container-spec": {
                "commands": {"command": f"exec {shlex.join(words)} 1><LOG_DIR>/{LOG_FILE} 2>&1"},
                "environment": {"entry": [{"key": key, "value": value} for key, value in variables.items()]},
            },
        }

    def find(self, job: str) -> PodStatus | None:
        """See `Launcher.find`."""
        found = self._applications(f"{_TAG}{job}")
        return self._status(found[-1]) if found else None

    def address(self, first: PodStatus) -> str:
        """See `Launcher.address`; callers and pods are in one network here."""
        return first.address

    def jobs(self) -> list[PodStatus]:
        """See `Launcher.jobs`."""
        return [self._status(each) for each in self._applications("")]

    def pods(self, job: str | None = None) -> list[PodStatus]:
        """See `Launcher.pods`: from what the ApplicationMaster has written down; YARN knows no names of pods."""
        firsts = [status for status in self.jobs() if job in (None, status.job)]
        return [pod for first in firsts for pod in (first, *self._members(first))]

    def secrets(self, name: str, uid: str) -> dict[str, str] | None:
        """See `Launcher.secrets`."""
        spec = self._spec(uid)
        if spec is None or spec.name != name:
            return None
        return {key: (self._staging(uid) / "files" / key).read_text() for key in spec.secrets}

    def remove(self, job: str) -> list[str]:
        """See `Launcher.remove`; the nodes end the containers after the application is over."""
        removed: list[str] = []
        for application in self._applications(f"{_TAG}{job}"):
            first = self._status(application)
            removed += [first.name, *(pod.name for pod in self._members(first))]
            if not first.phase.is_final:
                self._rest.kill(first.uid)
            self._wait_for_containers(first.uid)
            shutil.rmtree(self._staging(first.uid), ignore_errors=True)
        return removed

    def logs(self, name: str, *, tail_lines: int | None = None, follow: bool = False) -> Iterator[str]:
        """See `Launcher.logs`, of a master alone; of its last attempt."""
        if follow:
            raise ClusterError("follow: True is not allowed; allowed: False")
        first = next((status for status in self.jobs() if status.name == name), None)
        if first is None:
            raise ClusterError(f"{name} is not known")
        attempts = self._rest.call("GET", f"/apps/{first.uid}/appattempts")["appAttempts"]["appAttempt"]
        last = max(attempts, key=lambda attempt: int(attempt["id"]))
        return iter(read_log(last["nodeHttpAddress"], last["containerId"], tail_lines))

    def nodes(self) -> list[Node]:
        """See `Launcher.nodes`."""
        return nodes_of(self._rest)

    def _applications(self, tag: str) -> list[Object]:
        query = {"applicationTags": tag} if tag else {"applicationTypes": "elastrec"}
        found = (self._rest.call("GET", "/apps", **query)["apps"] or {}).get("app", [])
        known = [each for each in found if (self._staging(each["id"]) / _SPEC_FILE).exists()]
        return sorted(known, key=lambda application: int(application["startedTime"]))

    def _status(self, application: Object) -> PodStatus:
        spec = self._spec(application["id"])
        assert spec is not None
        state, final = application["state"], application["finalStatus"]
        phase = PodPhase.RUNNING if state == "RUNNING" else PodPhase.PENDING
        end = None
        if state in ("FINISHED", "FAILED", "KILLED"):
            phase, end = _ENDS.get(final, (PodPhase.FAILED, EndReason.ERROR))
        address = application.get("amRPCAddress", "")
        return PodStatus(
            name=spec.name, uid=application["id"], job=spec.job, role=spec.role, phase=phase, end=end,
            size=pod_size(*rounded(spec.size, self._config.step_mb)), asked=spec.size, reason=state,
            message=application.get("diagnostics", "")[-500:], address="" if ":-1" in address else address,
            node=application.get("amHostHttpAddress", ""), waits_for_room=state == "ACCEPTED",
            created_unix_seconds=application["startedTime"] / 1000.0, labels=spec.labels,
        )  # fmt: skip

    def _members(self, first: PodStatus) -> list[PodStatus]:
        return [line.pod for line in PodLog(self._staging(first.uid) / "pods.jsonl").read().values()]

    def _spec(self, application: str) -> PodSpec | None:
        file = self._staging(application) / _SPEC_FILE
        return msgspec.json.decode(file.read_bytes(), type=PodSpec) if file.exists() else None

    def _staging(self, application: str) -> Path:
        return Path(self._config.staging) / application

    def _wait_for_containers(self, application: str) -> None:
        deadline = time.monotonic() + _WAIT_SECONDS
        number = application.removeprefix("application_")
        while any(f"_{number}_" in each for node in self.nodes() for each in self._containers_on(node)):
            if time.monotonic() > deadline:
                raise ClusterError(f"containers of {application} run on after {_WAIT_SECONDS:.0f} s", retryable=True)
            time.sleep(0.1)

    def _containers_on(self, node: Node) -> list[str]:
        if NodeCondition.NOT_READY in node.conditions:
            return []
        url = f"http://{node.labels['http']}/ws/v1/node/containers"
        try:
            with urllib.request.urlopen(url, timeout=5.0) as answer:
                found = msgspec.json.decode(answer.read())["containers"] or {}
        except OSError as error:
            raise ClusterError(f"node {node.name} does not answer: {error}", retryable=True) from None
        return [str(each["id"]) for each in found.get("container", []) if each["state"] != "COMPLETE"]


def _resource(name: str, path: Path) -> Object:
    entry = path.stat()
    value = {
        "resource": path.as_uri(), "type": "FILE", "visibility": "APPLICATION",
        "size": entry.st_size, "timestamp": int(entry.st_mtime * 1000),
    }  # fmt: skip
    return {"key": name, "value": value}


__all__ = ["YarnLauncher"]
