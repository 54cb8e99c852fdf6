"""The node agent as a cluster without memory volumes, as Kubernetes and YARN are."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import msgspec

from benchmarks.common.nodes.running import offered
from elastrec.platform.clusters import Backend
from elastrec.platform.clusters.local import LocalCluster
from elastrec.platform.clusters.local.client import LocalFleet
from elastrec.platform.clusters.local.config import LocalConfig
from elastrec.platform.clusters.local.launcher import LocalLauncher
from elastrec.platform.clusters.pods import PodSpec, PodStatus
from elastrec.platform.jobs import Platform
from elastrec.platform.specs.errors import ClusterError
from tests.faults.campaign.site import Site, site_at

NAME = "local-without-volumes"
ENTRY_POINT = f"{__name__}:BACKEND"


class WithoutVolumesConfig(LocalConfig, frozen=True, kw_only=True, tag=NAME):
    """A job's master is given all of it: agents grant rights of their own to masters of the backend `local` alone."""

    def for_master(self) -> WithoutVolumesConfig:
        return self


class WithoutVolumesFleet(LocalFleet):
    """Refuses what it cannot honour."""

    def create(self, pod: PodSpec) -> PodStatus:
        if pod.memory_volume is not None:
            raise ClusterError(f"pod {pod.name}: memory_volume is not allowed on this cluster; leave it out")
        return super().create(pod)


def _cluster(config: LocalConfig) -> LocalCluster:
    return LocalCluster(config.address, config.token, config.client_tls)


BACKEND = Backend(
    WithoutVolumesConfig,
    lambda config: LocalLauncher(_cluster(config)),
    lambda config, job: WithoutVolumesFleet(_cluster(config), job),
    is_remote=False,
)


def without_volumes(config: LocalConfig) -> WithoutVolumesConfig:
    """The same agent, reached by this backend."""
    return WithoutVolumesConfig(**msgspec.structs.asdict(config))


@contextlib.contextmanager
def site_without_volumes(home: Path) -> Iterator[Site]:
    """As `site_at`; what it starts and looks at goes through this backend."""
    with offered(home.parent / "packages", NAME, ENTRY_POINT), site_at(home) as site:
        platform = Platform.connect(without_volumes(site.cluster.config), "", str(home / "work"))
        yield dataclasses.replace(site, platform=platform)
