"""YarnFleet: the pods of one job as containers, inside the ApplicationMaster.

One thread polls the ResourceManager several times a second: this is the heartbeat of the application, sends requests,
and receives grants, changes and ends. Other threads call the nodes, because these calls may hang.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog

from elastrec.platform.clusters.nodes import Node
from elastrec.platform.clusters.pods import (
    EndReason,
    PodEvent,
    PodEventKind,
    PodPhase,
    PodSpec,
    PodStatus,
    ResizeState,
)
from elastrec.platform.specs.errors import ClusterError
from elastrec.platform.specs.shape import PodSize
from tests.spikes.yarn.application.event_log import EventLog
from tests.spikes.yarn.application.hadoop import Hadoop
from tests.spikes.yarn.application.launching import Site, launch_context, write_files
from tests.spikes.yarn.application.pod_log import Line, PodLog
from tests.spikes.yarn.node_logs import read_log
from tests.spikes.yarn.nodes import nodes_of
from tests.spikes.yarn.rest import Rest
from tests.spikes.yarn.sizes import end_of, pod_size, rounded

log = structlog.get_logger(__name__)
_POLL_SECONDS = 0.1
_RECOVERY_SECONDS = 20.0
_DEFERRED_SECONDS = 1.5
"""A larger size is granted within a few heartbeats of its node, if there is room; YARN does not say that it waits."""


@dataclass
class _Container:
    """Data of a container beside the status of its pod.

    Attributes:
        request: request that is not granted yet.
        granted: granted container, with node, token and version.
        goal: requested size in megabytes and cores, if it differs from the present one.
        update_since: time of the unanswered request for an update to `updating_to`.
        is_cancelling: whether the next heartbeat cancels the update.
    """

    spec: PodSpec | None = None
    request: Any = None
    granted: Any = None
    id: str = ""
    goal: tuple[int, int] | None = None
    update_since: float | None = None
    updating_to: tuple[int, int] | None = None
    is_cancelling: bool = False


class YarnFleet:
    """Implements `Fleet` for one job; safe to use from several threads.

    Args:
        address: address of this ApplicationMaster, which the ResourceManager reports to clients.
    """

    def __init__(self, hadoop: Hadoop, rest: Rest, site: Site, address: str) -> None:
        self._hadoop, self._rest, self._site = hadoop, rest, site
        self._log = EventLog(f"attempt-{site.attempt}")
        self._containers: dict[str, _Container] = {}
        self._pod_log = PodLog(site.staging / "pods.jsonl")
        self._numbers = itertools.count(site.attempt * 10**6)
        self._stopping, self._is_recovered = threading.Event(), threading.Event()
        self._nodes_calls = ThreadPoolExecutor(max_workers=4, thread_name_prefix="nodes")
        host, _, port = address.rpartition(":")
        answer = hadoop.manager.registerApplicationMaster(host, int(port), "")
        largest = answer.getMaximumResourceCapability()
        self._largest = (int(largest.getMemorySize()), int(largest.getVirtualCores()))
        self._recover(list(answer.getContainersFromPreviousAttempts()))
        self._thread = threading.Thread(target=self._run, name="resource-manager", daemon=True)
        self._thread.start()

    # What a job's master asks

    def create(self, pod: PodSpec) -> PodStatus:
        """See `Fleet.create`: the ApplicationMaster itself accepts; YARN grants later, or never."""
        self._wait_for_recovery()
        memory_mb, cores = self._fitting(pod.size)
        with self._log.changed:
            known = next((each for each in self._log.pods.values() if each.name == pod.name), None)
            if known is not None:
                return known
            number = next(self._numbers)
            status = PodStatus(
                name=pod.name, uid=str(number), job=pod.job, role=pod.role, phase=PodPhase.PENDING, size=pod.size,
                asked=pod.size, waits_for_room=True, reason="Requested", message="waits in the queue for a container",
                created_unix_seconds=time.time(), labels=pod.labels,
            )  # fmt: skip
            write_files(self._site, status.uid, pod)
            self._pod_log.write(Line(status))
            request = self._hadoop.request(number, memory_mb, cores, max(0, pod.priority))
            self._containers[status.uid] = _Container(pod, request)
            self._hadoop.manager.addContainerRequest(request)
            self._log.add(PodEventKind.ADDED, status)
            return status

    def delete(self, name: str, uid: str, *, grace_seconds: float | None = None) -> None:
        """See `Fleet.delete`. The time between SIGTERM and SIGKILL is the node's, the same for all containers."""
        with self._log.changed:
            pod = self._log.pods.get(uid)
            if pod is None or pod.name != name or pod.is_ending:
                return
            container = self._containers[uid]
            if pod.phase.is_final:
                self._forget(pod)
            elif container.granted is None:
                self._hadoop.manager.removeContainerRequest(container.request)
                self._forget(msgspec.structs.replace(pod, end=EndReason.DELETED))
            else:
                self._change(uid, is_ending=True)
                # Releasing it instead would report its end before its process has ended.
                self._nodes_calls.submit(self._stop, container.granted)

    def _stop(self, granted: Any) -> None:
        try:
            self._hadoop.nodes.stopContainer(granted.getId(), granted.getNodeId())
        except Exception as error:
            # Its node ends it when it hears of the ResourceManager again.
            log.warning("node_does_not_answer", container=str(granted.getId()), reason=str(error))
            self._hadoop.manager.releaseAssignedContainer(granted.getId())

    def resize(self, name: str, uid: str, size: PodSize) -> None:
        """See `Fleet.resize`."""
        goal = self._fitting(size)
        with self._log.changed:
            pod = self._log.pods.get(uid)
            if pod is None or pod.phase is not PodPhase.RUNNING:
                raise ClusterError(f"{name} does not run", retryable=pod is not None and not pod.phase.is_final)
            self._containers[uid].goal = goal
            self._change(uid, asked=size, resize=ResizeState.IN_PROGRESS, resize_message="")
            self._step(uid)

    def watch(self, resume: str, timeout_seconds: float) -> Iterator[PodEvent]:
        """See `Fleet.watch`."""
        self._wait_for_recovery()
        return self._log.watch(resume, timeout_seconds)

    def logs(self, name: str, *, tail_lines: int | None = None) -> Iterator[str]:
        """See `Fleet.logs`; from the container's node, which keeps them while the application runs."""
        with self._log.changed:
            uid = next((pod.uid for pod in self._log.pods.values() if pod.name == name), "")
            container = self._containers.get(uid)
        if container is None or container.granted is None:
            return iter(())
        return iter(read_log(str(container.granted.getNodeHttpAddress()), container.id, tail_lines))

    def nodes(self) -> list[Node]:
        """See `Fleet.nodes`."""
        return nodes_of(self._rest)

    def finish(self, *, succeeded: bool, message: str) -> None:
        """The job is over."""
        self.close()
        self._hadoop.finish(succeeded=succeeded, message=message)

    def close(self) -> None:
        """Ends the heartbeat; containers stay as they are."""
        self._stopping.set()
        self._thread.join(10.0)
        self._nodes_calls.shutdown(wait=False, cancel_futures=True)

    # What the ResourceManager says

    def _run(self) -> None:
        rounds = 0
        while not self._stopping.is_set():
            try:
                # It waits by itself while the ResourceManager is away, and registers again with one that restarted.
                self._take(self._hadoop.manager.allocate(0.5))
                rounds += 1
            except Exception:
                log.exception("resource_manager_failed")
            if rounds == 2:
                # What ended while no attempt was there comes with the first answers.
                self._end_recovery()
            self._stopping.wait(_POLL_SECONDS)

    def _take(self, answer: Any) -> None:
        with self._log.changed:
            for container in answer.getAllocatedContainers():
                self._granted(container)
            for updated in answer.getUpdatedContainers():
                self._updated(updated)
            for refused in answer.getUpdateErrors():
                self._not_updated(refused)
            for status in answer.getCompletedContainersStatuses():
                self._completed(str(status.getContainerId()), int(status.getExitStatus()), str(status.getDiagnostics()))
            for container in answer.getContainersFromPreviousAttempts() or ():
                self._found(container)
            for uid, container in self._containers.items():
                if container.is_cancelling:
                    container.is_cancelling = False
                    self._step(uid)
            self._notice(answer.getPreemptionMessage())
            self._defer()

    def _granted(self, granted: Any) -> None:
        uid = str(granted.getAllocationRequestId())
        container = self._containers.get(uid)
        if container is None or container.granted is not None:
            # Its request was taken back when it was on its way already, or was repeated to a new ResourceManager.
            self._hadoop.manager.releaseAssignedContainer(granted.getId())
            return
        self._hadoop.manager.removeContainerRequest(container.request)
        container.request, container.granted, container.id = None, granted, str(granted.getId())
        self._change(
            uid,
            size=_size_of(granted),
            node=str(granted.getNodeId()),
            waits_for_room=False,
            reason="Starting",
            message="",
        )
        assert container.spec is not None
        context = launch_context(self._hadoop, self._site, uid, container.spec)
        self._nodes_calls.submit(self._launch, uid, granted, context)

    def _launch(self, uid: str, granted: Any, context: Any) -> None:
        try:
            self._hadoop.nodes.startContainer(granted, context)
        except Exception as error:
            self._hadoop.manager.releaseAssignedContainer(granted.getId())
            with self._log.changed:
                self._ended(uid, EndReason.NOT_STARTED, None, str(error))
            return
        with self._log.changed:
            pod = self._log.pods.get(uid)
            if pod is not None and not pod.phase.is_final:
                self._change(uid, phase=PodPhase.RUNNING, reason="", started_unix_seconds=time.time())

    def _completed(self, container_id: str, exit_code: int, diagnostics: str) -> None:
        uid = next((uid for uid, each in self._containers.items() if each.id == container_id), None)
        if uid is None or self._log.pods[uid].phase.is_final:
            return  # reported twice, or released before its pod ever had it
        self._ended(uid, end_of(exit_code, diagnostics), exit_code, diagnostics)

    def _ended(self, uid: str, end: EndReason, exit_code: int | None, diagnostics: str) -> None:
        pod = self._log.pods.get(uid)
        if pod is None:
            return
        if pod.is_ending:
            self._forget(msgspec.structs.replace(pod, end=EndReason.DELETED))
            return
        phase = PodPhase.SUCCEEDED if end is EndReason.COMPLETED else PodPhase.FAILED
        self._change(
            uid, phase=phase, end=end, reason=f"Exit{exit_code}", message=diagnostics[-500:], waits_for_room=False,
            exit_code=exit_code if exit_code is not None and exit_code >= 0 else None,
            finished_unix_seconds=time.time(),
        )  # fmt: skip

    # Sizes

    def _step(self, uid: str) -> None:
        """Asks for the next size on the way to the goal: YARN changes one thing at a time, in one direction."""
        container = self._containers[uid]
        if container.goal is None or container.is_cancelling:
            return
        now, goal = _units_of(container.granted), container.goal
        if container.update_since is not None:
            if container.updating_to != goal:
                # An increase that waits is taken back by one to what there is; that has no answer.
                container.is_cancelling, container.update_since = True, None
                self._hadoop.update(container.granted, increase=True, memory_mb=now[0], cores=now[1])
            return
        if now == goal:
            container.goal = None
            self._change(uid, resize=ResizeState.DONE, resize_message="")
            return
        less = (min(now[0], goal[0]), min(now[1], goal[1]))
        container.updating_to, container.update_since = (goal if less == now else less), time.monotonic()
        memory_mb, cores = container.updating_to
        self._hadoop.update(container.granted, increase=less == now, memory_mb=memory_mb, cores=cores)

    def _updated(self, updated: Any) -> None:
        granted = updated.getContainer()
        uid = self._uid_of(granted)
        if uid is None:
            return
        container = self._containers[uid]
        container.granted, container.update_since = granted, None
        if self._hadoop.is_increase(updated):
            # Unless its node learns of it in time, the larger size is taken back.
            self._nodes_calls.submit(self._tell_node, granted)
        self._change(uid, size=_size_of(granted))
        # It may have come although it was taken back.
        container.goal = rounded(self._log.pods[uid].asked_size, self._site.step_mb)
        self._step(uid)

    def _tell_node(self, granted: Any) -> None:
        try:
            self._hadoop.nodes.updateContainerResource(granted)
        except Exception:
            log.exception("node_not_informed", container=str(granted.getId()))

    def _not_updated(self, refused: Any) -> None:
        request = refused.getUpdateContainerRequest()
        container_id = str(request.getContainerId())
        uid = next((uid for uid, each in self._containers.items() if each.id == container_id), None)
        if uid is None:
            return
        container = self._containers[uid]
        container.goal, container.update_since = None, None
        self._change(uid, resize=ResizeState.INFEASIBLE, resize_message=str(refused.getReason()))

    def _defer(self) -> None:
        for uid, container in self._containers.items():
            since = container.update_since
            is_late = since is not None and time.monotonic() - since > _DEFERRED_SECONDS
            if is_late and self._log.pods[uid].resize is ResizeState.IN_PROGRESS:
                words = "no room on its node, or in its queue"
                self._change(uid, resize=ResizeState.DEFERRED, resize_message=words)

    def _notice(self, message: Any) -> None:
        if message is None:
            return
        for part in (message.getStrictContract(), message.getContract()):
            for each in () if part is None else part.getContainers():
                uid = next((uid for uid, known in self._containers.items() if known.id == str(each.getId())), None)
                if uid is not None:
                    log.info("preemption_announced", pod=self._log.pods[uid].name)

    # The attempt before

    def _recover(self, running: list[Any]) -> None:
        by_id = {str(container.getId()): container for container in running}
        with self._log.changed:
            for uid, line in self._pod_log.read().items():
                granted = by_id.pop(line.container, None)
                self._containers[uid] = _Container(granted=granted, id=line.container)
                self._log.pods[uid] = line.pod
            for container in by_id.values():
                # The attempt before ended between the grant and its line.
                self._found(container)
        log.info("attempt_begins", attempt=self._site.attempt, running=len(running), pods=len(self._log.pods))

    def _found(self, granted: Any) -> None:
        """One that a node has reported after the ResourceManager had restarted, or that nobody knows any more."""
        uid = self._uid_of(granted)
        if uid is None:
            self._hadoop.manager.releaseAssignedContainer(granted.getId())
        elif self._containers[uid].granted is None:
            self._containers[uid].granted = granted

    def _end_recovery(self) -> None:
        """Requests end with the attempt that made them, so what has no container now gets none."""
        with self._log.changed:
            for pod in list(self._log.pods.values()):
                container = self._containers[pod.uid]
                if not pod.phase.is_final and container.granted is None and container.request is None:
                    self._forget(pod)
            self._is_recovered.set()

    def _wait_for_recovery(self) -> None:
        if not self._is_recovered.wait(_RECOVERY_SECONDS):
            raise ClusterError("the ResourceManager does not answer", retryable=True)

    # Helpers, under the log's lock

    def _change(self, uid: str, **fields: Any) -> None:
        pod = msgspec.structs.replace(self._log.pods[uid], **fields)
        self._pod_log.write(Line(pod, self._containers[uid].id))
        self._log.add(PodEventKind.MODIFIED, pod)

    def _forget(self, pod: PodStatus) -> None:
        self._pod_log.write(Line(pod, is_deleted=True))
        del self._containers[pod.uid]
        self._log.add(PodEventKind.DELETED, pod)

    def _uid_of(self, granted: Any) -> str | None:
        return next((uid for uid, each in self._containers.items() if each.id == str(granted.getId())), None)

    def _fitting(self, size: PodSize) -> tuple[int, int]:
        memory_mb, cores = rounded(size, self._site.step_mb)
        if memory_mb > self._largest[0] or cores > self._largest[1]:
            # YARN's answer to it would be an error of the heartbeat, and of every later one.
            largest = f"{self._largest[0]} MB and {self._largest[1]} cores"
            raise ClusterError(f"{memory_mb} MB and {cores} cores are not allowed; allowed: at most {largest}")
        return memory_mb, cores


def _units_of(granted: Any) -> tuple[int, int]:
    resource = granted.getResource()
    return int(resource.getMemorySize()), int(resource.getVirtualCores())


def _size_of(granted: Any) -> PodSize:
    return pod_size(*_units_of(granted))
