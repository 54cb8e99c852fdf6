"""A fake cluster that behaves like YARN, as seen by the fleet of an ApplicationMaster.

Requests are never refused temporarily; they wait. Containers are granted one by one, in steps of memory and whole
cores. Events arrive by polling, delayed and in another order; the answer to a resize arrives when there is room, or
never. A new attempt of the ApplicationMaster begins without the requests of the previous one.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from elastrec.platform.clusters.pods import EndReason, PodEvent, PodPhase, PodSpec, PodStatus, ResizeState
from elastrec.platform.specs.errors import ClusterError
from elastrec.platform.specs.shape import PodSize
from tests.platform.clusters.fake_fleet import FakeFleet


class FakeYarn(FakeFleet):
    """Implements `Fleet` for one job.

    Attributes:
        step_bytes: granted memory is a multiple of it.
        largest: maximum size of a container.
        node: capacity for all containers; None: unlimited.
    """

    def __init__(self, mischief: random.Random | None = None) -> None:
        super().__init__(mischief)
        self.step_bytes = 64
        self.largest = PodSize(64.0, 2**40)
        self.node: PodSize | None = None
        self._unheard: dict[str, tuple[EndReason, int | None]] = {}

    def create(self, pod: PodSpec) -> PodStatus:
        self._check(pod.size)
        found = self.named(pod.name)
        if found is None:
            uid = self._add(pod).uid
            self._change(uid, asked=pod.size, waits_for_room=True)
            found = self.pods[uid]
        return found

    def delete(self, name: str, uid: str, *, grace_seconds: float | None = None) -> None:
        pod = self.pods.get(uid)
        if pod is None or pod.is_ending:
            return
        if pod.phase is PodPhase.RUNNING:
            self._change(uid, is_ending=True)
            self._unheard.setdefault(uid, (EndReason.DELETED, None))
        else:
            # A request is taken back, or what is remembered of an end is forgotten.
            self._forget(uid)

    def resize(self, name: str, uid: str, size: PodSize) -> None:
        self._check(size)
        pod = self.pods.get(uid)
        if pod is None or pod.phase.is_final:
            raise ClusterError(f"{name} is not there")
        if pod.phase is PodPhase.PENDING:
            self._change(uid, asked=size, size=size)
        elif self.rounded(size) == pod.size:
            self._change(uid, asked=size, resize=ResizeState.DONE, resize_message="")
        else:
            self._change(uid, asked=size, resize=ResizeState.IN_PROGRESS, resize_message="")

    def watch(self, resume: str, timeout_seconds: float) -> Iterator[PodEvent]:
        if not self.delays:
            self._poll()
        yield from super().watch(resume, timeout_seconds)

    def start(self, uid: str) -> None:
        """A container is granted, and the pod's process runs in it."""
        pod = self.pods[uid]
        self._change(uid, size=self.rounded(pod.asked_size), phase=PodPhase.RUNNING, waits_for_room=False)

    def end(self, uid: str, end: EndReason, exit_code: int | None = None) -> None:
        if uid in self.pods and not self.pods[uid].phase.is_final:
            self._unheard.setdefault(uid, (end, exit_code))

    def evict(self, uid: str) -> None:
        if uid in self.pods and self.pods[uid].phase is PodPhase.RUNNING:
            self.end(uid, EndReason.PREEMPTED)
            self.on_gone(self.pods[uid].name, uid)

    def lose_node(self, uid: str) -> None:
        self.end(uid, EndReason.NODE_LOST)

    def settle(self) -> None:
        for uid in list(self._unheard):
            self._hear_of_end(uid)
        for uid, pod in list(self.pods.items()):
            if self._awaits_size(pod) and not self.defers_resizes:
                self._decide_resize(uid)

    def vanish(self, uid: str) -> None:
        self._unheard.pop(uid, None)
        super().vanish(uid)

    def master_restarts(self) -> None:
        """As another attempt of the ApplicationMaster, it knows containers, but no requests of the one before."""
        for uid, pod in list(self.pods.items()):
            if pod.phase is PodPhase.PENDING:
                del self.pods[uid]
        self.forget_events()

    def rounded(self, size: PodSize) -> PodSize:
        """What is granted for a size."""
        memory_bytes = math.ceil(size.memory_bytes / self.step_bytes) * self.step_bytes
        return PodSize(float(math.ceil(size.cores)), memory_bytes)

    def has_room(self, uid: str, size: PodSize) -> bool:
        """Whether the pod may have this size."""
        if self.node is None:
            return True
        others = [pod.size for pod in self.pods.values() if pod.uid != uid and pod.phase is PodPhase.RUNNING]
        cores = self.node.cores - sum(each.cores for each in others)
        return size.cores <= cores and size.memory_bytes <= self.node.memory_bytes - sum(
            each.memory_bytes for each in others
        )

    def _check(self, size: PodSize) -> None:
        rounded = self.rounded(size)
        if rounded.cores > self.largest.cores or rounded.memory_bytes > self.largest.memory_bytes:
            raise ClusterError(f"{size} is not allowed; allowed: at most {self.largest}")

    def _poll(self) -> None:
        """Some of what has happened is heard."""
        for uid in list(self._unheard):
            if self.mischief is None or self.mischief.random() < 0.5:
                self._hear_of_end(uid)
        for uid, pod in list(self.pods.items()):
            if not self._awaits_size(pod):
                continue
            if self.defers_resizes or (self.mischief and self.mischief.random() < 0.5):
                self._defer(uid)
            else:
                self._decide_resize(uid)

    def _hear_of_end(self, uid: str) -> None:
        end, exit_code = self._unheard.pop(uid)
        if uid not in self.pods:
            return
        if self.pods[uid].is_ending:
            self._forget(uid)
        else:
            super().end(uid, end, exit_code)

    @staticmethod
    def _awaits_size(pod: PodStatus) -> bool:
        return pod.phase is PodPhase.RUNNING and pod.resize in (ResizeState.IN_PROGRESS, ResizeState.DEFERRED)

    def _decide_resize(self, uid: str) -> None:
        pod = self.pods[uid]
        now, goal = pod.size, self.rounded(pod.asked_size)
        if self.mischief and self.mischief.random() < 0.1:
            self._change(uid, resize=ResizeState.INFEASIBLE, resize_message="RESOURCE_UPDATE_FAILED")
            return
        # Less comes first: one change goes in one direction.
        less = PodSize(min(now.cores, goal.cores), min(now.memory_bytes, goal.memory_bytes))
        if less != now:
            self._change(uid, size=less)
        if self.has_room(uid, goal):
            self._change(uid, size=goal, resize=ResizeState.DONE, resize_message="")
        else:
            self._defer(uid)

    def _defer(self, uid: str) -> None:
        if self.pods[uid].resize is not ResizeState.DEFERRED:
            self._change(uid, resize=ResizeState.DEFERRED, resize_message="the node is full")
