"""Speed by configuration: the steps of workers, aggregated for each set of pods that the job has had. Pure.

Steps while pods started or ended, or while there was no master, belong to no configuration and are left out. Older
steps count less than newer ones, so that speeds that were disturbed by other jobs are corrected by later measurements.
If all steps become much slower or faster, the measurements before do not count (`specs.metrics.StepsByConfiguration`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from elastrec.platform.master.pods.pace import look_seconds
from elastrec.platform.specs.metrics import Phase, Role, Steps, StepsByConfiguration, share_kept
from elastrec.platform.specs.shape import Places, PodSize, Shape
from elastrec.platform.transport.messages.job import WindowMetrics
from elastrec.platform.transport.messages.profile import Measured, ServerUse

if TYPE_CHECKING:
    from elastrec.platform.master.machine.state import JobState
    from elastrec.platform.master.measuring.monitor import Monitor
    from elastrec.platform.master.pods.membership import Member

SETTLING_SECONDS = 2.0
"""Seconds to ignore after a change, because new connections, caches and the first batches of new workers are not
typical."""
_LOOK_SECONDS = 0.2
_MOST_CONFIGURATIONS = 256


def configuration_of(state: JobState) -> Shape | None:
    """The present or wanted configuration of the job; None without workers or servers."""
    workers = [worker for worker in state.membership.workers() if not worker.retiring]
    servers = state.owners()
    if not workers or not servers:
        return None
    return Shape({Role.PARAMETER_SERVER: _places(servers), Role.WORKER: _places(workers)})


def _places(members: Sequence[Member]) -> Places:
    # Pods of a role differ if the resizing of only some of them was refused.
    smallest = min(members, key=lambda member: (member.cores, member.memory_bytes))
    return Places(len(members), PodSize(smallest.cores, smallest.memory_bytes))


def is_settled(state: JobState) -> bool:
    """Whether every pod is running and has work, and nothing is being changed."""
    return (
        are_servers_settled(state)
        and not state.saves.is_paused
        and all(
            _is_in_place(member)
            and not (member.role is Role.WORKER and (member.starved or member.is_idle))
            and (member.orders is None or member.orders_version == member.orders.version)
            for member in state.membership.members.values()
        )
    )


def are_servers_settled(state: JobState) -> bool:
    """Whether every parameter server is running with its wanted size.

    Saves and changes of workers do not matter, because a job that needs memory cannot wait for them.
    """
    return (
        state.phase is Phase.TRAINING
        and state.has_wanted_servers
        and all(_is_in_place(server) for server in state.membership.servers())
    )


def _is_in_place(member: Member) -> bool:
    return member.is_registered and member.stays and not member.awaits_size


def server_use(state: JobState, monitor: Monitor) -> list[ServerUse]:
    """Memory in use of every server that has reported it."""
    uses = []
    for server in state.membership.servers():
        sample = monitor.pods.get(server.name)
        if sample is not None and sample.memory_bytes:
            uses.append(
                ServerUse(
                    pod=server.name,
                    used_bytes=sample.memory_bytes,
                    limit_bytes=server.memory_bytes,
                    table_bytes=sum(usage.bytes for usage in sample.tables),
                )
            )
    return uses


def worker_use(state: JobState, monitor: Monitor) -> int:
    """Memory in use of the worker that uses most, bytes; 0 if none has reported it."""
    samples = (monitor.pods.get(worker.name) for worker in state.membership.workers())
    return max((sample.memory_bytes for sample in samples if sample is not None), default=0)


class SpeedProfile:
    """One job's sums. Not thread-safe: its owner locks."""

    def __init__(self) -> None:
        self._steps = StepsByConfiguration[Shape]()
        self._now: Shape | None = None
        self._settled_since = 0.0
        self._looked = float("-inf")
        self._heard: dict[str, float] = {}
        self._added = 0.0

    def add(self, pod: str, metrics: WindowMetrics, state: JobState, time: float) -> None:
        """Adds a worker's window of some steps if the job had one configuration during all of it."""
        # A window begins at the end of the last one with steps, so time without steps belongs to the next window.
        since, self._heard[pod] = self._heard.get(pod), time
        # Not computed for every heartbeat, because a job may have a thousand workers.
        if time >= self._looked + max(_LOOK_SECONDS, look_seconds(len(state.membership.members))):
            self._looked = time
            current = configuration_of(state) if is_settled(state) else None
            if current != self._now:
                self._now, self._settled_since = current, time
                self._heard = {pod: time}
        configuration = self._now
        if configuration is None or since is None or since < self._settled_since + SETTLING_SECONDS:
            return
        # Sums only fade while the job has their configuration.
        kept = share_kept(max(0.0, time - max(self._added, self._settled_since)))
        self._added = time
        window = Steps(
            metrics.steps, metrics.steps, time - since,
            (float(metrics.samples), metrics.pull_seconds, metrics.push_seconds),
        )  # fmt: skip
        self._steps.add(configuration, window, kept, since, time)
        if len(self._steps.sums) > _MOST_CONFIGURATIONS:
            del self._steps.sums[next(iter(self._steps.sums))]

    def recall(self, measured: Iterable[Measured]) -> None:
        """Goes on where the profile of a master before this one ended."""
        self._steps = StepsByConfiguration({
            entry.configuration: Steps(
                entry.steps_ever, entry.steps, entry.worker_seconds,
                (entry.samples, entry.pull_seconds, entry.push_seconds),
            )
            for entry in measured
        })  # fmt: skip

    def measured(self) -> list[Measured]:
        """One entry per configuration, in the order in which they were first measured."""
        return [
            Measured(
                configuration=configuration, steps_ever=int(sums.ever), steps=sums.steps, worker_seconds=sums.seconds,
                samples=samples, pull_seconds=pull_seconds, push_seconds=push_seconds,
            )
            for configuration, sums in self._steps.sums.items()
            for samples, pull_seconds, push_seconds in [sums.others]
        ]  # fmt: skip
