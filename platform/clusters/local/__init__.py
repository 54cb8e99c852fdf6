"""The embedded cluster: a node agent that runs pods as process groups with real limits on this machine.

This room is independent of masters and models, and `PodRunner` also of the agent.
"""

from elastrec.platform.clusters.local.client import LocalCluster
from elastrec.platform.clusters.local.life_cycle import find_agent, has_left_pods, start_agent, stop_agent

__all__ = ["LocalCluster", "find_agent", "has_left_pods", "start_agent", "stop_agent"]
