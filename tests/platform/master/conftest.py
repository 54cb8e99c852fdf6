"""Which fake cluster a test of the master runs under: a module that says `usefixtures("fleet")` runs under each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.platform.clusters.fleets import FLEETS, choose


@pytest.fixture(params=sorted(FLEETS))
def fleet(request: pytest.FixtureRequest) -> Iterator[str]:
    """The kind of cluster that `World` and `FakeCluster` have in this test."""
    before = choose(request.param)
    yield request.param
    choose(before)
