"""A part of the long random run (`python -m tests.platform.master.long_run` runs a million events)."""

from __future__ import annotations

from collections import Counter

import pytest

from elastrec.platform.master.machine import events
from tests.conftest import example_factor, examples
from tests.platform.clusters.fleets import FLEETS, choose
from tests.platform.master.long_run import Figures, long_run

LEAST_EVENTS = 30_000


def test_a_long_random_life_is_replayed_from_every_prefix_of_its_journal() -> None:
    runs: list[Figures] = []
    left = examples(LEAST_EVENTS)
    for done, kind in enumerate(sorted(FLEETS)):
        before = choose(kind)
        try:
            # At least one job, also where the job before was longer than the share of all.
            runs.append(long_run(seed=23, least_events=max(1, left // (len(FLEETS) - done))))
        finally:
            choose(before)
        left -= runs[-1].events
    # Runs that saw hardly anything would prove hardly anything.
    assert left <= 0 and all(run.jobs for run in runs)
    if example_factor() < 1:
        return  # rare events need a long run; `make test` has it
    assert sum(run.master_restarts for run in runs) > 20 and sum(run.loaded_prefixes for run in runs) > 10
    assert sum(run.rollbacks for run in runs) > 20 and sum(run.records for run in runs) > 20
    assert sum((run.ends for run in runs), Counter[str]())["Succeeded"] >= 1
    assert set().union(*(run.kinds for run in runs)) >= {
        kind.__name__ for kind in events.Event.__args__ if kind not in (events.StopAsked, events.PodRefused)
    }


@pytest.mark.usefixtures("some_fleet")
def test_equal_seeds_give_equal_lives() -> None:
    assert long_run(seed=7, least_events=1_000) == long_run(seed=7, least_events=1_000)
