"""Jobs to simulate and their true behaviour. `mixes` generates them, `jobs.what_if` reads them."""

from __future__ import annotations

import msgspec

from elastrec.platform.scaling.amounts import Allocation, Change, is_positive, require
from elastrec.platform.scaling.types import Coefficients, Limits, ModelShape
from elastrec.platform.scaling.warm_start import Features
from elastrec.platform.simulator.memory import MemoryTruth
from elastrec.platform.simulator.speed import steps_of


class JobToRun(msgspec.Struct, frozen=True, kw_only=True):
    """A submitted job and its true behaviour.

    Attributes:
        coefficients: of eq. 2–5; a policy never sees them, only times with noise.
        service: None: the coefficients determine the step. Otherwise its servers are queues (see `speed`).
        allocation: what its owner asks for.
        memory: None: its memory is not simulated.
        features: for warm start.
        start_seconds: until its pods train; None: drawn.
        pods_up: (seconds since its first step, workers and servers that trained from then on), recorded from a real run
            with late, lost, replaced, added or removed pods. With it, the job has no other faults or changes.
        straggles, is_hot: whether one of its workers or servers becomes slow; None: drawn by the settings' shares.
    """

    job_id: str
    arrival_seconds: float
    samples: float
    shape: ModelShape
    coefficients: Coefficients
    service: float | None = None
    allocation: Allocation
    limits: Limits = Limits()
    movable: frozenset[Change] = frozenset(Change)
    priority: float = 1.0
    team: str = "default"
    memory: MemoryTruth | None = None
    features: Features = Features()
    start_seconds: float | None = None
    pods_up: tuple[tuple[float, int, int], ...] = ()
    straggles: bool | None = None
    is_hot: bool | None = None

    def __post_init__(self) -> None:
        require(is_positive(self.samples), f"{self.job_id}.samples", self.samples, "above 0", "correct the workload")
        arrival = self.arrival_seconds
        require(0 <= arrival < float("inf"), f"{self.job_id}.arrival_seconds", arrival, "0 or more", "correct it")
        moments = [seconds for seconds, *_ in self.pods_up]
        if self.service is not None:
            require(is_positive(self.service), f"{self.job_id}.service", self.service, "above 0", "correct it")
        rising = moments == sorted(moments) and all(seconds >= 0 for seconds in moments)
        require(rising, f"{self.job_id}.pods_up", self.pods_up, "rising seconds of 0 or more", "sort them")
        require(is_positive(self.priority), f"{self.job_id}.priority", self.priority, "above 0", "correct it")

    def step_seconds(self, allocation: Allocation) -> float:
        """T_iter of eq. 1, without noise."""
        return steps_of(self.shape, self.coefficients, self.service)(allocation).seconds

    def samples_per_second(self, allocation: Allocation) -> float:
        """Ψ of eq. 1, without noise."""
        return allocation.workers * self.shape.batch_size / self.step_seconds(allocation)
