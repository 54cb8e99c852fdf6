"""Doubles the memory after a pod was killed for memory, within the limits of job file and cluster. Pure.

This is the last resort of DLRover-RM (§5.3); the memory forecast should act before. The successor is created with twice
the memory. Working pods of its role are resized if their nodes have room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastrec.platform.master.machine.effects import Decided, Effect
from elastrec.platform.master.machine.events import PodRefused, Ticked
from elastrec.platform.master.pods import requests, shape
from elastrec.platform.master.pods.membership import Member
from elastrec.platform.specs.shape import PlacesChange, PodSize
from elastrec.platform.specs.text.quantities import format_bytes
from elastrec.platform.transport.messages.observer import ShapeOutcome

if TYPE_CHECKING:
    from elastrec.platform.master.machine.state import JobState

ASKED_BY = "kill for memory"
ROOM_SECONDS = 120.0
"""How long a successor waits for room; after that, it starts with the memory of the killed pod."""


def double(state: JobState, killed: Member, limit_bytes: int, effects: list[Effect]) -> None:
    """Doubles the wanted memory of a role's pods, unless it is already wanted or exceeds the limit in the job file.

    Open requests that are given up later do not return to less.

    Args:
        limit_bytes: the limit at which the pod was killed.
    """
    role, most_bytes = killed.role, state.plan.most_memory_bytes.get(killed.role, 0)
    memory_bytes, wanted_bytes = min(2 * limit_bytes, most_bytes), state.wanted_shape[role].size.memory_bytes
    if memory_bytes > limit_bytes:
        for request, earlier_bytes in requests.memory_if_given_up(state, role):
            requests.return_to_memory(request, role, max(earlier_bytes, memory_bytes))
    is_under_way = killed.awaits_size and killed.asked.memory_bytes > limit_bytes
    if is_under_way or memory_bytes <= max(limit_bytes, wanted_bytes):
        return
    inputs = {
        "pod": killed.name, "before_memory_bytes": limit_bytes, "memory_bytes": memory_bytes,
        "most_memory_bytes": most_bytes, "kills": state.membership.memory_kills,
    }  # fmt: skip
    effects.append(Decided(decision="memory_doubled", inputs=inputs))
    change = {role: PlacesChange(memory_bytes=memory_bytes)}
    shape.want(state, state.wanted_shape.changed(change), change, ASKED_BY, effects)


def wait_for_room(state: JobState, successor: Member) -> None:
    """Starts the wait of a pod with more memory than the killed one, for which there may be no node."""
    if 0 < successor.oom_bytes < successor.asked.memory_bytes and not successor.is_registered:
        successor.room_until = state.time + ROOM_SECONDS


def deadline(state: JobState) -> float | None:
    """The deadline of the next waiting pod."""
    return min((member.room_until for member in state.membership.members.values() if member.room_until), default=None)


def ticked(state: JobState, event: Ticked, effects: list[Effect]) -> None:
    """Lets pods that still wait for room start with less memory."""
    for member in state.membership.members.values():
        if member.room_until and member.room_until <= state.time:
            member.room_until = 0.0
            is_larger = member.asked.memory_bytes > member.oom_bytes
            if member.name in event.waiting and not member.is_registered and is_larger:
                _settle_for_less(state, member, event.waiting[member.name], effects)


def creation_refused(state: JobState, event: PodRefused, effects: list[Effect]) -> bool:
    """Whether a pod with more memory than the killed one was refused; then it gets the memory of the killed one."""
    member = state.membership.members[event.pod]
    if not member.room_until:
        return False
    _settle_for_less(state, member, event.reason, effects)
    return True


def _settle_for_less(state: JobState, member: Member, reason: str, effects: list[Effect]) -> None:
    wanted_bytes, member.room_until = member.asked.memory_bytes, 0.0
    inputs = {
        "pod": member.name, "memory_bytes": member.oom_bytes, "asked_memory_bytes": wanted_bytes, "reason": reason,
    }  # fmt: skip
    effects.append(Decided(decision="memory_not_granted", inputs=inputs))
    state.membership.settle_for(member, PodSize(member.asked.cores, member.oom_bytes), state.time)
    if state.wanted_shape[member.role].size.memory_bytes == wanted_bytes:
        change = {member.role: PlacesChange(memory_bytes=member.oom_bytes)}
        shape.note(state, state.wanted_shape.changed(change), ASKED_BY)
    for request, earlier_bytes in requests.memory_if_given_up(state, member.role):
        if earlier_bytes == wanted_bytes:
            requests.return_to_memory(request, member.role, member.oom_bytes)
        if request.change.get(member.role, PlacesChange()).memory_bytes == wanted_bytes:
            # Otherwise it would count as done, since all pods have the wanted size now.
            words = f"{member.name}: {format_bytes(wanted_bytes)} of memory were not available: {reason}"
            shape.give_up(state, request, ShapeOutcome.TIMED_OUT, words, effects)
