"""A fake cluster that behaves like Kubernetes: asynchronous, with quotas, conflicts, deferred resizes and evictions."""

from __future__ import annotations

import random

from elastrec.platform.clusters.pods import EndReason, PodSize, PodSpec, PodStatus, ResizeState
from elastrec.platform.specs.errors import ClusterError
from tests.platform.clusters.fake_fleet import FakeFleet

_FOR_THE_MOMENT = (
    "too many requests, try again later",
    "the server is away",
    "etcdserver: request timed out",
    'User "master" cannot create resource "pods"',
)

_NOTICE = 4e9
"""When a pod that is to end will be killed: later than any test."""


class FakeKubernetes(FakeFleet):
    """Implements `Fleet` for one job.

    Attributes:
        quota: maximum number of pods; None: unlimited.
        node: capacity for all pods; None: unlimited.
        refuses_resizes: whether nodes refuse every resize as infeasible.
    """

    def __init__(self, mischief: random.Random | None = None) -> None:
        super().__init__(mischief)
        self.quota: int | None = None
        self.node: PodSize | None = None
        self.refuses_resizes = False
        self._causes: dict[str, EndReason] = {}

    def create(self, pod: PodSpec) -> PodStatus:
        self._fail_for_the_moment()
        if self.quota is not None and len(self.pods) >= self.quota and self.named(pod.name) is None:
            raise ClusterError(f"exceeded quota: {self.quota} pods", retryable=True)
        return self._make(
            pod,
            taken=f"{pod.name} is the name of a pod that is not {pod.role} of job {pod.job}",
            ending=f"{pod.name} is still terminating",
        )

    def delete(self, name: str, uid: str, *, grace_seconds: float | None = None) -> None:
        self._fail_for_the_moment()
        pod = self.pods.get(uid)
        if pod is None or pod.is_ending:
            return
        if pod.end is EndReason.NODE_LOST or self.is_prompt:
            # Nobody waits for a node that is not heard of.
            self._forget(uid)
            return
        self._change(uid, is_ending=True, ending_until_unix_seconds=_NOTICE)

    def resize(self, name: str, uid: str, size: PodSize) -> None:
        self._fail_for_the_moment()
        pod = self.pods.get(uid)
        if pod is None:
            raise ClusterError(f"{name} is not there")
        if self.mischief and self.mischief.random() < 0.2:
            raise ClusterError("Pod QOS Class may not change as a result of resizing")
        if self.node and (size.cores > self.node.cores or size.memory_bytes > self.node.memory_bytes):
            raise ClusterError("node didn't have enough allocatable resources")
        if size == pod.size:
            self._change(uid, asked=None, resize=ResizeState.DONE, resize_message="")
            return
        # Of a pod that has ended it is accepted, too, and never done.
        self._change(uid, asked=size, resize=ResizeState.IN_PROGRESS, resize_message="")
        if pod.phase.is_final:
            return
        defers = self.mischief.random() < 0.5 if self.mischief else self.defers_resizes
        if defers:
            self._change(uid, resize=ResizeState.DEFERRED, resize_message="the node is full")
        elif self.is_prompt:
            self._decide_resize(uid)

    def evict(self, uid: str) -> None:
        pod = self.pods[uid]
        if not pod.is_ending and not pod.phase.is_final:
            self._causes[uid] = EndReason.EVICTED
            self._change(uid, is_ending=True, ending_until_unix_seconds=_NOTICE)

    def settle(self) -> None:
        for uid, pod in list(self.pods.items()):
            if pod.is_ending:
                self._finish(uid)
            elif pod.asked is not None and not pod.phase.is_final and not self.defers_resizes:
                self._decide_resize(uid)

    def _finish(self, uid: str) -> None:
        """Its process ends first, its object is removed after that: a watch may stop in between."""
        pod = self.pods[uid]
        if not pod.phase.is_final:
            self.end(uid, self._causes.pop(uid, EndReason.DELETED), 143)
            self.on_gone(pod.name, uid)
            if self.mischief and self.mischief.random() < 0.5:
                return
        self._forget(uid)

    def _decide_resize(self, uid: str) -> None:
        pod = self.pods[uid]
        asked = pod.asked_size
        if self.refuses_resizes or (self.mischief and self.mischief.random() < 0.3):
            self._change(uid, resize=ResizeState.INFEASIBLE, resize_message="the node has static processors")
        elif self._fits(uid, asked, self.node):
            self._change(uid, size=asked, asked=None, resize=ResizeState.DONE, resize_message="")
        elif pod.resize is not ResizeState.DEFERRED:
            self._change(uid, resize=ResizeState.DEFERRED, resize_message="the node is full")

    def _fail_for_the_moment(self) -> None:
        self._may_fail(self.mischief.choice(_FOR_THE_MOMENT) if self.mischief else "")
