"""The backend `local-nodes`, in the form of an external package (see `running.offered`)."""

from __future__ import annotations

from benchmarks.common.nodes.cluster import NodesCluster
from benchmarks.common.nodes.fleet import NodesFleet
from benchmarks.common.nodes.launcher import NodesLauncher
from elastrec.platform.clusters import Backend, ClusterConfig
from elastrec.platform.clusters.local import LocalCluster
from elastrec.platform.clusters.local.config import LocalConfig
from elastrec.platform.specs.errors import FieldProblem

NAME = "local-nodes"


class NodesConfig(ClusterConfig, frozen=True, kw_only=True, tag=NAME):
    """The addresses of the node agents; contains their secrets. A job's master gets all of it, because agents grant
    separate rights only to masters of the backend `local`.

    Attributes:
        agents: by the name of the node, in the order in which nodes are filled.
        unschedulable: names of nodes that take no new pods (cordoned); pods that run there stay.
    """

    agents: dict[str, LocalConfig]
    unschedulable: tuple[str, ...] = ()

    def problems(self) -> list[FieldProblem]:
        """The problems of its agents or of the names of nodes."""
        problems = [problem for agent in self.agents.values() for problem in agent.problems()]
        if not self.agents:
            problems.append(FieldProblem("agents", "none", "at least one"))
        if unknown := [name for name in self.unschedulable if name not in self.agents]:
            problems.append(FieldProblem("unschedulable", str(unknown), f"names among {', '.join(self.agents)}"))
        return [*super().problems(), *problems]

    @property
    def job_tls(self) -> bool:
        """Where an agent speaks TLS."""
        return any(agent.job_tls for agent in self.agents.values())


def connect(config: NodesConfig) -> NodesCluster:
    """A client of all agents; nothing is sent yet."""
    agents = {name: LocalCluster(agent.address, agent.token, agent.client_tls) for name, agent in config.agents.items()}
    return NodesCluster(agents, config.unschedulable)


BACKEND = Backend(
    NodesConfig,
    lambda config: NodesLauncher(connect(config)),  # type: ignore[arg-type]
    lambda config, job: NodesFleet(connect(config), job),
    is_remote=False,
    has_memory_volumes=True,
)
