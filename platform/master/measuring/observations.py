"""Measurements of a master that are not journalled: speeds, starts, growth of tables, the last window.

They are for people and for plans; no decision of the state machine depends on them. Measurements for plans are saved
for a restarted master (`saved_measurements`), the rest is measured again. The service's lock protects all of them.

Heartbeats are queued until their figures are read, for half a second at most, and then aggregated together: for a
single heartbeat, loading the code into the processor's caches takes several times as long as running it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping

import msgspec

from elastrec.platform.history.points import Costs
from elastrec.platform.master.machine import migration
from elastrec.platform.master.machine.effects import Decided, Effect
from elastrec.platform.master.machine.state import JobState
from elastrec.platform.master.measuring.growth_profile import GrowthPoint, GrowthProfile
from elastrec.platform.master.measuring.hot_servers import HotServers, Load, Relief
from elastrec.platform.master.measuring.migration_profile import MigrationProfile
from elastrec.platform.master.measuring.momentary_speed import MomentarySpeed
from elastrec.platform.master.measuring.monitor import Monitor, PodSample, Window
from elastrec.platform.master.measuring.slow_pods import SlowPod, SlowPods, comparable, price_seconds
from elastrec.platform.master.measuring.speed_profile import SpeedProfile, are_servers_settled
from elastrec.platform.master.measuring.start_profile import Start, StartProfile
from elastrec.platform.master.pods import succession
from elastrec.platform.master.pods.membership import Member
from elastrec.platform.specs.metrics import Phase, Role
from elastrec.platform.specs.shape import MigrationSeen
from elastrec.platform.transport.messages.job import Heartbeat
from elastrec.platform.transport.messages.profile import Measured

_MOST_UNREAD = 1024
_SETTLE_SECONDS = 0.5
_MOVED = ("migration_hands_over", "migration_ended")
"""Decisions after which earlier reports of servers count moved rows at their earlier owners."""


class Remembered(msgspec.Struct, kw_only=True):
    """Measurements for a restarted master; their size depends on configurations, points and pods, not on steps.

    Attributes:
        generation: of the job while `growth` was measured.
        costs: None if they are not counted, because the job was launched without history.
    """

    measured: list[Measured] = []
    generation: int = -1
    growth: list[GrowthPoint] = []
    starts: list[Start] = []
    migrations: list[MigrationSeen] = []
    costs: Costs | None = None


class Observations:
    """The measurements of one job.

    Attributes:
        window: the last one in which something was trained.
    """

    def __init__(self, now: float) -> None:
        self._monitor = Monitor(now)
        self._profile = SpeedProfile()
        self._starts = StartProfile()
        self._hot_servers = HotServers()
        self._slow_pods = {role: SlowPods() for role in (Role.WORKER, Role.PARAMETER_SERVER)}
        self.growth = GrowthProfile()
        self.speed = MomentarySpeed()
        self.migrations = MigrationProfile()
        self.window: Window | None = None
        self._is_trained = False
        # Pods that have reported since buckets last changed servers.
        self._current: set[str] = set()
        self._unread: list[tuple[Heartbeat, JobState, bool, float]] = []

    @property
    def monitor(self) -> Monitor:
        """Speed and quality, all heartbeats included."""
        self.settle()
        return self._monitor

    @property
    def profile(self) -> SpeedProfile:
        """Speed by configuration, all heartbeats included."""
        self.settle()
        return self._profile

    @property
    def starts(self) -> StartProfile:
        """Start-up times, all heartbeats included."""
        self.settle()
        return self._starts

    def costs_of_changes(self) -> dict[str, float]:
        """Durations of starts and migrations of this job, by metric name."""
        return self.starts.medians() | self.migrations.medians()

    def remembered(self) -> Remembered:
        """The measurements to be saved."""
        generation, growth = self.growth.points()
        return Remembered(
            measured=self.profile.measured(), generation=generation, growth=growth, starts=self.starts.starts(),
            migrations=self.migrations.seen,
        )  # fmt: skip

    def recall(self, known: Remembered) -> None:
        """Restores the measurements of an earlier master process."""
        self.profile.recall(known.measured)
        self.growth.recall(known.generation, known.growth)
        self.starts.recall(known.starts)
        self.migrations = MigrationProfile(known.migrations)

    def recall_changes(self, state: JobState) -> None:
        """Goes on with the cool-downs of a master before this one, whose changes are measured before the next ones."""
        if state.relieved is not None:
            self._hot_servers.moved(state.relieved)
        for role, moved in state.slow_moved.items():
            self._slow_pods[role].moved(moved)

    def handled(self, state: JobState, effects: Iterable[Effect], now: float) -> None:
        """Called after an event, which may have requested pods, moved servers or moved a slow pod."""
        for effect in effects:
            if isinstance(effect, Decided):
                if effect.decision == "slow_pod_moved":
                    self._slow_pods[Role(effect.inputs["role"])].moved(now)
                if effect.decision in _MOVED:
                    self._current.clear()
                # Only durations of this profile are used, so no wall clock is needed.
                self.migrations.decided(now, 0.0, effect.decision, effect.inputs)
        if state.membership.revision != self._starts.revision:
            self.starts.asked(state, now)

    def registered(self, pod: str, state: JobState, now: float) -> None:
        """Called when a process has registered; a server then works."""
        member = state.membership.members.get(pod)
        if member is not None and member.role is Role.PARAMETER_SERVER:
            self.starts.works(pod, now)

    def heartbeat(self, message: Heartbeat, state: JobState, now: float) -> None:
        """Adds a member's heartbeat; each window counts once."""
        self._current.add(message.pod)
        self._unread.append((message, state, state.phases.phase is Phase.TRAINING, now))
        if len(self._unread) >= _MOST_UNREAD:
            self.settle()

    def settle_late(self, now: float) -> None:
        """Aggregates heartbeats that have waited long enough; they count for the job's present configuration."""
        if self._unread and now - self._unread[0][-1] >= _SETTLE_SECONDS:
            self.settle()

    def settle(self) -> None:
        """Aggregates the heartbeats since the last call."""
        unread, self._unread = self._unread, []
        for message, state, is_training, at in unread:
            if self._monitor.add(message, is_training=is_training):
                self._profile.add(message.pod, message.metrics, state, at)
                self._starts.works(message.pod, at)
            self._starts.reported(message.pod, message.cpu_seconds)

    def keep_only(self, members: Mapping[str, Member]) -> None:
        """Discards the figures of all other pods."""
        for gone in self._monitor.pods.keys() - members.keys():
            self.monitor.forget(gone)

    def is_current(self, state: JobState) -> bool:
        """Whether all servers with rows have reported to this process of the master since rows last moved. Otherwise,
        rows are missing, or count at two servers."""
        return all(server.name in self._current for server in state.owners())

    def relief(self, state: JobState, now: float) -> Relief | None:
        """Buckets that should leave a hot server, if it was hot for long enough and nothing else changes."""
        if not (migration.may_relieve(state) and are_servers_settled(state)):
            self._hot_servers.forget()
            return None
        loads = self._loads(state) if self._is_trained else {}
        return self._hot_servers.look(loads, self._waiting_share(state), now, self._left_seconds(state))

    def _loads(self, state: JobState) -> dict[str, Load]:
        """Loads of all servers that own buckets; empty unless each of them has reported."""
        loads = {}
        for server in state.owners():
            sample = self._monitor.pods.get(server.name)
            if sample is None or not sample.load.rows_per_second:
                return {}
            load = sample.load
            loads[server.name] = Load(load.rows_per_second, server.cores, load.hottest, load.seconds_per_row)
        return loads

    def slow_pods(self, state: JobState, now: float) -> list[SlowPod]:
        """Pods that should leave their nodes: slow for long enough while nothing else changed; one per role at most."""
        if not succession.may_move_slow(state):
            for seen in self._slow_pods.values():
                seen.forget()
            return []
        workers, servers = {}, {}
        if self._is_trained:
            workers = {name: sample.compute_seconds_per_row for name, sample in self._training(state).items()}
            servers = comparable(self._loads(state))
        # Without `bsp` and `ssp`, a worker does not delay other workers.
        held_up = 1.0 if state.plan.is_synchronous else 1.0 / max(1, len(workers))
        shares = {
            Role.WORKER: {name: held_up * self._monitor.pods[name].share_of("compute") for name in workers},
            Role.PARAMETER_SERVER: dict.fromkeys(servers, self._waiting_share(state)),
        }
        starts, pods, left = self._starts.seconds(), len(state.membership.members), self._left_seconds(state)
        found = (
            self._slow_pods[role].look(times, shares[role], price_seconds(starts.get(role, 0.0), pods), now, left)
            for role, times in ((Role.WORKER, workers), (Role.PARAMETER_SERVER, servers))
        )
        return [slow for slow in found if slow is not None]

    def _training(self, state: JobState) -> dict[str, PodSample]:
        """Workers that stay, have trained something, and may train now: figures of others are of the past."""
        known = self._monitor.pods
        at_work = (worker for worker in state.membership.workers() if worker.stays and not worker.is_idle)
        workers = {worker.name: known[worker.name] for worker in at_work if worker.name in known}
        return {name: sample for name, sample in workers.items() if sample.compute_seconds_per_row > 0}

    def _left_seconds(self, state: JobState) -> float:
        """Until the job ends at its present speed; inf if that is not known."""
        speed, queue = self.speed.samples_per_second, state.training
        return (queue.splits.total_rows - queue.covered_rows()) / speed if speed else math.inf

    def _waiting_share(self, state: JobState) -> float:
        """Share of their steps in which workers wait for servers; 0 if unknown."""
        shares = [sample.share_of("pull", "push") for sample in self._training(state).values()]
        if not shares:
            return 0.0
        # In `bsp` and `ssp`, all workers also wait for the slowest one.
        return min(shares) if state.plan.is_synchronous else statistics.fmean(shares)

    def close_window(self, state: JobState, now: float) -> bool:
        """Whether a window of the job's figures ended."""
        if not self._monitor.is_window_over(now):
            return False
        self.close_last_window(state, now)
        return True

    def close_last_window(self, state: JobState, now: float) -> None:
        """Ends the window at once: a job that has ended gets no other one, and a short job has had none."""
        window = self.monitor.close_window(now)
        # While a job pauses for a save or rolls back, times per row are not valid.
        self._is_trained = window.samples > 0
        if self._is_trained:
            self.window = window
        if state.phase is Phase.TRAINING:
            self.speed.add(window.samples, window.seconds)
        # Rows also count during a save and while workers start or end, because the forecast does not wait for these.
        if are_servers_settled(state) and self.is_current(state):
            self.growth.add(state.training.samples, state.phases.generation, self.monitor.tables())
