"""Memory after a pod was killed for it: twice as much, as far as job file and cluster go. Pure.

The last resort of DLRover-RM (§5.3); the memory forecast is to come first. The successor is made with twice the memory.
Pods of its role that work get as much where their nodes have the room, and stay as they are elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastrec.platform.master.machine.effects import Decided, Effect
from elastrec.platform.master.machine.events import PodRefused, Ticked
from elastrec.platform.master.pods import shape
from elastrec.platform.master.pods.membership import Member
from elastrec.platform.specs.shape import PlacesChange, PodSize

if TYPE_CHECKING:
    from elastrec.platform.master.machine.state import JobState

ASKED_BY = "kill for memory"
ROOM_SECONDS = 120.0
"""So long a successor waits for room; then it starts with what the killed pod had."""


def double(state: JobState, killed: Member, limit_bytes: int, effects: list[Effect]) -> None:
    """Wants twice as much for the pods of a role, unless as much is wanted already or the job file allows no more.

    Args:
        limit_bytes: at which the pod was killed.
    """
    role, most_bytes = killed.role, state.plan.most_memory_bytes.get(killed.role, 0)
    memory_bytes, wanted_bytes = min(2 * limit_bytes, most_bytes), state.wanted_shape[role].size.memory_bytes
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
    """A pod that is to have more than the killed one had may find no node that has it."""
    if 0 < successor.oom_bytes < successor.asked.memory_bytes and not successor.is_registered:
        successor.room_until = state.time + ROOM_SECONDS


def deadline(state: JobState) -> float | None:
    """When the next one has waited long enough."""
    return min((member.room_until for member in state.membership.members.values() if member.room_until), default=None)


def ticked(state: JobState, event: Ticked, effects: list[Effect]) -> None:
    """Pods that still wait for room start with less."""
    for member in state.membership.members.values():
        if member.room_until and member.room_until <= state.time:
            member.room_until = 0.0
            if member.name in event.waiting and not member.is_registered:
                _settle_for_less(state, member, event.waiting[member.name], effects)


def creation_refused(state: JobState, event: PodRefused, effects: list[Effect]) -> bool:
    """Whether it was refused with more memory than the killed pod had: then it is to have as much as that one."""
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
