"""A fake cluster that behaves like the local agent: one node that accepts or refuses every request at once."""

from __future__ import annotations

import random

from elastrec.platform.clusters.pods import EndReason, PodSize, PodSpec, PodStatus
from elastrec.platform.specs.errors import ClusterError
from tests.platform.clusters.fake_fleet import FakeFleet


class FakeLocal(FakeFleet):
    """Implements `Fleet` for one job.

    Attributes:
        node: capacity for all pods; None: unlimited.
    """

    can_defer = False

    def __init__(self, mischief: random.Random | None = None) -> None:
        super().__init__(mischief)
        self.node: PodSize | None = None

    def create(self, pod: PodSpec) -> PodStatus:
        self._may_fail("the agent does not answer")
        name = f"name: {pod.name}"
        return self._make(pod, taken=f"{name} is taken by another pod", ending=f"{name} is being deleted")

    def delete(self, name: str, uid: str, *, grace_seconds: float | None = None) -> None:
        self._may_fail("the agent does not answer")
        pod = self.pods.get(uid)
        if pod is None or pod.is_ending:
            return
        self._change(uid, is_ending=True)
        if self.is_prompt:
            self._forget(uid)

    def resize(self, name: str, uid: str, size: PodSize) -> None:
        self._may_fail("the agent does not answer")
        pod = self.pods.get(uid)
        if pod is None or pod.phase.is_final or pod.is_ending:
            raise ClusterError(f"pod {name} cannot be resized: it is not there, or has ended")
        if not self._fits(uid, size, self.node) or (self.mischief and self.mischief.random() < 0.3):
            raise ClusterError(f"pod {name} cannot be resized: the node has not got the room")
        self._change(uid, size=size)

    def evict(self, uid: str) -> None:
        """The agent evicts nobody: the machine's kernel kills a process."""
        pod = self.pods[uid]
        if not pod.phase.is_final:
            self.end(uid, EndReason.KILLED, 137)
            self.on_gone(pod.name, uid)

    def lose_node(self, uid: str) -> None:
        """An agent that has lost its journal knows no pod of before."""
        self.vanish(uid)

    def settle(self) -> None:
        for uid, pod in list(self.pods.items()):
            if pod.is_ending:
                self._forget(uid)
