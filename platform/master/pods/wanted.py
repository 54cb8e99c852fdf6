"""The pods that a job wants, and the actions for the difference to its existing pods. Pure.

Earlier actions are not remembered: the same comparison is made after every event and every observation, also by a
restarted master.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from elastrec.platform.clusters.pods import EndReason, PodSize, PodStatus, ResizeState
from elastrec.platform.master.machine.state import JobState
from elastrec.platform.master.pods.membership import Member
from elastrec.platform.master.pods.observed import Observed
from elastrec.platform.specs.metrics import Phase, Role

GRACE_SECONDS = 2.0
"""Seconds between SIGTERM and SIGKILL of a pod that does not belong to the job any more, so has nothing to finish."""
MEMBER_ROLES = (Role.WORKER, Role.PARAMETER_SERVER)


class WantedPod(msgspec.Struct, frozen=True, kw_only=True):
    """One pod of a job.

    Attributes:
        uid: of the known pod with this name; empty: none yet.
        size: the wanted size.
        granted: the size that the job knows.
        awaits_size: whether the result of a resize is not known yet.
        avoids_nodes: names of nodes on which it must not run.
        may_be_created: whether it may be created; False for a pod that is to leave.
    """

    name: str
    role: Role
    index: int
    restart: int
    uid: str
    size: PodSize
    granted: PodSize
    awaits_size: bool
    may_be_created: bool
    avoids_nodes: tuple[str, ...] = ()

    @staticmethod
    def of(member: Member, *, is_final: bool) -> WantedPod:
        """The wanted pod of a member."""
        return WantedPod(
            name=member.name,
            role=member.role,
            index=member.index,
            restart=member.restart,
            uid=member.uid,
            size=member.asked,
            awaits_size=member.awaits_size,
            granted=PodSize(member.cores, member.memory_bytes),
            may_be_created=not member.retiring and not is_final,
            avoids_nodes=tuple(member.avoids_nodes),
        )


@dataclass(frozen=True)
class Wanted:
    """The pods that a job wants.

    Attributes:
        pods: by name.
        leaving: names of pods that the job gave up, and whose end it awaits.
        kept: names of pods that end by themselves and stay for their logs; all other workers and servers are deleted.
    """

    pods: Mapping[str, WantedPod]
    leaving: tuple[str, ...]
    kept: frozenset[str]


def wanted(state: JobState) -> Wanted:
    """The pods that a job wants in this state."""
    is_final = state.phase.is_final
    pods = {name: WantedPod.of(member, is_final=is_final) for name, member in state.membership.members.items()}
    ended_well = state.phase in (Phase.SUCCEEDED, Phase.STOPPED)
    leaving = tuple(state.membership.leaving)
    return Wanted(pods, leaving, frozenset() if ended_well else frozenset(state.membership.ended))


@dataclass(frozen=True)
class Create:
    """Make a pod."""

    name: str
    pod: WantedPod


@dataclass(frozen=True)
class Delete:
    """Delete a pod that has no place in the job."""

    name: str
    uid: str


@dataclass(frozen=True)
class Resize:
    """Ask for another size."""

    name: str
    uid: str
    size: PodSize


@dataclass(frozen=True)
class Found:
    """Report to the job that the cluster has the pod."""

    name: str
    uid: str


@dataclass(frozen=True)
class Lost:
    """Report to the job that the pod has ended. `pod` is its last state in the cluster; None: unknown."""

    name: str
    uid: str
    end: EndReason
    pod: PodStatus | None


@dataclass(frozen=True)
class Forgotten:
    """Report to the job that a pod that it gave up has been deleted."""

    name: str


@dataclass(frozen=True)
class Granted:
    """Report the size of the pod to the job. `outcome_of`: the requested size, if this is the result of a request."""

    name: str
    uid: str
    size: PodSize
    outcome_of: PodSize | None = None


@dataclass(frozen=True)
class Infeasible:
    """Report to the job that the pod will not get the requested size."""

    name: str
    uid: str
    size: PodSize
    reason: str


Action = Create | Delete | Resize | Found | Lost | Forgotten | Granted | Infeasible


def compare(target: Wanted, observed: Observed) -> list[Action]:
    """The actions that are due; at most one per pod."""
    actions: list[Action] = []
    by_name = observed.by_name()
    for pod in target.pods.values():
        action = _without_uid(pod, by_name.get(pod.name), observed) if not pod.uid else _with_uid(pod, observed)
        if action is not None:
            actions.append(action)
    for status in observed.pods.values():
        if status.role not in MEMBER_ROLES or status.is_ending:
            continue
        place = target.pods.get(status.name)
        if place is not None and (status.uid == place.uid or (not place.uid and not status.phase.is_final)):
            continue
        if place is None and status.name in target.kept:
            continue
        actions.append(Delete(status.name, status.uid))
    if observed.is_synced:
        actions.extend(Forgotten(name) for name in target.leaving if name not in by_name)
    return actions


def _without_uid(pod: WantedPod, here: PodStatus | None, observed: Observed) -> Action | None:
    if here is None:
        return Create(pod.name, pod) if observed.is_synced and pod.may_be_created else None
    # An existing pod is adopted. A pod that has ended or is being deleted must be gone before another one is created.
    return None if here.phase.is_final or here.is_ending else Found(pod.name, here.uid)


def _with_uid(pod: WantedPod, observed: Observed) -> Action | None:
    status = observed.pods.get(pod.uid)
    if status is None:
        last = observed.gone.get(pod.uid)
        if last is None and not observed.is_synced:
            return None
        return Lost(pod.name, pod.uid, _end_of(last), last)
    if status.phase.is_final:
        return Lost(pod.name, pod.uid, _end_of(status), status)
    # A cluster that rounds sizes up has fulfilled the request although the sizes differ.
    outcome_of = status.asked_size if status.resize is ResizeState.DONE else None
    if status.size != pod.granted or (pod.awaits_size and outcome_of == pod.size):
        return Granted(pod.name, pod.uid, status.size, outcome_of)
    if status.asked_size != pod.size:
        return Resize(pod.name, pod.uid, pod.size)
    if status.resize is ResizeState.INFEASIBLE and pod.size != pod.granted:
        return Infeasible(pod.name, pod.uid, pod.size, status.resize_message)
    return None


def _end_of(last: PodStatus | None) -> EndReason:
    if last is None or last.end is None:
        return EndReason.VANISHED
    return last.end
