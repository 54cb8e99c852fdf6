"""The fake clusters for the tests of the master.

The tests of a module with `usefixtures("fleet")`, which is about pods, run with each kind of cluster. Each test of a
module with `usefixtures("some_fleet")` runs with one kind, always the same one, and in the nightly lane with each kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from zlib import crc32

import pytest

from tests.conftest import example_factor
from tests.platform.clusters.fleets import FLEETS, choose

_KINDS = sorted(FLEETS)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "some_fleet" in metafunc.fixturenames:
        own = _KINDS[crc32(metafunc.function.__name__.encode()) % len(_KINDS)]
        metafunc.parametrize("some_fleet", _KINDS if example_factor() > 1 else [own], indirect=True)


@pytest.fixture(params=_KINDS)
def fleet(request: pytest.FixtureRequest) -> Iterator[str]:
    """The kind of cluster that `World` and `FakeCluster` have in this test."""
    yield from _chosen(request.param)


@pytest.fixture
def some_fleet(request: pytest.FixtureRequest) -> Iterator[str]:
    """As `fleet`, for a promise that is not about pods."""
    yield from _chosen(request.param)


def _chosen(kind: str) -> Iterator[str]:
    before = choose(kind)
    yield kind
    choose(before)
