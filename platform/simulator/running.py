"""One simulated job while it is in the cluster: what it holds, what trains, how far it is, what was measured."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import simpy

from elastrec.platform.scaling.amounts import Allocation, PriceList, Resources
from elastrec.platform.scaling.types import JobProfile, Observation
from elastrec.platform.simulator.nodes import Nodes
from elastrec.platform.simulator.report import Ended
from elastrec.platform.simulator.workload import JobToRun

_LEAST_WINDOW_SECONDS = 10.0
_MOST_OBSERVATIONS = 200


class Running:
    """A job from its arrival to its end.

    Attributes:
        held: what it has been given and pays for.
        allocation: what trains; behind `held` while new pods start.
        remaining: samples.
    """

    def __init__(
        self, job: JobToRun, random: np.random.Generator, environment: simpy.Environment, noise: float
    ) -> None:
        self.job, self.random = job, random
        self.held = self.allocation = job.allocation
        self.remaining = job.samples
        self.placed = environment.event()
        self.is_training = False
        self._process = environment.active_process
        self._noise, self._factor = noise, 1.0
        self._workers: list[int] = []
        self._servers: list[int] = []
        self._down, self._failures, self._changes = 0, 0, 0
        self._placed_at = self._passed = self._paid = self._paused_until = 0.0
        self._core_seconds, self._byte_seconds = 0.0, 0.0
        self._observations: list[Observation] = []

    @property
    def settled(self) -> bool:
        """No change is on its way and no worker is missing."""
        return self.held == self.allocation and not self._down

    @property
    def has_measured(self) -> bool:
        """A policy is not asked about a job of which nothing is known yet."""
        return bool(self._observations)

    def place(self, nodes: Nodes, now: float) -> bool:
        """All pods or none."""
        if not self._put(nodes, self.held):
            return False
        self._placed_at = self._paid = now
        return True

    def _put(self, nodes: Nodes, wanted: Allocation) -> bool:
        workers = nodes.place(wanted.workers, _worker(wanted))
        if workers is None:
            return False
        servers = nodes.place(wanted.parameter_servers, _server(wanted))
        if servers is None:
            nodes.give_back(workers, _worker(wanted))
            return False
        self._workers, self._servers = workers, servers
        return True

    def free(self, nodes: Nodes) -> None:
        """Gives all pods back."""
        nodes.give_back(self._workers, _worker(self.held))
        nodes.give_back(self._servers, _server(self.held))
        self._workers, self._servers = [], []

    def move(self, nodes: Nodes, wanted: Allocation, now: float) -> bool:
        """Takes the room of another allocation in place of its own; False, and nothing changed, where it does not fit.

        The old pods train on until the new ones are up; for that time their overlap is not counted.
        """
        self._pay(now)
        before = (self._workers, self._servers)
        self.free(nodes)
        if not self._put(nodes, wanted):
            # What was just freed fits where it was.
            self._workers = _again(nodes, before[0], _worker(self.held))
            self._servers = _again(nodes, before[1], _server(self.held))
            return False
        self.held, self._changes = wanted, self._changes + 1
        return True

    def begin(self, now: float) -> None:
        """All pods are up."""
        self.is_training, self._passed = True, now

    def new_window(self) -> None:
        """Draws how fast nodes and network are for a while."""
        self._factor = float(np.exp(self._noise * self.random.standard_normal()))

    @property
    def _rate(self) -> float:
        """Samples per second now; Ψ of eq. 1 with the workers that are up."""
        up = self.allocation.workers - self._down
        if up < 1:
            return 0.0
        now = msgspec.structs.replace(self.allocation, workers=up)
        return up * self.job.shape.batch_size / (self.job.step_seconds(now) * self._factor)

    @property
    def seconds_left(self) -> float:
        """Until its last sample if nothing changes."""
        rate = self._rate
        return max(self._paused_until - self._passed, 0.0) + self.remaining / rate if rate else math.inf

    def pass_time(self, now: float) -> None:
        """Trains until `now`, and notes how fast it was."""
        trained = now - max(self._passed, min(self._paused_until, now))
        self._passed = now
        if trained <= 0:
            return
        self.remaining -= trained * self._rate
        if self.remaining <= 1e-9 * self.job.samples:
            self.remaining = 0.0
        if self._down == 0 and trained >= _LEAST_WINDOW_SECONDS:
            step = self.job.step_seconds(self.allocation) * self._factor
            seen = Observation(
                allocation=self.allocation, iteration_seconds=step, iterations=max(1, int(trained / step))
            )
            self._observations = [*self._observations[-_MOST_OBSERVATIONS + 1 :], seen]

    def profile(self, until_next_change_seconds: float) -> JobProfile:
        """What a policy sees of it."""
        return JobProfile(
            job_id=self.job.job_id,
            shape=self.job.shape,
            allocation=self.held,
            remaining_samples=self.remaining,
            observations=tuple(self._observations),
            limits=self.job.limits,
            movable=self.job.movable,
            until_next_change_seconds=until_next_change_seconds,
            team=self.job.team,
            priority=self.job.priority,
        )

    def cut_over(self, wanted: Allocation, pause_seconds: float, now: float) -> None:
        """The new pods take over."""
        self.pass_time(now)
        self.allocation, self._paused_until = wanted, now + pause_seconds
        self._down = min(self._down, wanted.workers)

    def lose_worker(self) -> bool:
        """One worker fails; False when none was up."""
        if self._down >= self.allocation.workers:
            return False
        self._pass_before_change()
        self._down, self._failures = self._down + 1, self._failures + 1
        return True

    def regain_worker(self) -> None:
        """Its replacement is up."""
        self._pass_before_change()
        self._down = max(0, self._down - 1)

    def _pass_before_change(self) -> None:
        self.pass_time(self.placed.env.now)

    def interrupt(self) -> None:
        """Ends the job's window, because its speed has changed."""
        if self._process is not None and self._process.is_alive and self.remaining > 0:
            self._process.interrupt()

    def _pay(self, now: float) -> None:
        held = self.held.resources
        self._core_seconds += held.cores * (now - self._paid)
        self._byte_seconds += held.memory_bytes * (now - self._paid)
        self._paid = now

    def end(self, now: float, prices: PriceList) -> Ended:
        """The job's line in the report."""
        self._pay(now)
        hours = Resources(self._core_seconds / 3600.0, self._byte_seconds / 3600.0)
        return Ended(
            job_id=self.job.job_id,
            arrival_seconds=self.job.arrival_seconds,
            placed_seconds=self._placed_at,
            ended_seconds=now,
            core_hours=hours.cores,
            cost=prices.per_hour(hours),
            changes=self._changes,
            failures=self._failures,
            allocation=self.held,
        )


def _worker(allocation: Allocation) -> Resources:
    return Resources(allocation.worker_cores, allocation.worker_memory_bytes)


def _server(allocation: Allocation) -> Resources:
    return Resources(allocation.parameter_server_cores, allocation.parameter_server_memory_bytes)


def _again(nodes: Nodes, where: list[int], each: Resources) -> list[int]:
    nodes.take(where, each)
    return where
