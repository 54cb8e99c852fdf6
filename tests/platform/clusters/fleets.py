"""The fake clusters for the tests of the master, by name, and the current one."""

from __future__ import annotations

import random

from tests.platform.clusters.fake_fleet import FakeFleet
from tests.platform.clusters.fake_kubernetes import FakeKubernetes
from tests.platform.clusters.fake_local import FakeLocal
from tests.platform.clusters.fake_yarn import FakeYarn

FLEETS: dict[str, type[FakeFleet]] = {"kubernetes": FakeKubernetes, "local": FakeLocal, "yarn": FakeYarn}
"""Each takes the mischief alone."""
_chosen = "kubernetes"


def choose(name: str) -> str:
    """Fakes that are made from now on are of this kind; returns the kind of before."""
    global _chosen
    before, _chosen = _chosen, name
    return before


def new_fleet(mischief: random.Random | None = None) -> FakeFleet:
    """A fake cluster of the chosen kind."""
    return FLEETS[_chosen](mischief)
