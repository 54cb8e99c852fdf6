"""Several local node agents as the nodes of one cluster, for benchmarks and tests that need more than one node.

Each agent has a state folder, a size and a name of its own, all on this machine. The backend `local-nodes` is not part
of the product: `started_nodes` makes it known to this process and to the pods while it is needed. Nothing here decides
anything about a job.
"""

from benchmarks.common.nodes.backend import NodesConfig
from benchmarks.common.nodes.running import started_nodes

__all__ = ["NodesConfig", "started_nodes"]
