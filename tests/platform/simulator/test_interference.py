"""Jobs on nodes that other programs use for a while: they end with the speed of jobs that were never disturbed."""

from __future__ import annotations

import math

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


@pytest.mark.parametrize("seed", range(3))
def test_a_job_that_was_measured_under_interference_becomes_as_fast_as_without(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = speed_at_end(seed)
    draw = Running.new_window

    def draw_on_busy_nodes(self: Running) -> None:
        draw(self)
        if 200.0 <= self._environment.now < 3000.0:
            self._factor *= 3.0

    monkeypatch.setattr(Running, "new_window", draw_on_busy_nodes)
    assert speed_at_end(seed) > 0.95 * undisturbed
