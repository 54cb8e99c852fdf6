"""The launcher of the cluster of several agents, for callers outside of a job."""

from __future__ import annotations

from typing import Any

from benchmarks.common.nodes.cluster import NodesCluster, for_agent
from elastrec.platform.clusters.local.launcher import LocalLauncher
from elastrec.platform.clusters.pods import PodSpec


class NodesLauncher(LocalLauncher):
    """A `LocalLauncher` whose pods go to the agent that has room for them."""

    cluster: NodesCluster  # type: ignore[assignment]

    def dry_run(self, pod: PodSpec) -> dict[str, Any]:
        """See `Launcher.dry_run`: whichever agent it is sent to, the request is the same."""
        return super().dry_run(for_agent(pod))
