"""One simulated job in the cluster: its resources, its training pods, its progress, its measurements."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import simpy

from elastrec.platform.scaling.amounts import Allocation, Change, PriceList, Resources
from elastrec.platform.scaling.job_profile import JobFacts, MemoryFacts
from elastrec.platform.scaling.memory_outlook import MemorySeen
from elastrec.platform.scaling.types import Observation, PastChange, Prior
from elastrec.platform.simulator.accounts import Accounts
from elastrec.platform.simulator.memory import seen_of
from elastrec.platform.simulator.placing import Part, Placing
from elastrec.platform.simulator.report import Ended, Use
from elastrec.platform.simulator.settings import Settings
from elastrec.platform.simulator.speed import STOPPED, Rate, rate_of, steps_of
from elastrec.platform.simulator.workload import JobToRun
from elastrec.platform.specs.metrics import COUNTS_APART, WINDOW_SECONDS, Steps, StepsByConfiguration, share_kept

_LEAST_MEASURED_SECONDS = 0.8 * WINDOW_SECONDS
"""Shorter intervals are not measured, because a job has just begun or has changed. Memory checks, which end intervals
at a master's window, must not prevent measurements."""
_MOST_POINTS = 60
_KEPT_CHANGES = 8
_NOTHING = 1e-9
"""A smaller share of a job's samples is a rest after rounding."""


class Running:
    """A job from its arrival to its end. Its methods are called at moments that never go back.

    Attributes:
        held_cores: of all of its pods.
        allocation: the training pods; differs from `held` while new pods start.
        remaining: samples.
        is_short_of_memory: its servers need more before its end, by its master's last forecast.
        placed: event of the placement of all of its pods; replaced when the job is evicted.
        pods_changed: event of the next change of `pods`; replaced then.
        version: rises with every event of the job except progress.
        generation: rises when pending changes become void.
    """

    def __init__(
        self, job: JobToRun, start: Allocation, prior: Prior | None, environment: simpy.Environment, settings: Settings,
        random: np.random.Generator,
    ) -> None:  # fmt: skip
        self.job, self.random, self.settings = job, random, settings
        self.held = self.allocation = self.started_with = start
        self.remaining = job.samples
        self.placed, self.pods_changed, self._pods_before = environment.event(), environment.event(), 0
        self._window: simpy.Process | None = None
        self.is_training = self.is_evicted = self.is_short_of_memory = False
        self.slow_workers, self.is_hot, self.generation, self.version = 0, False, 0, 0
        self.counts = dict.fromkeys(("changes", "failures", "out_of_memory", "evictions"), 0)
        self._changes: list[tuple[float, Allocation, Allocation, str]] = []
        self._environment, self._prior = environment, prior
        self._steps, self._placing, self.accounts = (
            steps_of(job.shape, job.coefficients, job.service),
            Placing(),
            Accounts(),
        )
        self._factor, self._down = 1.0, 0
        self._rated: tuple[object, Rate] = None, STOPPED
        self._placed_at, self._begun_at, self._scaled_at = math.nan, math.nan, math.nan
        self._passed = self._paused_until = self._saved_at = 0.0
        self._saved_remaining = job.samples
        self._measured = StepsByConfiguration[Allocation]()
        self._counted_at, self._counted_rows = list[float](), list[float]()
        self._trained = 0.0

    @property
    def held(self) -> Allocation:
        """The allocation that it holds and pays for or, while it waits, requests."""
        return self._held

    @held.setter
    def held(self, held: Allocation) -> None:
        self._held, self.held_cores = held, held.resources.cores

    @property
    def settled(self) -> bool:
        """Whether no change is pending and no worker is missing."""
        return self.held == self.allocation and not self._down and self._environment.now >= self._paused_until

    @property
    def _are_servers_settled(self) -> bool:
        """Whether all servers are up and have their target size, whatever its workers do."""
        changing = self.allocation.changes(self.held) & {Change.SERVERS, Change.SERVER_SIZE}
        return not changing and self._environment.now >= self._paused_until

    @property
    def pods(self) -> int:
        """That train, or are paused; 0 before it begins, while it waits again, and after its end."""
        is_there = self.is_training and self.remaining > 0
        return self.allocation.workers + self.allocation.parameter_servers if is_there else 0

    def _happened(self) -> None:
        """Anything except progress."""
        self.version += 1
        if self.pods != self._pods_before:
            self._pods_before, changed = self.pods, self.pods_changed
            self.pods_changed = self._environment.event()
            changed.succeed()

    @property
    def placing(self) -> Placing:
        """The nodes of its pods."""
        return self._placing

    def begin(self, now: float) -> None:
        """All pods are up, for the first time or again."""
        self.is_training, self.is_evicted, self._passed, self._saved_at = True, False, now, now
        self._happened()
        if math.isnan(self._begun_at):
            self._begun_at = self._scaled_at = now

    def take_place(self, placing: Placing, now: float) -> None:
        """Records the placement of all pods, which cost from now on."""
        self._placing, self.accounts.paid_until, self.is_evicted = placing, now, False
        if math.isnan(self._placed_at):
            self._placed_at = now
        self.placed.succeed()

    def new_window(self) -> None:
        """Draws the speed of nodes and network for an interval; the active process waits for its end."""
        self._window = self._environment.active_process
        self._factor = float(np.exp(self.settings.noise * self.random.standard_normal()))

    @property
    def rate(self) -> Rate:
        """Now, by its workers that are up."""
        settings, now, factor = self.settings, self.allocation, self._factor
        # Called several times between two changes, by every job in every window.
        like = (now, self._down, self.slow_workers, self.is_hot, factor)
        if like != self._rated[0]:
            found = rate_of(
                self._steps(now), now, self.job.shape.batch_size, now.workers - self._down, self.slow_workers,
                settings.straggler_slowdown, settings.hot_server_slowdown if self.is_hot else 1.0,
                settings.handling.dynamic_sharding,
            )  # fmt: skip
            self._rated = like, found.on_nodes(factor)
        return self._rated[1]

    @property
    def seconds_left(self) -> float:
        """Seconds until its last sample or until a server is full, if nothing changes."""
        speed = self.rate.samples
        paused = max(self._paused_until - self._passed, 0.0)
        return paused + min(self.remaining, self._samples_until_full()) / speed if speed else math.inf

    def _samples_until_full(self) -> float:
        if self.job.memory is None:
            return math.inf
        now = self.allocation
        limit = self.job.memory.samples_until(now.parameter_servers, float(now.parameter_server_memory_bytes))
        return max(limit - self._trained, 0.0)

    @property
    def is_out_of_memory(self) -> bool:
        """Whether a server has exceeded its memory."""
        return self.remaining > 0 and self._samples_until_full() <= self._nothing(self.rate, self._environment.now)

    def _nothing(self, rate: Rate, now: float) -> float:
        """So few samples count as 0: a rest after rounding, which the clock cannot resolve in a job of milliseconds."""
        return max(_NOTHING * self.job.samples, rate.samples * math.ulp(now))

    def pass_time(self, now: float) -> None:
        """Trains until `now` and records the speed; a job that waits or starts does not train."""
        if not self.is_training:
            return
        trained = now - max(self._passed, min(self._paused_until, now))
        self._passed = now
        if trained <= 0:
            return
        rate = self.rate
        self.accounts.use(self.allocation, rate, self.job.memory, self._trained, trained)
        done = trained * rate.samples
        self.remaining -= done
        trained_before, self._trained = self._trained, max(self._trained, self.job.samples - self.remaining)
        if self.remaining <= self._nothing(rate, now):
            self.remaining = 0.0
        every = self.settings.handling.checkpoint_seconds
        if now - self._saved_at >= every:
            # Samples since the last checkpoint of this window; one within a pause has all from before it.
            self._saved_at += math.floor((now - self._saved_at) / every) * every
            self._saved_remaining = self.remaining + min(now - self._saved_at, trained) * rate.samples
        # As a master's, a measurement belongs to pods that are all at work; none is made while others start.
        if self.held == self.allocation and not self._down and trained >= _LEAST_MEASURED_SECONDS:
            steps = trained / rate.step_seconds
            window = Steps(steps * self.allocation.workers, steps, trained, (steps * rate.compute_seconds,))
            # The weight of older windows decays, because slowness is often temporary.
            self._measured.add(self.allocation, window, share_kept(trained), now - trained, now)
        self._count_rows(trained_before, WINDOW_SECONDS * rate.samples)

    def _count_rows(self, since: float, every: float) -> None:
        """The counts of its master, from a number of samples on.

        Args:
            every: samples between two counts.
        """
        memory, counted_at, counted = self.job.memory, self._counted_at, self._counted_rows
        if memory is None:
            return
        while since < self._trained:
            # Of counts with smaller distances, only the newest would be kept.
            since = min(max(since + every, COUNTS_APART * since), self._trained)
            if len(counted) > 1 and counted_at[-1] < COUNTS_APART * counted_at[-2]:
                counted_at.pop()
                counted.pop()
            noise = 1.0 + 0.02 * self.random.standard_normal()
            counted.append(max(memory.rows(since) * noise, counted[-1] if counted else 1.0))
            counted_at.append(since)
        del counted_at[:-_MOST_POINTS], counted[:-_MOST_POINTS]

    def _memory_seen(self, largest_bytes: float) -> MemorySeen | None:
        """Its master's measurements of memory."""
        if self.job.memory is None:
            return None
        trained = max(self.job.samples - self.remaining, self._trained)
        return seen_of(
            self.job.memory, self._counted_at, self._counted_rows, self.allocation, trained, self.remaining,
            self.rate.samples, largest_bytes,
        )  # fmt: skip

    def memory_facts(self, until_next_change_seconds: float, largest_bytes: float | None) -> MemoryFacts:
        """The input of a forecast of its memory.

        Args:
            largest_bytes: no pod can have more memory; None: nobody forecasts its memory.
        """
        return MemoryFacts(**self._memory_facts(until_next_change_seconds, largest_bytes))

    def _memory_facts(self, until_next_change_seconds: float, largest_bytes: float | None) -> dict[str, Any]:
        """By the fields of `MemoryFacts`."""
        now = self._environment.now
        changes = tuple(
            PastChange(before=before, after=after, seconds_ago=now - at, asked_by=asked_by)
            for at, before, after, asked_by in self._changes
        )
        return {
            "job_id": self.job.job_id, "allocation": self.held,
            "memory": None if largest_bytes is None else self._memory_seen(largest_bytes), "changes": changes,
            "limits": self.job.limits, "movable": self.job.movable,
            "until_next_change_seconds": until_next_change_seconds,
            "are_servers_settled": self._are_servers_settled,
        }  # fmt: skip

    def facts(self, until_next_change_seconds: float, largest_bytes: float | None) -> JobFacts:
        """The input of a decision about it; the same arguments."""
        seen = tuple(
            Observation(
                allocation=each,
                iteration_seconds=sums.mean,
                compute_seconds=sums.others[0] / sums.steps,
                iterations=max(1, round(sums.steps * each.workers)),
            )
            for each, sums in self._measured.sums.items()
        )
        return JobFacts(
            **self._memory_facts(until_next_change_seconds, largest_bytes),
            shape=self.job.shape, remaining_samples=self.remaining, observations=seen, prior=self._prior,
            shape_version=self.counts["changes"], team=self.job.team, priority=self.job.priority,
            is_settled=self.settled, steps=int(self._measured.sums.get(self.held, Steps()).ever),
            least_steps=self.settings.least_steps,
        )  # fmt: skip

    def change_to(
        self, wanted: Allocation, placing: Placing, now: float, asked_by: str = "", *, by_plan: bool = True
    ) -> None:
        """Holds and pays for another allocation from now on; the old one continues to train."""
        self.pass_time(now)
        self.accounts.hold(self.held, now)
        if by_plan:
            self._changes = [*self._changes, (now, self.held, wanted, asked_by)][-_KEPT_CHANGES:]
        self.held, self._placing = wanted, placing
        self.counts["changes"] += by_plan

    def reach(self, part: Part, now: float) -> None:
        """A part of a change takes effect; the parts that are pending stay as they are."""
        self.pass_time(now)
        wanted = msgspec.structs.replace(self.allocation, **{field: getattr(self.held, field) for field in part.fields})
        # New pods are on other nodes, and rows are distributed over other servers. Pods that were resized stay slow.
        are_others = part.starts and Change.WORKER_SIZE in self.allocation.changes(wanted)
        self.slow_workers = 0 if are_others else min(self.slow_workers, wanted.workers)
        self.is_hot = self.is_hot and not part.hands_over
        self.allocation, self._scaled_at = wanted, now
        self._down = min(self._down, wanted.workers)
        if part.hands_over:
            self.pause(self.settings.migration_pause_seconds, now)

    def lose_worker(self, now: float) -> bool:
        """One worker fails; False when none was up."""
        if self._down >= self.allocation.workers:
            return False
        self.pass_time(now)
        self._down += 1
        self.counts["failures"] += 1
        return True

    def lose_pods(self, pods: int, left: Allocation, placing: Placing, now: float) -> None:
        """Records the loss of pods with a node; the job holds its remaining and its replacing pods."""
        self.pass_time(now)
        self.accounts.hold(self.held, now)
        if self.held == self.allocation:
            self.allocation = left
        self.held, self._placing = left, placing
        self._down = min(self._down, left.workers)
        self.counts["failures"] += pods
        self._happened()

    def lack(self, workers: int, now: float) -> None:
        """Records that more of its workers are not up."""
        self.pass_time(now)
        self._down = min(self._down + workers, self.allocation.workers)

    def have_up(self, workers: int, now: float) -> None:
        """Records that more of its workers train from now on."""
        self.pass_time(now)
        self._down = self.allocation.workers - workers

    def regain_workers(self, workers: int, now: float) -> None:
        """Replacements are up."""
        self.pass_time(now)
        self._down = max(0, self._down - workers)

    def pause(self, seconds: float, now: float) -> None:
        """Pauses training for some seconds."""
        self.pass_time(now)
        self._paused_until = max(self._paused_until, now + seconds)

    def lose_server(self, pause_seconds: float, now: float) -> None:
        """Loses the training since the last checkpoint and pauses."""
        self._roll_back(pause_seconds, now)
        self.counts["failures"] += 1

    def _roll_back(self, pause_seconds: float, now: float) -> None:
        self.pass_time(now)
        self.remaining = max(self.remaining, self._saved_remaining)
        self._saved_at = self._paused_until = max(self._paused_until, now + pause_seconds)

    def start_anew(self, pause_seconds: float, now: float) -> None:
        """Continues from its last checkpoint with all of its pods after a loss of servers."""
        self._roll_back(pause_seconds, now)
        self.allocation, self._down = self.held, 0
        self.generation += 1
        self._happened()

    def restart(self, wanted: Allocation, placing: Placing, pause_seconds: float, now: float) -> None:
        """Restarts from its last checkpoint with another allocation after it ran out of memory."""
        self.lose_server(pause_seconds, now)
        self.accounts.hold(self.held, now)
        self.held = self.allocation = wanted
        self._placing, self._down, self.slow_workers, self.is_hot = placing, 0, 0, False
        self.generation += 1
        self._happened()

    def evict(self, now: float, asks: Allocation | None = None) -> None:
        """Frees all pods and waits for capacity again.

        Args:
            asks: the requested allocation; None: its first one with the memory that it has needed since, without later
                growth.
        """
        self.pass_time(now)
        self.accounts.hold(self.held, now)
        self.remaining = max(self.remaining, self._saved_remaining)
        self.is_training, self.is_evicted = False, True
        self.generation += 1
        if asks is None:
            memory = max(self.started_with.parameter_server_memory_bytes, self.held.parameter_server_memory_bytes)
            asks = msgspec.structs.replace(self.started_with, parameter_server_memory_bytes=memory)
        self.held = self.allocation = asks
        self._down, self._placing, self.placed = 0, Placing(), self._environment.event()
        # Its next pods are others, on other nodes.
        self.slow_workers, self.is_hot = 0, False
        self._happened()

    def end_window(self, now: float) -> None:
        """Adds the training in an interval."""
        self._window = None
        self.pass_time(now)

    def wake(self) -> None:
        """Ends the job's window because its speed has changed; no effect between two windows."""
        self._happened()
        window, self._window = self._window, None
        if window is not None:
            window.interrupt()

    def use(self, prices: PriceList) -> Use:
        """The resources that it has used and, up to the last call of `accounts.hold`, held."""
        hours = Resources(self.accounts.core_seconds / 3600.0, self.accounts.byte_seconds / 3600.0)
        return Use(
            core_hours=hours.cores, cost=prices.per_hour(hours), workers=self.accounts.workers.used(),
            servers=self.accounts.servers.used(),
        )  # fmt: skip

    def end(self, now: float, prices: PriceList) -> Ended:
        """The job's row of the report."""
        self._happened()
        self.accounts.hold(self.held, now)
        use = self.use(prices)
        return Ended(
            job_id=self.job.job_id, arrival_seconds=self.job.arrival_seconds, placed_seconds=self._placed_at,
            ended_seconds=now, scaling_seconds=self._scaled_at - self._begun_at, started_with=self.started_with,
            allocation=self.held, core_hours=use.core_hours, cost=use.cost, workers=use.workers, servers=use.servers,
            **self.counts,
        )  # fmt: skip
