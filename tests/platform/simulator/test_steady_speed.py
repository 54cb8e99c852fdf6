"""Jobs that once stayed at half of the possible speed end with nearly the best allocation."""

from __future__ import annotations

import msgspec
import pytest

from benchmarks.common.headlines import Knowing
from benchmarks.common.simulated_jobs import COLD, NODE, PRICES, paper_job
from elastrec.platform.scaling.policies.three_stage import ThreeStage
from elastrec.platform.scaling.policy import ScalingPolicy
from elastrec.platform.scaling.types import Limits
from elastrec.platform.simulator.nodes import Nodes
from elastrec.platform.simulator.settings import Settings
from elastrec.platform.simulator.simulation import Simulation

LIMITS = Limits(workers=(1, 48), parameter_servers=(1, 16), worker_cores=(1.0, 8.0), parameter_server_cores=(1.0, 8.0))
COLD_JOB = paper_job("Y", COLD)
JOB = msgspec.structs.replace(COLD_JOB, samples=20.0 * COLD_JOB.samples, limits=LIMITS)


def ends_with(policy: ScalingPolicy, seed: int) -> tuple[float, float]:
    """(samples per second at the end, completion time)."""
    settings = Settings(seed=seed, noise=0.05)
    (ended,) = Simulation([JOB], Nodes(60, NODE), policy, PRICES, settings).run().jobs
    return JOB.samples_per_second(ended.allocation), ended.completion_seconds


@pytest.mark.parametrize("seed", range(8))
def test_a_job_with_limits_far_above_its_start_comes_to_the_speed_of_one_whose_model_is_known(seed: int) -> None:
    speed, seconds = ends_with(ThreeStage(), seed)
    best, fewest = ends_with(Knowing([JOB]), seed)
    assert speed > 0.9 * best
    assert seconds < 1.15 * fewest
