"""One simulated job while it is in the cluster: what it holds, what trains, how far it is, what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import simpy

from elastrec.platform.scaling.amounts import Allocation, Change, PriceList, Resources
from elastrec.platform.scaling.job_profile import JobFacts
from elastrec.platform.scaling.memory_outlook import MemorySeen
from elastrec.platform.scaling.types import Observation, PastChange, Plan, Prior
from elastrec.platform.simulator.accounts import Accounts
from elastrec.platform.simulator.memory import seen_of
from elastrec.platform.simulator.placing import Placing
from elastrec.platform.simulator.report import Ended
from elastrec.platform.simulator.settings import Settings
from elastrec.platform.simulator.speed import STOPPED, Rate, rate_of, steps_of
from elastrec.platform.simulator.workload import JobToRun
from elastrec.platform.specs.metrics import COUNTS_APART, WINDOW_SECONDS, share_kept

_LEAST_MEASURED_SECONDS = 0.8 * WINDOW_SECONDS
"""Shorter stretches are no measurement: a job has just begun, or something happened to it. A look at the memory of its
servers, which cuts stretches as short as a master's window, must not hide its steps."""
_MOST_POINTS = 60
_KEPT_CHANGES = 8
_SIZES = {
    Change.WORKER_SIZE: ("worker_cores", "worker_memory_bytes"),
    Change.SERVER_SIZE: ("parameter_server_cores", "parameter_server_memory_bytes"),
}
_NOTHING = 1e-9
"""So small a share of a job's samples is none."""


class Running:
    """A job from its arrival to its end. Its methods are called at moments that never go back.

    Attributes:
        held_cores: of all that it holds.
        allocation: what trains; behind `held` while new pods start.
        remaining: samples.
        placed: happens when it has all of its pods; made anew when it is evicted.
        version: rises when anything has happened to it but progress.
        generation: rises when changes that are on their way are void.
    """

    def __init__(
        self, job: JobToRun, start: Allocation, prior: Prior | None, environment: simpy.Environment, settings: Settings,
        random: np.random.Generator,
    ) -> None:  # fmt: skip
        self.job, self.random, self.settings = job, random, settings
        self.held = self.allocation = self.started_with = start
        self.remaining = job.samples
        self.placed = environment.event()
        self._window: simpy.Process | None = None
        self.is_training = self.is_evicted = False
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
        self._seen: dict[Allocation, tuple[float, float, float]] = {}
        self._steps_ever: dict[Allocation, float] = {}
        self._counted_at, self._counted_rows = list[float](), list[float]()
        self._trained = 0.0

    @property
    def held(self) -> Allocation:
        """What it has been given and pays for, or asks for while it waits."""
        return self._held

    @held.setter
    def held(self, held: Allocation) -> None:
        self._held, self.held_cores = held, held.resources.cores

    @property
    def settled(self) -> bool:
        """No change is on its way and no worker is missing."""
        return self.held == self.allocation and not self._down and self._environment.now >= self._paused_until

    @property
    def _are_servers_settled(self) -> bool:
        """They are all up, with the size that they are to have, whatever its workers do."""
        changing = self.allocation.changes(self.held) & {Change.SERVERS, Change.SERVER_SIZE}
        return not changing and self._environment.now >= self._paused_until

    @property
    def placing(self) -> Placing:
        """Where its pods are."""
        return self._placing

    def begin(self, now: float) -> None:
        """All pods are up, for the first time or again."""
        self.is_training, self.is_evicted, self._passed, self._saved_at = True, False, now, now
        self.version += 1
        if math.isnan(self._begun_at):
            self._begun_at = self._scaled_at = now

    def take_place(self, placing: Placing, now: float) -> None:
        """It has room for all of its pods, and pays from now on."""
        self._placing, self.accounts.paid_until, self.is_evicted = placing, now, False
        if math.isnan(self._placed_at):
            self._placed_at = now
        self.placed.succeed()

    def new_window(self) -> None:
        """Draws how fast nodes and network are for a while; the process that is active now waits for its end."""
        self._window = self._environment.active_process
        self._factor = float(np.exp(self.settings.noise * self.random.standard_normal()))

    @property
    def rate(self) -> Rate:
        """Now, by its workers that are up."""
        settings, now, factor = self.settings, self.allocation, self._factor
        # It is asked for several times between two changes, by every job in every window.
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
        """Until its last sample, or until a server is full, if nothing changes."""
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
        """A server holds more rows than it has room for."""
        # What is left after rounding takes less time than the clock can count.
        return self.remaining > 0 and self._samples_until_full() <= _NOTHING * self.job.samples

    def pass_time(self, now: float) -> None:
        """Trains until `now`, and notes how fast it was; a job that waits or starts does not train."""
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
        if self.remaining <= _NOTHING * self.job.samples:
            self.remaining = 0.0
        every = self.settings.handling.checkpoint_seconds
        if now - self._saved_at >= every:
            # The last checkpoint of this window lies so many samples back.
            self._saved_at += math.floor((now - self._saved_at) / every) * every
            self._saved_remaining = self.remaining + (now - self._saved_at) * rate.samples
        if self._down == 0 and trained >= _LEAST_MEASURED_SECONDS:
            seconds, compute, steps = self._seen.get(self.allocation, (0.0, 0.0, 0.0))
            count = trained / rate.step_seconds
            # Older windows fade: what was slow an hour ago is not slow now.
            kept = share_kept(trained)
            self._seen[self.allocation] = (
                kept * seconds + trained, kept * compute + count * rate.compute_seconds, kept * steps + count,
            )  # fmt: skip
            ever = self._steps_ever.get(self.allocation, 0.0)
            self._steps_ever[self.allocation] = ever + count * self.allocation.workers
        self._count_rows(trained_before, WINDOW_SECONDS * rate.samples)

    def _count_rows(self, since: float, every: float) -> None:
        """What its master has counted since so many samples.

        Args:
            every: samples between two counts.
        """
        memory, counted_at, counted = self.job.memory, self._counted_at, self._counted_rows
        if memory is None:
            return
        while since < self._trained:
            # Of counts that lie closer together only the newest would be kept.
            since = min(max(since + every, COUNTS_APART * since), self._trained)
            if len(counted) > 1 and counted_at[-1] < COUNTS_APART * counted_at[-2]:
                counted_at.pop()
                counted.pop()
            noise = 1.0 + 0.02 * self.random.standard_normal()
            counted.append(max(memory.rows(since) * noise, counted[-1] if counted else 1.0))
            counted_at.append(since)
        del counted_at[:-_MOST_POINTS], counted[:-_MOST_POINTS]

    def _memory_seen(self, largest_bytes: float) -> MemorySeen | None:
        """What its master knows of its memory."""
        if self.job.memory is None:
            return None
        trained = max(self.job.samples - self.remaining, self._trained)
        return seen_of(
            self.job.memory, self._counted_at, self._counted_rows, self.allocation, trained, self.remaining,
            self.rate.samples, largest_bytes,
        )  # fmt: skip

    def facts(self, until_next_change_seconds: float, largest_bytes: float | None) -> JobFacts:
        """What a decision about it is made from.

        Args:
            largest_bytes: no pod can have more memory; None: nobody forecasts its memory.
        """
        seen = tuple(
            Observation(
                allocation=each,
                iteration_seconds=seconds / steps,
                compute_seconds=compute / steps,
                iterations=max(1, int(steps)),
            )
            for each, (seconds, compute, steps) in self._seen.items()
        )
        now = self._environment.now
        changes = tuple(
            PastChange(before=before, after=after, seconds_ago=now - at, asked_by=asked_by)
            for at, before, after, asked_by in self._changes
        )
        return JobFacts(
            job_id=self.job.job_id, shape=self.job.shape, allocation=self.held,
            remaining_samples=self.remaining, observations=seen, prior=self._prior,
            memory=None if largest_bytes is None else self._memory_seen(largest_bytes),
            changes=changes, shape_version=self.counts["changes"], limits=self.job.limits,
            movable=self.job.movable, until_next_change_seconds=until_next_change_seconds, team=self.job.team,
            priority=self.job.priority, is_settled=self.settled, are_servers_settled=self._are_servers_settled,
            steps=int(self._steps_ever.get(self.held, 0.0)), least_steps=self.settings.least_steps,
        )  # fmt: skip

    def change_to(
        self, wanted: Allocation, placing: Placing, now: float, asked_by: str = "", *, by_plan: bool = True
    ) -> None:
        """Holds, and pays for, another allocation from now on; what trains is still the old one."""
        self.pass_time(now)
        self.accounts.hold(self.held, now)
        if by_plan:
            self._changes = [*self._changes, (now, self.held, wanted, asked_by)][-_KEPT_CHANGES:]
        self.held, self._placing = wanted, placing
        self.counts["changes"] += by_plan

    def cut_over(self, wanted: Allocation, pause_seconds: float, now: float) -> None:
        """The new pods take over."""
        self.pass_time(now)
        changes = self.allocation.changes(wanted)
        # New pods stand on other nodes, and rows are spread anew over other servers.
        self.slow_workers = 0 if Change.WORKER_SIZE in changes else min(self.slow_workers, wanted.workers)
        self.is_hot = self.is_hot and not changes & {Change.SERVERS, Change.SERVER_SIZE}
        self.allocation, self._paused_until, self._scaled_at = wanted, max(self._paused_until, now + pause_seconds), now
        self._down = min(self._down, wanted.workers)

    def reach(self, plan: Plan, pause_seconds: float, now: float) -> None:
        """The pods of one plan take over; what another one changes meanwhile, workers or servers, is as it was."""
        fields = Allocation.__struct_fields__
        named = [field for field in fields if getattr(plan.before, field) != getattr(plan.allocation, field)]
        self.cut_over(self._with_held(named), pause_seconds, now)

    def have_sizes(self, plan: Plan, in_place: frozenset[Change], now: float) -> Plan:
        """Pods have another size where they are: none starts or hands anything over, and what is slow stays slow.

        Returns:
            The part of the plan that pods have to start for.
        """
        named = [field for change in in_place for field in _SIZES[change]]
        if not named:
            return plan
        self.pass_time(now)
        self.allocation, self._scaled_at = self._with_held(named), now
        given = {field: getattr(plan.allocation, field) for field in named}
        return msgspec.structs.replace(plan, before=msgspec.structs.replace(plan.before, **given))

    def _with_held(self, fields: Sequence[str]) -> Allocation:
        """What trains, with what is held of these fields."""
        return msgspec.structs.replace(self.allocation, **{field: getattr(self.held, field) for field in fields})

    def lose_worker(self, now: float) -> bool:
        """One worker fails; False when none was up."""
        if self._down >= self.allocation.workers:
            return False
        self.pass_time(now)
        self._down += 1
        self.counts["failures"] += 1
        return True

    def lose_pods(self, pods: int, left: Allocation, placing: Placing, now: float) -> None:
        """A node went with so many of its pods; it holds what is left of its own and of the replacements' room."""
        self.pass_time(now)
        self.accounts.hold(self.held, now)
        if self.held == self.allocation:
            self.allocation = left
        self.held, self._placing = left, placing
        self._down = min(self._down, left.workers)
        self.counts["failures"] += pods
        self.version += 1

    def lack(self, workers: int, now: float) -> None:
        """So many more of its workers are not up."""
        self.pass_time(now)
        self._down = min(self._down + workers, self.allocation.workers)

    def have_up(self, workers: int, now: float) -> None:
        """So many of its workers train from now on."""
        self.pass_time(now)
        self._down = self.allocation.workers - workers

    def regain_workers(self, workers: int, now: float) -> None:
        """Replacements are up."""
        self.pass_time(now)
        self._down = max(0, self._down - workers)

    def pause(self, seconds: float, now: float) -> None:
        """Nothing trains for so long."""
        self.pass_time(now)
        self._paused_until = max(self._paused_until, now + seconds)

    def lose_server(self, pause_seconds: float, now: float) -> None:
        """What was trained since the last checkpoint is lost, and nothing trains for a while."""
        self._roll_back(pause_seconds, now)
        self.counts["failures"] += 1

    def _roll_back(self, pause_seconds: float, now: float) -> None:
        self.pass_time(now)
        self.remaining = max(self.remaining, self._saved_remaining)
        self._saved_at = self._paused_until = max(self._paused_until, now + pause_seconds)

    def start_anew(self, pause_seconds: float, now: float) -> None:
        """Pods were lost that it cannot do without: it goes on from its last checkpoint with all that it holds."""
        self._roll_back(pause_seconds, now)
        self.allocation, self._down = self.held, 0
        self.generation += 1
        self.version += 1

    def restart(self, wanted: Allocation, placing: Placing, pause_seconds: float, now: float) -> None:
        """It ran out of memory, and begins again from its last checkpoint with another allocation."""
        self.lose_server(pause_seconds, now)
        self.accounts.hold(self.held, now)
        self.held = self.allocation = wanted
        self._placing, self._down = placing, 0
        self.generation += 1
        self.version += 1

    def evict(self, now: float, asks: Allocation | None = None) -> None:
        """It has to give everything back, and to wait for room once more.

        Args:
            asks: for what; None: what it started with and the memory that it has needed since. What it had grown by
                is gone.
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

    def end_window(self, now: float) -> None:
        """What was trained in it is counted."""
        self._window = None
        self.pass_time(now)

    def wake(self) -> None:
        """Ends the job's window, because its speed has changed; without effect between two windows."""
        self.version += 1
        window, self._window = self._window, None
        if window is not None:
            window.interrupt()

    def end(self, now: float, prices: PriceList) -> Ended:
        """The job's line in the report."""
        self.accounts.hold(self.held, now)
        hours = Resources(self.accounts.core_seconds / 3600.0, self.accounts.byte_seconds / 3600.0)
        return Ended(
            job_id=self.job.job_id, arrival_seconds=self.job.arrival_seconds, placed_seconds=self._placed_at,
            ended_seconds=now, core_hours=hours.cores, cost=prices.per_hour(hours),
            scaling_seconds=self._scaled_at - self._begun_at, started_with=self.started_with, allocation=self.held,
            workers=self.accounts.workers.used(), servers=self.accounts.servers.used(), **self.counts,
        )  # fmt: skip
