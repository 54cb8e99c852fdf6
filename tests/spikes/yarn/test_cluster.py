"""The tool that runs YARN keeps all files of its daemons in its own folder, and removes it."""

from __future__ import annotations

import getpass
from pathlib import Path

import pytest

from tests.spikes.yarn.surroundings import missing
from tools.yarn.cluster import YarnCluster

pytestmark = pytest.mark.services

SHARED = Path("/tmp")
"""Where Java and Hadoop write by default, whatever TMPDIR says."""


def test_daemons_leave_nothing_in_the_machines_temporary_folder() -> None:
    if reason := missing():
        pytest.skip(reason)
    before = default_attributes()
    with YarnCluster(nodes=1) as cluster:
        port = cluster.url.rpartition(":")[2]
        unpacked = [path.relative_to(cluster.folder).parts[:2] for path in cluster.folder.glob("*/tmp/jetty-*")]
        assert {("resourcemanager", "tmp"), ("node-0", "tmp")} == set(unpacked)
        assert list((cluster.folder / "resourcemanager" / "node-attributes").iterdir())
    assert not cluster.folder.exists()
    assert not list(SHARED.glob(f"jetty-*-{port}-*"))
    assert default_attributes() == before


def default_attributes() -> dict[Path, int]:
    """Files where a ResourceManager keeps attributes of nodes by default, and when each was written."""
    folder = SHARED / f"hadoop-yarn-{getpass.getuser()}"
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
