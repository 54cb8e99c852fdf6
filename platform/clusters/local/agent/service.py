"""The node agent: one machine as a cluster of finite size. Ties journal, life cycle and pod runner together.

Every change is journalled before it is answered or executed. When an agent ends for any reason, its pods continue to
run; the next agent with the same folder adopts them.
"""

from __future__ import annotations

import time
import uuid

import structlog

from elastrec.platform.clusters.local.agent import pod_life as life
from elastrec.platform.clusters.local.agent.long_polls import LongPolls
from elastrec.platform.clusters.local.agent.pod_checks import (
    check_fits_at_all,
    check_grace,
    check_group,
    check_size,
    check_spec,
)
from elastrec.platform.clusters.local.agent.pod_life import Stage
from elastrec.platform.clusters.local.processes.ports import choose_port
from elastrec.platform.clusters.nodes import Node, NodeCondition
from elastrec.platform.clusters.pods import PodEventKind, PodSize, PodSpec, PodStatus
from elastrec.platform.specs.errors import ClusterError

log = structlog.get_logger(__name__)
_DELETE_SLACK_SECONDS = 30.0


class NodeAgent(LongPolls):
    """All operations of a local cluster; safe to use from several threads. Arguments are those of `Supervision`."""

    _takes_pods = True

    def create(self, spec: PodSpec, *, replaces_ended: bool = False) -> PodStatus:
        """See `CreatePod`.

        Raises:
            ClusterError: the pod is not possible here, or another one has its name.
        """
        check_spec(spec, self._node)
        with self._lock:
            if not self._takes_pods:
                # A running master would replace pods that have ended.
                raise ClusterError("the node agent is being stopped", retryable=True)
            present = self._find(spec.name)
            if present is not None:
                if (present.spec.job, present.spec.role) != (spec.job, spec.role):
                    raise ClusterError(
                        f"name: {spec.name} is taken by another pod (job {present.spec.job}, {present.phase}); "
                        "delete that pod or choose another name"
                    )
                if present.is_deleting:
                    problem = f"name: {spec.name} is being deleted; create it again when that is done"
                    raise ClusterError(problem, retryable=True)
                if not (replaces_ended and present.stage is Stage.ENDED):
                    return self._status(present)
            check_fits_at_all(spec.name, spec.size, self._total, spec.memory_volume)
            check_group(spec, (record.spec for record in self._pods.values()))
            port = choose_port({record.port for record in self._pods.values()}) if spec.serves else 0
            record = life.new_record(spec, uid=uuid.uuid4().hex, node=self._node, port=port, now=time.time())
            self._runner.prepare(record.uid, spec.files | spec.secrets)
            if present is not None:
                self._forget(present)
            self._keep(record, kind=PodEventKind.ADDED)
            self._admit()
            record = self._pods[record.uid]
            log.info("pod_created", pod=spec.name, job=spec.job, size=spec.size, phase=record.phase, why=record.message)
            return self._status(record)

    def delete(self, name: str, grace_seconds: float | None = None, *, uid: str = "", wait: bool = True) -> None:
        """See `DeletePod`.

        Raises:
            ClusterError: the grace period is not allowed, or the pod did not end within it.
        """
        if grace_seconds is not None:
            check_grace(name, grace_seconds)
        with self._lock:
            record = self._find(name)
            if record is None or uid not in ("", record.uid):
                return
            grace = record.spec.grace_seconds if grace_seconds is None else grace_seconds
            self._begin_delete(record, grace)
            deadline = time.monotonic() + grace + _DELETE_SLACK_SECONDS
            while wait and record.uid in self._pods:
                if self._closed:
                    raise ClusterError(f"the node agent ends; pod {name} will be gone when the next one has started")
                if not self._changed.wait(deadline - time.monotonic()):
                    raise ClusterError(f"pod {name} did not end within {grace + _DELETE_SLACK_SECONDS:g} s")

    def delete_all(self) -> None:
        """Deletes every pod, each with its own grace period, and accepts no more; returns when no process is left."""
        with self._lock:
            self._takes_pods = False
            names = [record.spec.name for record in self._pods.values()]
            for record in list(self._pods.values()):
                self._begin_delete(record, record.spec.grace_seconds)
        for name in names:
            self.delete(name)

    def secrets(self, name: str, uid: str) -> dict[str, str] | None:
        """See `Launcher.secrets`."""
        with self._lock:
            record = self._find(name)
            if record is None or record.uid != uid:
                return None
            return self._runner.read_files(uid, record.spec.secrets)

    def longest_grace_seconds(self, name: str | None) -> float:
        """The maximum duration of a deletion, of one pod or of all."""
        with self._lock:
            records = [record for record in self._pods.values() if name in (None, record.spec.name)]
            return max((record.spec.grace_seconds for record in records), default=0.0)

    def resize(self, name: str, size: PodSize, uid: str = "") -> PodStatus:
        """See `ResizePod`.

        Raises:
            ClusterError: there is no such pod, or this node does not have the capacity.
        """
        check_size(size)
        with self._lock:
            record = self._find(name)
            if record is not None and uid not in ("", record.uid):
                record = None
            if record is None or record.stage is Stage.ENDED or record.is_deleting:
                state = "there is no such pod" if record is None else f"it is {record.phase} ({record.reason})"
                raise ClusterError(f"pod {name} cannot be resized: {state}; a pod must be pending or running")
            check_fits_at_all(name, size, self._total)
            if record.size == size:
                return self._status(record)
            if record.holds_resources:
                others = [other for other in self._pods.values() if other.uid != record.uid]
                short = life.shortage(size, life.free_of(self._total, others, self._volumes_bytes))
                if short:
                    raise ClusterError(f"pod {name} cannot be resized: {short}")
                self._limits.resize(record.uid, size, record.startup_cores)
            log.info("pod_resized", pod=name, before=record.size, after=size)
            self._keep(life.resized(record, size))
            self._admit()
            return self._status(self._pods[record.uid])

    @property
    def _volumes_bytes(self) -> int:
        return sum(self._volumes.sizes.values())

    def pods(self, name: str | None, job: str | None) -> list[PodStatus]:
        """Of a name, of a job, or all; oldest first."""
        with self._lock:
            return [
                self._status(record)
                for record in self._pods.values()
                if name in (None, record.spec.name) and job in (None, record.spec.job)
            ]

    def nodes(self) -> list[Node]:
        """This machine."""
        with self._lock:
            free = life.free_of(self._total, self._pods.values(), self._volumes_bytes)
            conditions = () if self._limits.enforced else (NodeCondition.LIMITS_NOT_ENFORCED,)
            return [Node(name=self._node, size=self._total, free=free, conditions=conditions)]
