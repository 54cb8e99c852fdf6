"""One cluster for all tests of the spike."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spikes.yarn.surroundings import missing
from tools.yarn.cluster import YarnCluster


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
