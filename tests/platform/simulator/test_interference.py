"""Jobs on nodes that other programs use for a while end with the speed of undisturbed jobs."""

from __future__ import annotations

import math
import operator
import statistics

import msgspec
import pytest

from elastrec.platform.scaling.types import Limits
from elastrec.platform.simulator.running import Running
from elastrec.platform.simulator.settings import Settings
from tests.platform.simulator.cluster import job, run

LIMITS = Limits(workers=(1, 8), parameter_servers=(1, 8), worker_cores=(1.0, 4.0), parameter_server_cores=(1.0, 4.0))
LONG = job(seconds=8 * 3600.0, limits=LIMITS)
SMALL = msgspec.structs.replace(LONG, allocation=msgspec.structs.replace(LONG.allocation, workers=1))


def speed_at_end(seed: int) -> float:
    (ended,) = run("three-stage", [SMALL], given=Settings(seed=seed, noise=0.03, hours_between_failures=math.inf)).jobs
    return SMALL.samples_per_second(ended.allocation)


def test_jobs_that_were_measured_under_interference_become_almost_as_fast_as_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Single jobs end with other sizes, and other speeds, for any other noise.
    undisturbed = [speed_at_end(seed) for seed in range(24)]
    draw = Running.new_window

    def draw_on_busy_nodes(self: Running) -> None:
        draw(self)
        if 200.0 <= self._environment.now < 3000.0:
            self._factor *= 6.0

    monkeypatch.setattr(Running, "new_window", draw_on_busy_nodes)
    disturbed = [speed_at_end(seed) for seed in range(24)]
    # 0.79 if earlier measurements are not set aside.
    assert statistics.fmean(map(operator.truediv, disturbed, undisturbed)) > 0.85
