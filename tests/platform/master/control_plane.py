"""A cluster with the manners of Kubernetes, without processes, threads or a clock: what it is asked for comes later.

With mischief it refuses for the moment, loses answers, forgets watch tokens and with them what happened meanwhile,
repeats old events, defers and refuses resizes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from elastrec.platform.clusters.pods import (
    EndReason,
    PodEvent,
    PodEventKind,
    PodPhase,
    PodSize,
    PodSpec,
    PodStatus,
    ResizeState,
)
from elastrec.platform.specs.errors import ClusterError

_LATE_EVENTS = 30


class ControlPlane:
    """Implements `Fleet` for one job.

    Attributes:
        mischief: None: everything is accepted, done and told at once.
        pods: by uid.
        logs_of: by pod name.
        defers_resizes: nodes are full for now.
        on_gone: called with name and uid when a pod's process has to end.
    """

    def __init__(self, mischief: random.Random | None = None) -> None:
        self.mischief = mischief
        self.pods: dict[str, PodStatus] = {}
        self.logs_of: dict[str, str] = {}
        self.defers_resizes = False
        self.on_gone: Callable[[str, str], None] = lambda name, uid: None
        self._events: list[PodEvent] = []
        self._forgotten = 0
        self._serial = 0

    # What a job's master asks

    def create(self, pod: PodSpec) -> PodStatus:
        self._may_fail("quota")
        found = self.named(pod.name)
        if found is None:
            self._serial += 1
            found = PodStatus(
                name=pod.name, uid=f"uid-{self._serial}", job=pod.job, role=pod.role, phase=PodPhase.PENDING,
                size=pod.size, created_unix_seconds=float(self._serial),
            )  # fmt: skip
            self._tell(PodEventKind.ADDED, found)
        self._may_fail("the answer is lost")
        return found

    def delete(self, name: str, uid: str, *, grace_seconds: float | None = None) -> None:
        self._may_fail("conflict")
        pod = self.pods.get(uid)
        if pod is None or pod.is_ending:
            return
        self._change(uid, is_ending=True)
        if self.mischief is None:
            self._finish_deletion(uid)

    def resize(self, name: str, uid: str, size: PodSize) -> None:
        self._may_fail("too many requests")
        pod = self.pods.get(uid)
        if pod is None or pod.phase.is_final:
            raise ClusterError(f"{name} is not there")
        what = self.mischief.random() if self.mischief else 0.5 if self.defers_resizes else 1.0
        if what < 0.2:
            raise ClusterError("no node is that large")
        if what < 0.6:
            self._change(uid, asked=size, resize=ResizeState.DEFERRED, resize_message="the node is full")
        else:
            self._change(uid, size=size, asked=None, resize=ResizeState.DONE, resize_message="")

    def watch(self, resume: str, timeout_seconds: float) -> Iterator[PodEvent]:
        if resume == "" or int(resume) < self._forgotten:
            yield from [PodEvent(PodEventKind.SEEN, pod) for pod in self.pods.values()]
            yield PodEvent(PodEventKind.SYNCED, resume=str(self._forgotten + len(self._events)))
            return
        begin = int(resume) - self._forgotten
        for number, event in enumerate(self._events[begin:], start=int(resume) + 1):
            yield msgspec.structs.replace(event, resume=str(number))
        if self.mischief and self._events and self.mischief.random() < 0.2:
            # An event of before, which may be about a pod that is long gone.
            yield self.mischief.choice(self._events[-_LATE_EVENTS:])

    def logs(self, name: str, *, tail_lines: int | None = None) -> Iterator[str]:
        self._may_fail("the node does not answer")
        return iter([self.logs_of[name]] if name in self.logs_of else [])

    # What a test does

    def named(self, name: str) -> PodStatus | None:
        return next((pod for pod in self.pods.values() if pod.name == name), None)

    def start(self, uid: str) -> None:
        """The pod's process runs."""
        self._change(uid, phase=PodPhase.RUNNING)

    def end(self, uid: str, end: EndReason, exit_code: int | None = None) -> None:
        """The pod's process is gone."""
        phase = PodPhase.SUCCEEDED if end is EndReason.COMPLETED else PodPhase.FAILED
        self._change(uid, phase=phase, end=end, exit_code=exit_code)

    def tell_late(self, pod: PodStatus) -> None:
        """An event of a pod that is not there any more."""
        self._events.append(PodEvent(PodEventKind.MODIFIED, pod))

    def vanish(self, uid: str) -> None:
        """The pod is gone, and nobody will ever hear of it: events until now are forgotten."""
        pod = self.pods.pop(uid)
        self.forget_events()
        self.on_gone(pod.name, uid)

    def forget_events(self) -> None:
        """No watch can go on with a token that it has."""
        self._forgotten += len(self._events) + 1
        self._events = []

    def settle(self) -> None:
        """What was accepted is done, or found to be impossible."""
        for uid, pod in list(self.pods.items()):
            if pod.is_ending:
                self._finish_deletion(uid)
            elif pod.resize is ResizeState.DEFERRED:
                if self.mischief and self.mischief.random() < 0.3:
                    self._change(uid, resize=ResizeState.INFEASIBLE, resize_message="the node is too small")
                else:
                    self._change(uid, size=pod.asked_size, asked=None, resize=ResizeState.DONE, resize_message="")

    def _finish_deletion(self, uid: str) -> None:
        pod = self.pods.pop(uid)
        gone = pod if pod.phase.is_final else msgspec.structs.replace(pod, end=EndReason.DELETED)
        self._events.append(PodEvent(PodEventKind.DELETED, gone))
        self.on_gone(pod.name, uid)

    def _may_fail(self, words: str) -> None:
        if self.mischief and self.mischief.random() < 0.1:
            raise ClusterError(words, retryable=True)

    def _change(self, uid: str, **fields: Any) -> None:
        self._tell(PodEventKind.MODIFIED, msgspec.structs.replace(self.pods[uid], **fields))

    def _tell(self, kind: PodEventKind, pod: PodStatus) -> None:
        self.pods[pod.uid] = pod
        self._events.append(PodEvent(kind, pod))
