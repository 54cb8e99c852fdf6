"""Settings of the simulated cluster: rounds of the policy, durations, faults and the reactions to them.

Defaults are DLRover-RM's figures where the paper has them; every other number is documented as an assumption.
"""

from __future__ import annotations

import math

import msgspec

from elastrec.platform.scaling.amounts import require
from elastrec.platform.scaling.types import Overheads
from elastrec.platform.specs.scaling import ScalingSettings

_SCALING, _OVERHEADS = ScalingSettings(), Overheads()


class Handling(msgspec.Struct, frozen=True, kw_only=True):
    """The platform's reactions to faults; the defaults are those of elastrec.

    Attributes:
        dynamic_sharding: workers lease shards one after the other. False: every worker has a fixed part of the data, so
            that the slowest one determines the end of the job.
        straggler_seconds: until a slow worker is detected and replaced; infinity: never.
        hot_server_seconds: the same for an overloaded server, whose rows are then distributed again.
        memory_forecast: servers get more memory before they run out (DLRover-RM §5.3).
        checkpoint_seconds: between two checkpoints; the training since the last one is lost with a server.
        restore_seconds: to load a checkpoint, after the new pod has started.
        resubmit_seconds: until the owner of a job that ran out of memory starts it again with twice as much.
    """

    dynamic_sharding: bool = True
    straggler_seconds: float = 600.0
    hot_server_seconds: float = 600.0
    memory_forecast: bool = True
    checkpoint_seconds: float = 600.0
    restore_seconds: float = 30.0
    resubmit_seconds: float = 1800.0

    def __post_init__(self) -> None:
        for name in ("straggler_seconds", "hot_server_seconds"):
            value = getattr(self, name)
            require(value >= 0, f"handling.{name}", value, "0 or more; infinity: never", "correct the settings")
        for name in ("restore_seconds", "resubmit_seconds"):
            value = getattr(self, name)
            require(0 <= value < math.inf, f"handling.{name}", value, "0 or more", "correct the settings")
        every = self.checkpoint_seconds
        require(0 < every < math.inf, "handling.checkpoint_seconds", every, "above 0", "correct the settings")


BY_HAND = Handling(
    dynamic_sharding=False,
    straggler_seconds=math.inf,
    hot_server_seconds=math.inf,
    memory_forecast=False,
    restore_seconds=900.0,
)
"""A general framework without elastrec, DLRover-RM's «w/o»: data divided once, slow pods not replaced.

A restart prepares for 5–10 and loads for 5–10 minutes (§2.2): the middles of both.
"""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a simulation.

    Attributes:
        interval_seconds: between two rounds of the policy (DLRover-RM §6.2: three minutes).
        start_seconds: median time until a pod trains; log-normal with `start_spread`.
        worker_start_core_seconds, server_start_core_seconds: CPU time of pods until they train, on their own cores,
            which are held and paid for from the decision on.
        migration_pause_seconds: training pauses when rows move to other servers.
        noise: standard deviation of the logarithm of a window's step time.
        hours_between_failures: mean of one pod, gamma with shape `failure_shape`; infinity: none fails. 1.5 % of pods
            fail per day (DLRover-RM §2.2), which is one in 1600 hours.
        straggler_share, hot_server_share: share of the jobs in which a worker or server becomes slow at a random time
            (DLRover-RM table 4 and §6.3: 7 % and 13 %; none by default).
        straggler_slowdown, hot_server_slowdown: factor of its part of a step; the papers have no figure of production.
        preemption: whether jobs of lower priority make room: first they shrink to their minimum of workers, then they
            are evicted.
        least_steps: a round leaves out jobs whose workers have made fewer steps in their present configuration.
        patience_rounds: a job without a plan is included again after two rounds, then four, and so on, up to this
            number, or as soon as something happens to it; 1: in every round, as on a real cluster.
        until_seconds: jobs that run longer than this are reported as unfinished.
    """

    seed: int = 0
    interval_seconds: float = _SCALING.round_interval
    start_seconds: float = _OVERHEADS.worker_start_seconds
    start_spread: float = 0.3
    worker_start_core_seconds: float = _OVERHEADS.worker_start_core_seconds
    server_start_core_seconds: float = _OVERHEADS.server_start_core_seconds
    migration_pause_seconds: float = _OVERHEADS.migration_pause_seconds
    noise: float = 0.05
    hours_between_failures: float = 1600.0
    failure_shape: float = 0.8
    straggler_share: float = 0.0
    straggler_slowdown: float = 3.0
    hot_server_share: float = 0.0
    hot_server_slowdown: float = 3.0
    preemption: bool = True
    least_steps: int = _SCALING.least_steps
    patience_rounds: int = 1
    handling: Handling = Handling()
    until_seconds: float = 30 * 86_400.0

    def __post_init__(self) -> None:
        remedy = "correct the settings"
        for name in ("interval_seconds", "hours_between_failures", "failure_shape", "until_seconds"):
            value = getattr(self, name)
            require(value > 0, f"simulation.{name}", value, "above 0", remedy)
        for name in (
            "start_seconds", "start_spread", "worker_start_core_seconds", "server_start_core_seconds",
            "migration_pause_seconds", "noise",
        ):  # fmt: skip
            value = getattr(self, name)
            require(0 <= value < math.inf, f"simulation.{name}", value, "0 or more", remedy)
        require(self.least_steps >= 1, "simulation.least_steps", self.least_steps, "1 or more", remedy)
        patience = self.patience_rounds
        require(patience >= 1, "simulation.patience_rounds", patience, "1 or more", "1 asks in every round")
        for name in ("straggler_share", "hot_server_share"):
            value = getattr(self, name)
            require(0 <= value <= 1, f"simulation.{name}", value, "a share of 0 to 1", remedy)
        for name in ("straggler_slowdown", "hot_server_slowdown"):
            value = getattr(self, name)
            require(1 <= value < math.inf, f"simulation.{name}", value, "1 or more", remedy)
