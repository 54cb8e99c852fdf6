"""Clusters: one protocol (`protocol.py`), the values that cross it (`pods.py`, `nodes.py`), and its backends.

What only one cluster knows stays in its backend, which is found by entry point (`backends.py`).
"""

from elastrec.platform.clusters.backends import (
    Backend,
    ClusterConfig,
    connect_fleet,
    connect_launcher,
    decode_config,
    encode_config,
)
from elastrec.platform.clusters.protocol import Fleet, Launcher

__all__ = [
    "Backend",
    "ClusterConfig",
    "Fleet",
    "Launcher",
    "connect_fleet",
    "connect_launcher",
    "decode_config",
    "encode_config",
]
