"""The cluster in SimPy: jobs arrive, wait, start, train, have faults, are rescaled by a policy, and end.

The policy decides every `interval_seconds`, by the same `decide` as a round of a real cluster; it gets step times with
noise, never a job's true coefficients. Granted resources are held and paid for from the decision on. What needs no new
pods takes effect at once, everything else when they are up (`placing`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

import msgspec
import numpy as np
import simpy

from elastrec.platform.scaling.across_jobs.one_change import one_change
from elastrec.platform.scaling.across_jobs.selection import Weights
from elastrec.platform.scaling.amounts import Allocation, Change, PriceList, require
from elastrec.platform.scaling.job_profile import NotNow, decidable
from elastrec.platform.scaling.memory_watch import MEMORY, look
from elastrec.platform.scaling.policy import ScalingPolicy, View, decide
from elastrec.platform.scaling.search.front import SearchSettings
from elastrec.platform.scaling.search.objectives import Rules
from elastrec.platform.scaling.types import Overheads, Plan
from elastrec.platform.scaling.warm_start import WarmStartSettings
from elastrec.platform.simulator.node_changes import NodeChange, draw, lose_nodes
from elastrec.platform.simulator.nodes import Nodes
from elastrec.platform.simulator.patience import Patience
from elastrec.platform.simulator.placing import Part, free, move, place
from elastrec.platform.simulator.queue import Queue
from elastrec.platform.simulator.report import Ended, Moment, Report, Use
from elastrec.platform.simulator.room import make_room
from elastrec.platform.simulator.running import Running
from elastrec.platform.simulator.settings import Settings
from elastrec.platform.simulator.starting import Starting
from elastrec.platform.simulator.troubles import Process, Troubles
from elastrec.platform.simulator.workload import JobToRun
from elastrec.platform.specs.errors import ScalingError


class Simulation:
    """One run; create a new one for every policy.

    Args:
        nodes: all free; the simulation modifies them.
        warm_start: settings of the starts from finished jobs; None: jobs start with their owners' allocations.
        node_changes: added and removed nodes, in any order.
        progress: called with (jobs ended, jobs in all) after every job.
    """

    def __init__(
        self,
        jobs: Sequence[JobToRun],
        nodes: Nodes,
        policy: ScalingPolicy,
        prices: PriceList,
        settings: Settings | None = None,
        *,
        rules: Rules | None = None,
        weights: Weights | None = None,
        search: SearchSettings | None = None,
        warm_start: WarmStartSettings | None = None,
        node_changes: Sequence[NodeChange] = (),
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._settings = settings or Settings()
        self._jobs, self._nodes, self._policy, self._prices = tuple(jobs), nodes, policy, prices
        names = {job.job_id for job in self._jobs}
        require(len(names) == len(self._jobs), "jobs", "two of one job_id", "different ids", "rename one")
        self._rules, self._weights, self._search = rules or Rules(), weights or Weights(), search or SearchSettings()
        self._starting, self._progress = Starting(warm_start), progress
        self._environment = simpy.Environment()
        self._troubles = Troubles(self._environment, self._settings, self._start_seconds)
        self._waiting, self._patience = Queue(), Patience(self._settings.patience_rounds)
        # Jobs that hold pods, and all that have arrived and not ended, in the order of their arrival.
        self._running: dict[str, Running] = {}
        self._arrived: dict[str, Running] = {}
        self._ended: list[Ended] = []
        self._moments: list[Moment] = []
        self._problems: dict[str, int] = {}
        self._node_changes = sorted(node_changes, key=lambda each: each.seconds)
        self._nodes_to_come = sum(each.nodes > 0 for each in self._node_changes)
        self._short: dict[str, int] = {}
        self._held_core_seconds, self._there_core_seconds, self._looked_at, self._round = 0.0, 0.0, 0.0, 0

    def run(self) -> Report:
        """Simulates until every job has ended, or `until_seconds`."""
        for index, job in enumerate(self._jobs):
            self._environment.process(self._life(index, job))
        self._environment.process(self._rounds())
        self._environment.process(self._nodes_come_and_go())
        while len(self._ended) < len(self._jobs) and self._environment.peek() <= self._settings.until_seconds:
            self._environment.step()
            waiting = len(self._waiting) == len(self._jobs) - len(self._ended)
            if waiting and not self._running and not self._nodes_to_come:
                # The remaining jobs are too large for the empty cluster.
                break
        self._count_use()
        unfinished = {job.job_id for job in self._jobs} - {job.job_id for job in self._ended}
        return Report(
            policy=self._policy.name,
            jobs=tuple(self._ended),
            unfinished=tuple(sorted(unfinished)),
            unfinished_use=tuple(self._use_of(each) for each in self._arrived.values()),
            seconds=self._environment.now,
            cores_held=self._held_core_seconds / max(self._there_core_seconds, 1e-9),
            core_hours_there=self._there_core_seconds / 3600.0,
            moments=tuple(self._moments),
            problems=dict(self._problems),
        )

    def _use_of(self, unfinished: Running) -> Use:
        """Of a job that has not ended, until now."""
        now = self._environment.now
        if unfinished.job.job_id in self._running:
            unfinished.pass_time(now)
            unfinished.accounts.hold(unfinished.held, now)
        return unfinished.use(self._prices)

    def _count_use(self) -> None:
        now = self._environment.now
        there = self._nodes.count * self._nodes.size.cores
        self._held_core_seconds += (there - self._nodes.free.cores) * (now - self._looked_at)
        self._there_core_seconds += there * (now - self._looked_at)
        self._looked_at = now

    def _start_seconds(self, random: np.random.Generator) -> float:
        return self._settings.start_seconds * float(random.lognormal(0.0, self._settings.start_spread))

    def _life(self, index: int, job: JobToRun) -> Process:
        environment, settings = self._environment, self._settings
        yield environment.timeout(job.arrival_seconds)
        start, prior = self._starting.of(job, self._nodes.capacity)
        random = np.random.default_rng([settings.seed, index, 0])
        running = self._arrived[job.job_id] = Running(job, start, prior, environment, settings, random)
        has_begun = False
        while running.remaining > 0:
            self._waiting.add(index, running)
            self._admit()
            yield running.placed
            yield environment.timeout(
                self._start_seconds(random) if job.start_seconds is None else job.start_seconds
            )  # fmt: skip
            if running.is_evicted:
                continue
            running.begin(environment.now)
            if not has_begun:
                has_begun = True
                if job.pods_up:
                    environment.process(self._replay(running))
                else:
                    self._troubles.begin(running, settings.seed, index)
                if job.memory is not None and settings.handling.memory_forecast:
                    environment.process(self._watch_memory(running))
            while running.remaining > 0 and not running.is_evicted:
                running.new_window()
                # Interrupted by changes of its allocation, its workers or a pause, which end the window.
                with suppress(simpy.Interrupt):
                    yield environment.timeout(min(running.seconds_left, settings.interval_seconds))
                running.end_window(environment.now)
                if running.is_out_of_memory and not self._restarted(running):
                    # More does not fit at present: after the owner's reaction, the job waits for capacity like a new
                    # one.
                    yield environment.timeout(settings.handling.resubmit_seconds)
        self._end(running)

    def _watch_memory(self, running: Running) -> Process:
        """The job's master checks the memory of its servers between two rounds, as a real one does."""
        interval, overheads = self._settings.interval_seconds, self._overheads()
        plan_seconds = overheads.server_start_seconds + overheads.migration_pause_seconds
        while running.remaining > 0:
            seconds = interval
            if running.is_training:
                running.pass_time(self._environment.now)
                found = look(running.memory_facts(interval, self._nodes.size.memory_bytes), plan_seconds)
                seconds, running.is_short_of_memory = found.seconds, found.is_short
                if found.plan is not None and not (self._is_possible(found.plan) and self._apply(found.plan)):
                    seconds = interval
            yield self._environment.timeout(seconds)

    def _replay(self, running: Running) -> Process:
        """Replays the numbers of workers and servers of a recorded real run."""
        begun = self._environment.now
        for seconds, workers, servers in running.job.pods_up:
            yield self._environment.timeout(max(0.0, begun + seconds - self._environment.now))
            if running.remaining <= 0:
                return
            held = running.held
            wanted = msgspec.structs.replace(held, workers=max(workers, held.workers), parameter_servers=servers)
            if wanted != held:
                moved = move(self._nodes, running.placing, held, wanted)
                if moved is None:
                    raise ScalingError(
                        f"{running.job.job_id}.pods_up: {workers} workers and {servers} servers are not allowed; "
                        "allowed: what the nodes have room for; give the simulation more nodes"
                    )
                running.change_to(wanted, moved.placing, self._environment.now)
                for part in moved.parts:
                    running.reach(part, self._environment.now)
            running.have_up(workers, self._environment.now)
            running.wake()

    def _end(self, running: Running) -> None:
        self._count_use()
        self._ended.append(running.end(self._environment.now, self._prices))
        del self._arrived[running.job.job_id]
        self._starting.remember(running, self._environment.now)
        free(self._nodes, running.placing, running.held)
        self._leave(running)
        if self._progress is not None:
            self._progress(len(self._ended), len(self._jobs))
        self._admit()

    def _admit(self) -> None:
        """Places waiting jobs by priority, then by arrival; a small one may overtake a large one."""
        self._count_use()
        self._refill()
        again = len(self._waiting) > 0
        while again:
            again, room, least = False, self._nodes.free.cores + 1e-3, math.inf
            if self._settings.preemption:
                least = min((each.job.priority for each in self._running.values()), default=math.inf)
            for running in self._waiting.tries(self._nodes, least):
                placing = place(self._nodes, running.held) if running.held_cores <= room else None
                # Preemption is only considered without free capacity, because thousands of jobs may run.
                if placing is None and running.job.priority > least:
                    again = self._preempt(running)
                    placing = place(self._nodes, running.held) if again else None
                if placing is not None:
                    self._waiting.take(running)
                    self._running[running.job.job_id] = running
                    running.take_place(placing, self._environment.now)
                    room = self._nodes.free.cores + 1e-3
                if again:
                    # An evicted job waits too, and the remaining capacity may be enough for another one.
                    break

    def _preempt(self, wanted: Running) -> bool:
        """Whether jobs of lower priority have made room."""
        now = self._environment.now
        yielding = make_room(wanted, self._running.values(), self._nodes)
        for each in yielding:
            victim = each.running
            if each.allocation is None:
                free(self._nodes, victim.placing, victim.held)
                victim.evict(now)
                victim.counts["evictions"] += 1
                self._leave(victim)
                victim.wake()
            elif not self._change(victim, each.allocation):
                raise AssertionError(f"{victim.job.job_id}: no room for a part of what it held")
        return bool(yielding)

    def _restarted(self, running: Running) -> bool:
        """The owner starts the job again with twice the memory, or with twice the servers if no node has so much.

        False: it does not fit at present, and the job has freed its pods.
        """
        settings, now = self._settings, self._environment.now
        running.counts["out_of_memory"] += 1
        held, largest = running.held, self._nodes.size.memory_bytes
        memory = 2 * running.allocation.parameter_server_memory_bytes
        servers = held.parameter_servers if memory <= largest else 2 * held.parameter_servers
        wanted = msgspec.structs.replace(
            held,
            parameter_servers=servers,
            parameter_server_memory_bytes=int(min(max(memory, held.parameter_server_memory_bytes), largest)),
        )
        pause = settings.handling.resubmit_seconds + settings.handling.restore_seconds
        self._count_use()
        moved = move(self._nodes, running.placing, held, wanted)
        if moved is not None:
            running.restart(wanted, moved.placing, pause + self._start_seconds(running.random), now)
            return True
        free(self._nodes, running.placing, held)
        running.evict(now, wanted)
        self._leave(running)
        return False

    def _leave(self, running: Running) -> None:
        del self._running[running.job.job_id]
        self._short.pop(running.job.job_id, None)

    def _nodes_come_and_go(self) -> Process:
        # Not [seed, 3]: numpy fills up with zeros, so that it would be the stream of job 3 (`_life`).
        random = np.random.default_rng([self._settings.seed, 0, 3])
        for change in self._node_changes:
            yield self._environment.timeout(change.seconds - self._environment.now)
            self._count_use()
            if change.nodes > 0:
                self._nodes.add(change.nodes)
                self._nodes_to_come -= 1
            else:
                self._close(draw(self._nodes, -change.nodes, random))
            self._admit()

    def _close(self, closed: Collection[int]) -> None:
        """Removes nodes; jobs lose their pods on them."""
        now, restore = self._environment.now, self._settings.handling.restore_seconds
        # All at once, so that no lost pod is placed on a node that is removed in the same moment.
        for node in closed:
            self._nodes.close(node)
        for running in tuple(self._running.values()):
            loss = lose_nodes(self._nodes, closed, running, now)
            if loss is None:
                continue
            if loss.waits:
                running.evict(now)
                self._leave(running)
            elif running.is_training and loss.restarts:
                running.start_anew(self._start_seconds(running.random) + restore, now)
            elif running.is_training and loss.replaced:
                running.lack(loss.replaced, now)
                self._environment.process(self._regain(running, loss.replaced))
            if loss.missing:
                self._short[running.job.job_id] = self._short.get(running.job.job_id, 0) + loss.missing
            running.wake()

    def _regain(self, running: Running, workers: int) -> Process:
        generation = running.generation
        yield self._environment.timeout(self._start_seconds(running.random))
        if running.remaining > 0 and running.generation == generation:
            running.regain_workers(workers, self._environment.now)
            running.wake()

    def _refill(self) -> None:
        """Replaces workers lost with a node, as far as they fit, before other jobs are placed."""
        for name, missing in tuple(self._short.items()):
            running = self._running[name]
            if not running.settled:
                continue
            for more in range(missing, 0, -1):
                wanted = msgspec.structs.replace(running.held, workers=running.held.workers + more)
                if not self._change(running, wanted, by_plan=False):
                    continue
                self._short[name] -= more
                break
            if not self._short[name]:
                del self._short[name]

    def _rounds(self) -> Process:
        settings, environment = self._settings, self._environment
        while True:
            yield environment.timeout(settings.interval_seconds)
            self._round += 1
            for each in self._running.values():
                each.pass_time(environment.now)
            self._note_moment()
            training = [each for each in self._running.values() if each.is_training and each.remaining > 0]
            largest = self._nodes.size.memory_bytes if settings.handling.memory_forecast else None
            capacity = self._nodes.capacity
            if self._waiting:
                # Waiting jobs get free capacity before running ones may grow.
                capacity = msgspec.structs.replace(capacity, free=capacity.free - self._waiting.asked(self._nodes))
            asked, profiles, found = [], [], []
            for each in training:
                if not self._patience.is_due(each, self._round, capacity.free):
                    continue
                profile = decidable(each.facts(settings.interval_seconds, largest))
                found.append(profile)
                if not isinstance(profile, NotNow):
                    asked.append(each)
                    profiles.append(profile)
            view = View(capacity, self._prices, self._overheads(), self._rules, self._weights, self._search)
            answer, _ = one_change(decide(self._policy, profiles, view), found, view.strategy)
            self._patience.remember(asked, answer, self._round, capacity.free)
            for job_id in answer.problems:
                self._problems[job_id] = self._problems.get(job_id, 0) + 1
            for plan in answer.plans:
                if self._is_possible(plan):
                    self._apply(plan)
            if self._waiting or self._short:
                self._admit()

    def _note_moment(self) -> None:
        held = self._nodes.count * self._nodes.size.cores - self._nodes.free.cores
        speed = sum(each.rate.samples for each in self._running.values() if each.is_training)
        self._moments.append(Moment(self._environment.now, len(self._running), len(self._waiting), held, speed))

    def _overheads(self) -> Overheads:
        settings = self._settings
        return Overheads(
            worker_start_seconds=settings.start_seconds,
            server_start_seconds=settings.start_seconds,
            migration_pause_seconds=settings.migration_pause_seconds,
            worker_start_core_seconds=settings.worker_start_core_seconds,
            server_start_core_seconds=settings.server_start_core_seconds,
        )

    def _is_possible(self, plan: Plan) -> bool:
        """Whether a master would apply a plan. It always gives servers the memory that a forecast requests; of two
        plans for a job, it refuses the second one, which was made for another shape."""
        running = self._running[plan.job_id]
        movable = running.job.movable | ({Change.SERVER_SIZE} if plan.policy == MEMORY else frozenset())
        return bool(plan.changes) and plan.changes <= movable and plan.before == running.held

    def _apply(self, plan: Plan) -> bool:
        """Whether it fits."""
        fits = self._change(self._running[plan.job_id], plan.allocation, plan.asked_by)
        if fits and plan.policy != MEMORY:
            # The policy's decision takes earlier losses into account.
            self._short.pop(plan.job_id, None)
        return fits

    def _change(self, running: Running, wanted: Allocation, asked_by: str = "", *, by_plan: bool = True) -> bool:
        """Gives a job another allocation; False, without any change, if it does not fit.

        The old pods train until the new ones are up.
        """
        self._count_use()
        moved = move(self._nodes, running.placing, running.held, wanted)
        if moved is None:
            return False
        running.change_to(wanted, moved.placing, self._environment.now, asked_by, by_plan=by_plan)
        for part in moved.parts:
            if part.starts:
                self._environment.process(self._start(running, part))
            else:
                running.reach(part, self._environment.now)
                running.wake()
        return True

    def _start(self, running: Running, part: Part) -> Process:
        generation = running.generation
        yield self._environment.timeout(self._start_seconds(running.random))
        if running.remaining > 0 and running.generation == generation:
            running.reach(part, self._environment.now)
            running.wake()
