"""Clusters: one protocol (`protocol.py`) and its backends. What only one cluster knows stays in its sub-package."""

from __future__ import annotations

import msgspec

from elastrec.platform.clusters.local import LocalCluster
from elastrec.platform.clusters.protocol import Cluster, Fleet
from elastrec.platform.specs.errors import ClusterError
from elastrec.platform.transport.security import TlsConfig


class ClusterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach a cluster. As JSON it is a master's `cluster.json`; it holds a secret.

    Attributes:
        backend: `local`.
        address: `host:port` of the cluster's API.
        token: sent with every call.
        tls: PEM text of the root to trust; empty for plain TCP.
    """

    backend: str
    address: str
    token: str
    tls: str = ""


def connect_cluster(config: ClusterConfig) -> Cluster:
    """A client of the configured cluster; nothing is sent yet.

    Raises:
        ClusterError: the backend's name is not known.
    """
    if config.backend == "local":
        return _local(config)
    raise _unknown(config)


def connect_fleet(config: ClusterConfig, job: str) -> Fleet:
    """A client for the pods of one job; nothing is sent yet.

    Raises:
        ClusterError: the backend's name is not known.
    """
    if config.backend == "local":
        return _local(config).fleet(job)
    raise _unknown(config)


def _local(config: ClusterConfig) -> LocalCluster:
    tls = TlsConfig(root_pem=config.tls.encode()) if config.tls else None
    return LocalCluster(config.address, config.token, tls)


def _unknown(config: ClusterConfig) -> ClusterError:
    return ClusterError(f"backend: {config.backend!r} is not allowed; allowed: local")


def config_of(cluster: LocalCluster) -> ClusterConfig:
    """What a pod needs to reach the same cluster."""
    tls = cluster.tls.root_pem.decode() if cluster.tls else ""
    return ClusterConfig(backend="local", address=cluster.address, token=cluster.token, tls=tls)


__all__ = ["Cluster", "ClusterConfig", "config_of", "connect_cluster", "connect_fleet"]
