"""The cluster in SimPy: jobs arrive, wait, start, train, lose workers, are rescaled by a policy, and end.

A policy is asked every `interval_seconds` through the same `decide` that a real cluster's round goes through; it sees
step times with noise, never a job's true coefficients. What is granted is held from the moment of the decision, works
once the new pods are up, and is paid for all the while.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
import simpy

from elastrec.platform.scaling.amounts import PriceList, Resources, require
from elastrec.platform.scaling.objectives import Rules
from elastrec.platform.scaling.policy import ScalingPolicy, View, decide
from elastrec.platform.scaling.search import SearchSettings
from elastrec.platform.scaling.selection import Weights
from elastrec.platform.scaling.types import Overheads, Plan
from elastrec.platform.simulator.nodes import Nodes
from elastrec.platform.simulator.report import Ended, Report
from elastrec.platform.simulator.running import Running
from elastrec.platform.simulator.workload import JobToRun

Process = Generator[simpy.Event, Any, None]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The simulated cluster's habits.

    Attributes:
        interval_seconds: between two rounds of the policy.
        start_seconds: median until a pod trains; log-normal with `start_spread`.
        migration_pause_seconds: training stands still when servers or a pod's size change.
        noise: standard deviation of the logarithm of a window's step time.
        hours_between_failures: mean of one worker, gamma with shape `failure_shape`; infinity: none fails.
        until_seconds: jobs that run longer than this are reported as unfinished.
    """

    seed: int = 0
    interval_seconds: float = 180.0
    start_seconds: float = 60.0
    start_spread: float = 0.3
    migration_pause_seconds: float = 30.0
    noise: float = 0.05
    hours_between_failures: float = 200.0
    failure_shape: float = 0.8
    until_seconds: float = 30 * 86_400.0

    def __post_init__(self) -> None:
        for name in ("interval_seconds", "hours_between_failures", "failure_shape", "until_seconds"):
            value = getattr(self, name)
            require(value > 0, f"simulation.{name}", value, "above 0", "correct the settings")
        for name in ("start_seconds", "start_spread", "migration_pause_seconds", "noise"):
            value = getattr(self, name)
            require(0 <= value < math.inf, f"simulation.{name}", value, "0 or more", "correct the settings")


class Simulation:
    """One run; make a new one for every policy."""

    def __init__(
        self,
        jobs: Sequence[JobToRun],
        nodes: Nodes,
        policy: ScalingPolicy,
        prices: PriceList,
        settings: Settings | None = None,
        rules: Rules | None = None,
        weights: Weights | None = None,
    ) -> None:
        self._settings = settings or Settings()
        self._jobs, self._nodes, self._policy, self._prices = tuple(jobs), nodes, policy, prices
        names = {job.job_id for job in self._jobs}
        require(len(names) == len(self._jobs), "jobs", "two of one job_id", "different ids", "rename one")
        self._rules, self._weights = rules or Rules(), weights or Weights()
        self._environment = simpy.Environment()
        self._waiting: list[Running] = []
        self._running: dict[str, Running] = {}
        self._ended: list[Ended] = []
        self._problems: dict[str, int] = {}
        self._used_core_seconds, self._looked_at = 0.0, 0.0

    def run(self) -> Report:
        """Simulates until every job has ended, or `until_seconds`."""
        for index, job in enumerate(self._jobs):
            self._environment.process(self._life(job, np.random.default_rng([self._settings.seed, index])))
        self._environment.process(self._rounds())
        while len(self._ended) < len(self._jobs) and self._environment.peek() <= self._settings.until_seconds:
            self._environment.step()
        self._count_use()
        unfinished = sorted(each.job.job_id for each in (*self._waiting, *self._running.values()))
        return Report(
            policy=self._policy.name,
            jobs=tuple(self._ended),
            unfinished=tuple(unfinished),
            seconds=self._environment.now,
            cores_used=self._used_core_seconds
            / max(self._nodes.count * self._nodes.size.cores * self._environment.now, 1e-9),
            problems=dict(self._problems),
        )

    def _count_use(self) -> None:
        now = self._environment.now
        held = self._nodes.count * self._nodes.size.cores - self._nodes.free.cores
        self._used_core_seconds += held * (now - self._looked_at)
        self._looked_at = now

    def _start_seconds(self, job: Running) -> float:
        settings = self._settings
        return settings.start_seconds * float(job.random.lognormal(0.0, settings.start_spread))

    def _life(self, job: JobToRun, random: np.random.Generator) -> Process:
        environment, settings = self._environment, self._settings
        yield environment.timeout(job.arrival_seconds)
        running = Running(job, random, environment, settings.noise)
        self._waiting.append(running)
        self._admit()
        yield running.placed
        yield environment.timeout(self._start_seconds(running))
        running.begin(environment.now)
        environment.process(self._failures(running))
        while running.remaining > 0:
            running.new_window()
            # Interrupted when its allocation, its workers or a pause change: the window ends there.
            with suppress(simpy.Interrupt):
                yield environment.timeout(min(running.seconds_left, settings.interval_seconds))
            running.pass_time(environment.now)
        self._count_use()
        self._ended.append(running.end(environment.now, self._prices))
        running.free(self._nodes)
        del self._running[job.job_id]
        self._admit()

    def _admit(self) -> None:
        """Places waiting jobs, the most urgent first, then by arrival; a small one may pass a large one."""
        self._count_use()
        for each in sorted(self._waiting, key=lambda one: (-one.job.priority, one.job.arrival_seconds)):
            if each.place(self._nodes, self._environment.now):
                self._waiting.remove(each)
                self._running[each.job.job_id] = each
                each.placed.succeed()

    def _failures(self, running: Running) -> Process:
        settings, environment = self._settings, self._environment
        if math.isinf(settings.hours_between_failures):
            return
        while running.remaining > 0:
            mean = settings.hours_between_failures * 3600.0 / max(running.allocation.workers, 1)
            wait = running.random.gamma(settings.failure_shape, mean / settings.failure_shape)
            yield environment.timeout(wait)
            if running.remaining > 0 and running.lose_worker():
                running.interrupt()
                yield environment.timeout(self._start_seconds(running))
                running.regain_worker()
                running.interrupt()

    def _rounds(self) -> Process:
        settings, environment = self._settings, self._environment
        while True:
            yield environment.timeout(settings.interval_seconds)
            training = [each for each in self._running.values() if each.is_training and each.settled]
            if not training:
                continue
            for each in training:
                each.pass_time(environment.now)
            profiles = [
                each.profile(settings.interval_seconds) for each in training if each.remaining > 0 and each.has_measured
            ]
            free = self._nodes.capacity
            if self._waiting:
                # What waits has a claim on what is free before those that run may grow.
                wanted = sum((each.job.allocation.resources for each in self._waiting), Resources())
                free = msgspec.structs.replace(free, free=free.free - wanted)
            view = View(
                free, self._prices, self._overheads(), self._rules, self._weights, SearchSettings(generations=10)
            )
            answer = decide(self._policy, profiles, view)
            for job_id in answer.problems:
                self._problems[job_id] = self._problems.get(job_id, 0) + 1
            for plan in answer.plans:
                if plan.changes:
                    self._apply(plan)
            self._admit()

    def _overheads(self) -> Overheads:
        settings = self._settings
        return Overheads(
            worker_start_seconds=settings.start_seconds,
            server_start_seconds=settings.start_seconds,
            migration_pause_seconds=settings.migration_pause_seconds,
        )

    def _apply(self, plan: Plan) -> None:
        running = self._running[plan.job_id]
        self._count_use()
        if running.move(self._nodes, plan.allocation, self._environment.now):
            self._environment.process(self._change(running, plan))

    def _change(self, running: Running, plan: Plan) -> Process:
        """The old pods train until the new ones are up; servers and sizes cost a pause on top."""
        shrinks = plan.allocation.workers < plan.before.workers and len(plan.changes) == 1
        yield self._environment.timeout(0.0 if shrinks else self._start_seconds(running))
        if running.remaining <= 0:
            return
        pause = 0.0 if plan.changes <= {"workers"} else self._settings.migration_pause_seconds
        running.cut_over(plan.allocation, pause, self._environment.now)
        running.interrupt()
