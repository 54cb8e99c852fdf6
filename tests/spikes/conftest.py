"""Real servers for the spikes, which only `make spikes` builds and starts, because they need minutes and memory."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.spikes.kubernetes.lab import Lab
from tools.kubernetes.build import programs


@pytest.fixture(scope="session")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A Kubernetes cluster with two nodes of processes."""
    if not os.environ.get("ELASTREC_SPIKES"):
        pytest.skip("the spikes need real servers: `make spikes` runs them")
    folder = programs()
    if folder is None:
        pytest.skip("Kubernetes' programs are not built: `python -m tools.kubernetes build`")
    lab = Lab(folder, tmp_path_factory.mktemp("nodes"))
    yield lab
    lab.close()
