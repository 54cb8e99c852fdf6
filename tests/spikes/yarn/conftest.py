"""One cluster for all tests of the spike."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spikes.yarn.backend import YarnConfig, entry_point
from tests.spikes.yarn.surroundings import missing
from tools.yarn.cluster import YarnCluster
from tools.yarn.configuration import STEP_MB

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def yarn() -> Iterator[YarnCluster]:
    """One node runs, another one is configured."""
    if reason := missing():
        pytest.skip(reason)
    with YarnCluster(nodes=2, started=1) as cluster:
        (cluster.folder / "staging").mkdir(mode=0o700)
        yield cluster


@pytest.fixture(scope="session")
def staging(yarn: YarnCluster) -> Path:
    """A folder that all machines see."""
    return yarn.folder / "staging"


@pytest.fixture
def config(yarn: YarnCluster, staging: Path, tmp_path: Path) -> YarnConfig:
    """Of a client whose jobs have scripted pods."""
    packages = entry_point(tmp_path / "packages")
    pod = "tests.spikes.scripted_pod"
    return YarnConfig(
        url=yarn.url,
        user=yarn.user,
        configuration=str(yarn.client_configuration),
        jars=str(yarn.jars),
        staging=str(staging),
        step_mb=STEP_MB,
        python=sys.executable,
        environment={"PYTHONPATH": f"{packages}:{ROOT}"},
        modules={"elastrec.trainers.worker": pod, "elastrec.trainers.parameter_server": pod},
    )
