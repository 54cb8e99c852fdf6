"""Clusters: one protocol (`protocol.py`), its values (`pods.py`, `nodes.py`), and its backends.

Code for a single kind of cluster belongs to its backend, which is found by entry point (`backends.py`).
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
