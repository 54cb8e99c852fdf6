"""The common part of the fake clusters: pods, a log of events with opaque tokens, and random failures.

There are no processes, threads or clocks: requests are executed when `settle` is called. Creation, deletion and
resizing differ between the kinds of clusters (`fake_kubernetes.py`, `fake_local.py`, `fake_yarn.py`).
`tests/spikes/test_fleets.py` and `tests/spikes/yarn/test_fleet.py` run the same tests on the fakes and the real
clusters.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from elastrec.platform.clusters.pods import EndReason, PodEvent, PodEventKind, PodPhase, PodSize, PodSpec, PodStatus
from elastrec.platform.specs.errors import ClusterError

_LATE_EVENTS = 30


class FakeFleet:
    """Implements `Fleet` for one job, except `create`, `delete` and `resize`.

    Attributes:
        mischief: source of random failures; None: nothing fails randomly, and requests are executed at once.
        delays: whether requests are only executed by `settle` even without `mischief`.
        pods: pods by uid.
        logs_of: logs by pod name.
        can_defer: whether a resize without room waits; otherwise it is refused.
        defers_resizes: whether the nodes are full at present.
        on_gone: called with name and uid when the process of a pod must end.
    """

    can_defer = True

    def __init__(self, mischief: random.Random | None = None) -> None:
        self.mischief = mischief
        self.delays = False
        self.pods: dict[str, PodStatus] = {}
        self.logs_of: dict[str, str] = {}
        self.defers_resizes = False
        self.on_gone: Callable[[str, str], None] = lambda name, uid: None
        self._events: list[PodEvent] = []
        self._forgotten = 0
        self._serial = 0

    @property
    def is_prompt(self) -> bool:
        """Whether what is asked for is done at once."""
        return self.mischief is None and not self.delays

    # What a job's master asks

    def create(self, pod: PodSpec) -> PodStatus:
        raise NotImplementedError

    def delete(self, name: str, uid: str, *, grace_seconds: float | None = None) -> None:
        raise NotImplementedError

    def resize(self, name: str, uid: str, size: PodSize) -> None:
        raise NotImplementedError

    def watch(self, resume: str, timeout_seconds: float) -> Iterator[PodEvent]:
        if resume == "" or int(resume) < self._forgotten:
            yield from [PodEvent(PodEventKind.SEEN, pod) for pod in self.pods.values()]
            yield PodEvent(PodEventKind.SYNCED, resume=self.token())
            return
        begin = int(resume) - self._forgotten
        for number, event in enumerate(self._events[begin:], start=int(resume) + 1):
            yield msgspec.structs.replace(event, resume=str(number))
        if self.mischief and self._events and self.mischief.random() < 0.2:
            # An event of before, which may be about a pod that is long gone.
            yield self.mischief.choice(self._events[-_LATE_EVENTS:])

    def logs(self, name: str, *, tail_lines: int | None = None) -> Iterator[str]:
        self._may_fail("the node does not answer")
        lines = self.logs_of[name].splitlines() if name in self.logs_of else []
        return iter(lines if tail_lines is None else lines[-tail_lines:])

    # What a test does

    def token(self) -> str:
        """From which a watch goes on with what happens from now on."""
        return str(self._forgotten + len(self._events))

    def named(self, name: str) -> PodStatus | None:
        return next((pod for pod in self.pods.values() if pod.name == name), None)

    def start(self, uid: str) -> None:
        """The pod's process runs."""
        self._change(uid, phase=PodPhase.RUNNING)

    def end(self, uid: str, end: EndReason, exit_code: int | None = None) -> None:
        """The pod's process is gone; nobody hears of it where the cluster has forgotten the pod."""
        if uid in self.pods:
            phase = PodPhase.SUCCEEDED if end is EndReason.COMPLETED else PodPhase.FAILED
            self._change(uid, phase=phase, end=end, exit_code=exit_code)

    def evict(self, uid: str) -> None:
        """The cluster takes the pod away, in its own way."""
        raise NotImplementedError

    def lose_node(self, uid: str) -> None:
        """The pod's node is not heard of any more; its process goes on."""
        if not self.pods[uid].phase.is_final:
            self._change(uid, phase=PodPhase.FAILED, end=EndReason.NODE_LOST, is_ending=False)

    def settle(self) -> None:
        """What was accepted is done, or found to be impossible."""
        raise NotImplementedError

    def master_restarts(self) -> None:
        """Another process of the job's master uses this fleet from now on."""

    def report_late(self, pod: PodStatus) -> None:
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

    # What the kinds of cluster are made of

    def _make(self, spec: PodSpec, *, taken: str, ending: str) -> PodStatus:
        """Returns the pod of that name; creates it if it does not exist.

        Args:
            taken: error text if another job or another role has the name.
            ending: error text if the pod of that name is being deleted, a temporary refusal.
        """
        found = self.named(spec.name)
        if found is None:
            found = self._add(spec)
        elif (found.job, found.role) != (spec.job, spec.role):
            raise ClusterError(taken)
        elif found.is_ending:
            raise ClusterError(ending, retryable=True)
        self._may_fail("the answer is lost")
        return found

    def _add(self, spec: PodSpec) -> PodStatus:
        self._serial += 1
        pod = PodStatus(
            name=spec.name, uid=f"uid-{self._serial}", job=spec.job, role=spec.role, phase=PodPhase.PENDING,
            size=spec.size, created_unix_seconds=float(self._serial), labels=spec.labels,
        )  # fmt: skip
        self._record(PodEventKind.ADDED, pod)
        return pod

    def _forget(self, uid: str) -> None:
        """The pod is not there any more; what ended it is what was known, or the request for its deletion."""
        pod = self.pods.pop(uid)
        self._events.append(
            PodEvent(PodEventKind.DELETED, msgspec.structs.replace(pod, end=pod.end or EndReason.DELETED))
        )
        self.on_gone(pod.name, uid)

    def _fits(self, uid: str, size: PodSize, node: PodSize | None) -> bool:
        """Whether a node that all pods share has that room beside all others; without a node there is always room."""
        if node is None:
            return True
        others = [pod.size for pod in self.pods.values() if pod.uid != uid and not pod.phase.is_final]
        cores = node.cores - sum(other.cores for other in others)
        memory_bytes = node.memory_bytes - sum(other.memory_bytes for other in others)
        return size.cores <= cores and size.memory_bytes <= memory_bytes

    def _may_fail(self, words: str) -> None:
        if self.mischief and self.mischief.random() < 0.1:
            raise ClusterError(words, retryable=True)

    def _change(self, uid: str, **fields: Any) -> None:
        self._record(PodEventKind.MODIFIED, msgspec.structs.replace(self.pods[uid], **fields))

    def _record(self, kind: PodEventKind, pod: PodStatus) -> None:
        self.pods[pod.uid] = pod
        self._events.append(PodEvent(kind, pod))
