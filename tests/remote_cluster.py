"""A backend for remote machines: its launcher only stores the requests (`FakeLauncher`) and starts nothing."""

from __future__ import annotations

from pathlib import Path

from elastrec.platform.clusters import Backend, ClusterConfig
from tests.platform.master.fakes import FakeCluster, FakeLauncher

ENTRY_POINTS = "[elastrec.clusters]\nfar = tests.remote_cluster:BACKEND\n"


class FarConfig(ClusterConfig, frozen=True, kw_only=True, tag="far"):
    """It needs no address."""


BACKEND = Backend(FarConfig, lambda config: FakeLauncher(), lambda config, job: FakeCluster())


def install(folder: Path) -> None:
    """Makes a folder of sys.path offer the backend `far`, as an installed distribution does."""
    information = folder / "far_cluster-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: far-cluster\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(ENTRY_POINTS)
