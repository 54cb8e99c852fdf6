from __future__ import annotations

import numpy as np
import pytest

from elastrec.platform.simulator.mixes import Habits, recurring
from elastrec.platform.specs.errors import ScalingError


def test_equal_seeds_give_equal_jobs_and_other_seeds_others() -> None:
    assert recurring(20, seed=1) == recurring(20, seed=1) != recurring(20, seed=2)


def test_jobs_of_one_model_are_alike_and_ask_for_different_things() -> None:
    jobs = recurring(200, habits=Habits(models=4, teams=2))
    groups = {name: [each for each in jobs if each.features.categories["name"] == name] for name in ("model-000",)}
    (group,) = groups.values()
    assert len({each.coefficients for each in group}) == 1
    assert len({each.allocation for each in group}) > 10
    assert np.std(np.log([each.samples for each in group])) == pytest.approx(0.1, abs=0.04)


def test_habits_have_the_shares_that_they_say() -> None:
    jobs = recurring(1500, seed=3)
    short = [
        each.memory is not None
        and each.memory.server_bytes(each.allocation.parameter_servers, each.samples)
        > each.allocation.parameter_server_memory_bytes
        for each in jobs
    ]
    assert np.mean(short) == pytest.approx(0.047, abs=0.02)
    large = [each.allocation.worker_cores > 7 for each in jobs]
    assert np.mean(large) == pytest.approx(0.8, abs=0.05)


def test_arrivals_of_a_trace_are_kept() -> None:
    assert [each.arrival_seconds for each in recurring(3, arrivals=[1.0, 5.0, 9.0, 11.0])] == [1.0, 5.0, 9.0]
    with pytest.raises(ScalingError, match="arrivals"):
        recurring(3, arrivals=[1.0])


def test_habits_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ScalingError, match=r"habits\.oversized_share"):
        Habits(oversized_share=1.5)
    with pytest.raises(ScalingError, match=r"habits\.models"):
        Habits(models=2, teams=3)
