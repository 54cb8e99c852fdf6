"""The local cluster as a backend: the entry point `local` of the group `elastrec.clusters`."""

from __future__ import annotations

from elastrec.platform.clusters.backends import Backend
from elastrec.platform.clusters.local.client import LocalCluster, LocalFleet
from elastrec.platform.clusters.local.config import LocalConfig
from elastrec.platform.clusters.local.launcher import LocalLauncher


def _cluster(config: LocalConfig) -> LocalCluster:
    return LocalCluster(config.address, config.token, config.client_tls)


def _launcher(config: LocalConfig) -> LocalLauncher:
    return LocalLauncher(_cluster(config))


def _fleet(config: LocalConfig, job: str) -> LocalFleet:
    return _cluster(config).fleet(job)


BACKEND = Backend(LocalConfig, _launcher, _fleet, is_remote=False, has_memory_volumes=True)
