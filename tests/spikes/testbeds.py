"""One interface to every kind of cluster, fake or real, for `test_fleets.py`."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from benchmarks.common.nodes import NodesConfig
from elastrec.platform.clusters import connect_fleet
from elastrec.platform.clusters.local import LocalCluster
from elastrec.platform.clusters.pods import EndReason, PodPhase, PodSize, PodSpec, PodStatus
from elastrec.platform.clusters.protocol import Fleet
from elastrec.platform.master.pods.observed import Observed
from elastrec.platform.specs.metrics import Role
from tests.platform.clusters.fake_kubernetes import FakeKubernetes
from tests.platform.clusters.fake_local import FakeLocal
from tests.spikes.kubernetes.backend import KubernetesFleet
from tests.spikes.kubernetes.lab import NODE_SIZE, Namespace, wait_until

JOB = "job"
_PATIENCE_SECONDS = 60.0
_WATCH_SECONDS = 2.0
_EXIT_CODES = {EndReason.COMPLETED: 0, EndReason.ERROR: 1, EndReason.BAD_INPUT: 2, EndReason.KILLED: 137}
_PROGRAM = """\
import os, pathlib, signal, sys, time
if 'STUBBORN' in os.environ:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('first'); print('last')
work = pathlib.Path(os.environ['ELASTREC_WORK'])
(work / 'pid').write_text(str(os.getpid()))
order = work / 'exit'
while not order.exists():
    time.sleep(0.02)
sys.exit(int(order.read_text()))
"""
_names = itertools.count(1)


class Bed(Protocol):
    """A cluster with one node of `NODE_SIZE`. A testbed lacks the methods that its kind of cluster does not support.

    Attributes:
        fleet: fleet of the job `JOB`.
    """

    fleet: Fleet

    def settle(self) -> None:
        """Time passes: what was accepted may be done."""
        ...

    def end(self, uid: str, reason: EndReason) -> None:
        """The pod's process ends, and its node knows why."""
        ...

    def evict(self, pod: PodStatus) -> None:
        """Its node is drained."""
        ...

    def lose_node(self) -> None:
        """The node falls silent."""
        ...

    def refuse_resizes(self) -> None:
        """The node finds every larger size impossible, as one with pinned processors does."""
        ...

    def set_quota(self, pods: int | None) -> None: ...

    def stale_token(self) -> str:
        """A resume token that the cluster does not know any more."""
        ...


class FakeBed:
    """On a fake."""

    def __init__(self, fleet: FakeKubernetes | FakeLocal) -> None:
        self.fleet = fleet
        self.fleet.delays, self.fleet.node = True, NODE_SIZE

    def settle(self) -> None:
        for uid, pod in list(self.fleet.pods.items()):
            if pod.phase is PodPhase.PENDING and not pod.is_ending:
                self.fleet.start(uid)
                self.fleet.logs_of[pod.name] = "first\nlast"
        self.fleet.settle()

    def end(self, uid: str, reason: EndReason) -> None:
        self.fleet.end(uid, reason, _EXIT_CODES.get(reason, 137))

    def evict(self, pod: PodStatus) -> None:
        self.fleet.evict(pod.uid)

    def lose_node(self) -> None:
        for uid in list(self.fleet.pods):
            self.fleet.lose_node(uid)

    def refuse_resizes(self) -> None:
        assert isinstance(self.fleet, FakeKubernetes)
        self.fleet.refuses_resizes = True

    def set_quota(self, pods: int | None) -> None:
        assert isinstance(self.fleet, FakeKubernetes)
        self.fleet.quota = pods

    def stale_token(self) -> str:
        token = self.fleet.token()
        self.fleet.forget_events()
        return token


class KubernetesBed:
    """On the real one."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self.fleet = KubernetesFleet(namespace.pods, JOB)

    def settle(self) -> None:
        return

    def end(self, uid: str, reason: EndReason) -> None:
        pod = self._namespace.on_node(uid)
        if reason in (EndReason.COMPLETED, EndReason.ERROR, EndReason.BAD_INPUT):
            _order_exit(pod.folder / "work", reason)
        else:
            pod.end(word="OOMKilled" if reason is EndReason.OUT_OF_MEMORY else "")

    def evict(self, pod: PodStatus) -> None:
        self._namespace.evict(pod.name)

    def lose_node(self) -> None:
        self._namespace.lab.agents["n1"].fall_silent()

    def refuse_resizes(self) -> None:
        self._namespace.lab.agents["n1"].refuses_resizes = True

    def set_quota(self, pods: int | None) -> None:
        self._namespace.set_quota(pods)

    def stale_token(self) -> str:
        # A server that was started again keeps no changes of before.
        token: str = self._namespace.lab.admin.call("GET", "/api/v1/pods")["metadata"]["resourceVersion"]
        created = self.fleet.create(spec(name="later"))
        self.fleet.delete(created.name, created.uid)
        wait_until(lambda: self._namespace.pods.read("later") is None, "the later pod is gone")
        self._namespace.lab.servers.kill("kube-apiserver")
        self._namespace.lab.servers.start("kube-apiserver")
        return token


class LocalBed:
    """On a real node agent, which has no quotas and evicts nobody.

    Args:
        folder: folder of the agent.
    """

    def __init__(self, folder: Path, cluster: LocalCluster) -> None:
        self._folder, self._cluster = folder, cluster
        self.fleet: Fleet = cluster.fleet(JOB)

    def settle(self) -> None:
        return

    def end(self, uid: str, reason: EndReason) -> None:
        work = self._folder / "pods" / uid / "work"
        if reason is EndReason.KILLED:
            os.kill(int((work / "pid").read_text()), signal.SIGKILL)
        else:
            _order_exit(work, reason)

    def stale_token(self) -> str:
        # Of another agent, as after the loss of a journal.
        return "0123456789abcdef.1"

    def close(self) -> None:
        """The agent is as it was: without pods."""
        for pod in self._cluster.list():
            self._cluster.delete(pod.name, grace_seconds=0.0)


class NodesBed(LocalBed):
    """On two agents as one cluster; the second one takes no pods, but is watched, too.

    Args:
        folder: folder of the first agent.
    """

    def __init__(self, folder: Path, cluster: LocalCluster, config: NodesConfig) -> None:
        super().__init__(folder, cluster)
        self.fleet = connect_fleet(config, JOB)


def _order_exit(work: Path, reason: EndReason) -> None:
    """Writes the code by which the program is to end; by rename, so that it never reads half of it."""
    order = work / "order"
    order.write_text(str(_EXIT_CODES[reason]))
    order.rename(work / "exit")


class Observer:
    """Watches a testbed's fleet as a master does.

    Attributes:
        events: all reported events, the oldest first.
    """

    def __init__(self, testbed: Bed) -> None:
        self.testbed = testbed
        self.observed = Observed()
        self.events: list[tuple[str, PodStatus | None]] = []

    def until(self, fact: Callable[[], object], what: str) -> None:
        """Watches until a fact is true; fails with `what` where it does not come true."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not fact():
            assert time.monotonic() < deadline, f"not seen: {what}; {self.events[-5:]}"
            self.testbed.settle()
            self.observed.begin_watch()
            for event in self.testbed.fleet.watch(self.observed.resume, _WATCH_SECONDS):
                self.observed.take(event)
                self.events.append((event.kind, event.pod))
                if fact():
                    return

    def pod(self, uid: str) -> PodStatus | None:
        """As it was reported last; None: it is not there any more."""
        return self.observed.pods.get(uid)

    def until_pod(self, uid: str, fact: Callable[[PodStatus], object], what: str) -> PodStatus:
        """The pod, as soon as something is true of it."""
        self.until(lambda: (pod := self.pod(uid)) is not None and fact(pod), f"{uid}: {what}")
        pod = self.pod(uid)
        assert pod is not None
        return pod

    def running(self, **fields: object) -> PodStatus:
        """A pod that was created and runs, and whose program has begun."""
        created = self.testbed.fleet.create(spec(**fields))
        self.until_pod(created.uid, lambda pod: pod.phase is PodPhase.RUNNING, "runs")
        # No event reports output: a watch would only pass the time until it ends.
        wait_until(lambda: "last" in self.testbed.fleet.logs(created.name), "its output")
        pod = self.pod(created.uid)
        assert pod is not None
        return pod

    def until_gone(self, uid: str) -> PodStatus:
        """How the pod was known last."""
        self.until(lambda: uid in self.observed.gone, f"{uid} is gone")
        return self.observed.gone[uid]


def spec(**fields: object) -> PodSpec:
    """A pod whose process runs until it is ordered how to end."""
    values: dict[str, object] = {
        "name": f"pod-{next(_names)}",
        "job": JOB,
        "role": Role.WORKER,
        "command": (sys.executable, "-c", _PROGRAM),
        "size": PodSize(0.5, 128 << 20),
        "grace_seconds": 1.0,
    }
    return PodSpec(**{**values, **fields})  # type: ignore[arg-type]
