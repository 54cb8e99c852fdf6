"""Faults of simulated jobs, as SimPy processes: failed pods, slow workers, overloaded servers.

Victims, times and durations are drawn from the job's own seed, so that they are the same for every policy; the time of
a failure is one of all pods of the job together, so that a job with more pods fails earlier.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import simpy

from elastrec.platform.simulator.running import Running
from elastrec.platform.simulator.settings import Settings

Process = Generator[simpy.Event, Any, None]


class Troubles:
    """Starts these processes for a job."""

    def __init__(
        self, environment: simpy.Environment, settings: Settings, start_seconds: Callable[[np.random.Generator], float]
    ) -> None:
        self._environment, self._settings, self._start_seconds = environment, settings, start_seconds

    def begin(self, job: Running, seed: int, index: int) -> None:
        """Called once per job, when it trains for the first time."""
        settings, environment = self._settings, self._environment
        fate = np.random.default_rng([seed, index, 1])
        # Always drawn in this order, so that one share does not change the draws of another one.
        straggles = fate.uniform() < settings.straggler_share
        is_hot = fate.uniform() < settings.hot_server_share
        moments = fate.uniform(0.0, 0.5, size=2)
        straggles = straggles if job.job.straggles is None else job.job.straggles
        is_hot = is_hot if job.job.is_hot is None else job.job.is_hot
        asked = job.job.samples / job.job.samples_per_second(job.job.allocation)
        if straggles:
            environment.process(self._straggle(job, float(moments[0]) * asked, fate))
        if is_hot:
            environment.process(self._run_hot(job, float(moments[1]) * asked, fate))
        if not math.isinf(settings.hours_between_failures):
            environment.process(self._fail(job, np.random.default_rng([seed, index, 2])))

    def _fail(self, job: Running, random: np.random.Generator) -> Process:
        """Failures of pods, each with equal probability."""
        settings, environment = self._settings, self._environment
        mean = settings.hours_between_failures * 3600.0
        while True:
            yield from self._pass(random.gamma(settings.failure_shape, mean / settings.failure_shape), job)
            if job.remaining <= 0:
                return
            if not job.pods:
                # Evicted in the same moment.
                continue
            is_server = random.uniform() * job.pods >= job.allocation.workers
            start = self._start_seconds(random)
            if is_server:
                job.lose_server(start + settings.handling.restore_seconds, environment.now)
                job.wake()
            elif job.lose_worker(environment.now):
                job.wake()
                yield environment.timeout(start)
                job.regain_workers(1, environment.now)
                job.wake()

    def _pass(self, pod_seconds: float, job: Running) -> Process:
        """Waits until the pods of a job have trained so long, all together, or the job has ended."""
        environment, left = self._environment, pod_seconds
        while left > 0 and job.remaining > 0:
            pods, since = job.pods, environment.now
            if not pods:
                yield job.pods_changed
                continue
            enough = environment.timeout(left / pods)
            yield enough | job.pods_changed
            left = 0.0 if enough.processed else left - pods * (environment.now - since)

    def _straggle(self, job: Running, after: float, random: np.random.Generator) -> Process:
        """One worker is slow until it is replaced; it continues while its replacement starts."""
        environment, patience = self._environment, self._settings.handling.straggler_seconds
        yield environment.timeout(after)
        if job.remaining <= 0:
            return
        job.pass_time(environment.now)
        job.slow_workers = 1
        job.wake()
        if math.isinf(patience):
            return
        yield environment.timeout(patience + self._start_seconds(random))
        job.pass_time(environment.now)
        job.slow_workers = 0
        job.wake()

    def _run_hot(self, job: Running, after: float, random: np.random.Generator) -> Process:
        """One server slows all workers until it is replaced, by a migration after the start of a new pod."""
        environment, settings = self._environment, self._settings
        yield environment.timeout(after)
        if job.remaining <= 0:
            return
        job.pass_time(environment.now)
        job.is_hot = True
        job.wake()
        if math.isinf(settings.handling.hot_server_seconds):
            return
        yield environment.timeout(settings.handling.hot_server_seconds + self._start_seconds(random))
        if job.remaining > 0 and job.is_training and job.is_hot:
            job.pause(settings.migration_pause_seconds, environment.now)
        job.is_hot = False
        job.wake()
