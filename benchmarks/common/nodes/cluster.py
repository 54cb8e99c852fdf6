"""The agents of all nodes behind one client, for callers and masters."""

from __future__ import annotations

import builtins
import threading
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from benchmarks.common.nodes.placing import place
from elastrec.platform.clusters.local import LocalCluster
from elastrec.platform.clusters.nodes import Node, NodeCondition
from elastrec.platform.clusters.pods import PodSize, PodSpec, PodStatus
from elastrec.platform.specs.errors import ClusterError


def for_agent(pod: PodSpec) -> PodSpec:
    """A pod as sent to the agent of its node, after the choice of the node."""
    return msgspec.structs.replace(pod, placement=None)


class NodesCluster:
    """Thread-safe. If a needed agent does not answer, a call raises its ClusterError.

    Names of pods are unique in the cluster as long as one process at a time creates the pods of a job.

    Args:
        agents: by the name of their node, in the order in which nodes are filled.
        unschedulable: names of nodes that take no new pods.

    Attributes:
        agents: as given.
    """

    def __init__(self, agents: Mapping[str, LocalCluster], unschedulable: Sequence[str] = ()) -> None:
        self.agents = dict(agents)
        self._unschedulable = frozenset(unschedulable)
        self._placing = threading.Lock()

    def create(self, pod: PodSpec, *, replaces_ended: bool = False) -> PodStatus:
        """Creates a pod on one of the nodes; returns an existing one of that name.

        Args:
            replaces_ended: whether one that has ended is deleted and created again.

        Raises:
            ClusterError: the pod cannot be honoured, another one has its name, or an agent does not answer.
        """
        # One after the other, because the next pod is placed by the capacity that this one leaves.
        with self._placing:
            found = self.find(pod.name)
            if found is not None:
                node, present = found
                if not (replaces_ended and present.phase.is_final and node in self._unschedulable):
                    return self.agents[node].create(for_agent(pod), replaces_ended=replaces_ended)
                self.agents[node].delete(pod.name)
            pods = {name: agent.list(pod.job) for name, agent in self.agents.items()}
            node = place(pod, self.nodes(), pods)
            return self.agents[node].create(for_agent(pod), replaces_ended=replaces_ended)

    def find(self, name: str) -> tuple[str, PodStatus] | None:
        """The pod of this name, after the name of its node; None: there is none."""
        for node, agent in self.agents.items():
            if (pod := agent.get(name)) is not None:
                return node, pod
        return None

    def list(self, job: str | None = None) -> builtins.list[PodStatus]:
        """Pods of a job, or all; oldest first."""
        pods = [pod for agent in self.agents.values() for pod in agent.list(job)]
        return sorted(pods, key=lambda pod: pod.created_unix_seconds)

    def delete(self, name: str) -> None:
        """Ends and removes a pod, if it exists; returns when no process of it is left."""
        for agent in self.agents.values():
            agent.delete(name)

    def secrets(self, name: str, uid: str) -> dict[str, str] | None:
        """See `Launcher.secrets`."""
        answers = (agent.secrets(name, uid) for agent in self.agents.values())
        return next((files for files in answers if files is not None), None)

    def nodes(self) -> builtins.list[Node]:
        """One per agent, in their order."""
        return [self._node(name, node) for name, agent in self.agents.items() for node in agent.nodes()]

    def _node(self, name: str, node: Node) -> Node:
        if name not in self._unschedulable:
            return node
        conditions = (*node.conditions, NodeCondition.UNSCHEDULABLE)
        return msgspec.structs.replace(node, free=PodSize(0.0, 0), conditions=conditions)

    def logs(self, name: str, *, tail_lines: int | None = None, follow: bool = False) -> Iterator[str]:
        """See `Launcher.logs`."""
        found = self.find(name)
        if found is None:
            raise ClusterError(f"pod {name} is not there; see the list of pods")
        return self.agents[found[0]].logs(name, tail_lines=tail_lines, follow=follow)

    def close(self) -> None:
        """Closes the connections; nothing in the cluster changes."""
        for agent in self.agents.values():
            agent.close()
