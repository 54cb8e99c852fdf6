"""A share of the long random run (`python -m tests.platform.master.long_run` plays the million)."""

from __future__ import annotations

import pytest

from elastrec.platform.master.machine import events
from tests.platform.master.long_run import long_run

pytestmark = pytest.mark.usefixtures("fleet")


def test_a_long_random_life_is_replayed_from_every_prefix_of_its_journal() -> None:
    figures = long_run(seed=23, least_events=30_000)
    # A run that saw hardly anything would prove hardly anything.
    assert figures.master_restarts > 20 and figures.loaded_prefixes > 10
    assert figures.rollbacks > 20 and figures.records > 20
    assert figures.ends["Succeeded"] >= 1
    assert set(figures.kinds) >= {
        kind.__name__ for kind in events.Event.__args__ if kind not in (events.StopAsked, events.PodRefused)
    }


def test_equal_seeds_give_equal_lives() -> None:
    assert long_run(seed=7, least_events=2_000) == long_run(seed=7, least_events=2_000)
