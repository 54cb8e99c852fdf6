"""Servers that are about to be ended: what is done before, and the pause until they have gone. Pure.

A record is saved at once, and another server starts to take the buckets over. Where it cannot be there in time, workers
pause shortly before the end for one more record, and go on once nobody waits for that server any more: what a rollback
repeats is less than a step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastrec.platform.master.machine import migration
from elastrec.platform.master.machine.effects import Decided, Effect
from elastrec.platform.master.machine.events import PodReported, ShapeAsked
from elastrec.platform.master.pods import shape
from elastrec.platform.master.pods.membership import Member
from elastrec.platform.specs.metrics import Phase, Role
from elastrec.platform.transport.messages.observer import PodMove

if TYPE_CHECKING:
    from elastrec.platform.master.machine.state import JobState

_RECORD_FACTOR, _MARGIN_SECONDS = 1.5, 5.0
"""The last record has so many times as long as the one before it took, and so many seconds more: on a busy node steps
and heartbeats are late, and a record that is late by a moment is as good as none."""


def is_new(member: Member, report: PodReported) -> bool:
    """Whether a server's process says for the first time that it is about to be ended."""
    return report.ends_in_seconds is not None and member.role is Role.PARAMETER_SERVER and not member.has_notice


def given(state: JobState, member: Member, ends_in_seconds: float, effects: list[Effect]) -> None:
    """A record is saved at once, and another server starts to take the buckets over before the process is ended.

    Where that comes too late, the server that has been started for it takes the place (`losses`). Once training is
    over, its final record has all rows, and no bucket moves any more.
    """
    member.ends_at = state.time + ends_in_seconds
    if member.retiring or state.phase.is_final:
        return
    inputs = {
        "pod": member.name, "node": member.node, "phase": str(state.phase),
        "ends_in_seconds": round(ends_in_seconds, 1),
    }  # fmt: skip
    effects.append(Decided(decision="notice_given", inputs=inputs))
    if state.phase is Phase.TRAINING:
        state.saves.is_asked = True
    if member.outgoing or state.phase in (Phase.SAVING, Phase.EVALUATING):
        return
    move = PodMove(pod=member.name)
    shape.shape_asked(state, ShapeAsked(time=state.time, change={}, moves=[move], asked_by="notice"), effects)


def step(state: JobState, effects: list[Effect]) -> bool:
    """Begins the pause for the last record, or ends it; true when something changed."""
    saves, leaving = state.saves, _leaving(state)
    if saves.held_since is not None:
        if leaving:
            return False
        state.training.resume(state.time, state.time - saves.held_since)
        saves.held_since = None
        return True
    due = deadline(state)
    if due is None or due > state.time:
        return False
    saves.held_since, saves.is_asked = state.time, True
    inputs = {
        "pods": sorted(server.name for server in leaving),
        "ends_in_seconds": round(min(_ends_at(server) for server in leaving) - state.time, 1),
        "last_record_seconds": round(saves.last_seconds, 2),
    }
    effects.append(Decided(decision="paused_before_end", inputs=inputs))
    return True


def deadline(state: JobState) -> float | None:
    """When the pause begins, or when it ends although a server that should be gone is still there."""
    leaving = _leaving(state)
    if not leaving:
        return None
    if state.saves.held_since is not None:
        return max(_given_up_at(state, server) for server in leaving)
    if state.saves.quiescing is not None or migration.blocks_saves(state):
        return None  # looked at again once that is over
    lead = _RECORD_FACTOR * state.saves.last_seconds + _MARGIN_SECONDS
    return min(_ends_at(server) for server in leaving) - lead


def _leaving(state: JobState) -> list[Member]:
    """Servers with notice that own rows which the job trains."""
    if state.phase is not Phase.TRAINING:
        return []
    return [server for server in state.owners() if server.has_notice and state.time < _given_up_at(state, server)]


def _ends_at(server: Member) -> float:
    assert server.ends_at is not None
    return server.ends_at


def _given_up_at(state: JobState, server: Member) -> float:
    # A process that is gone is missed once its heartbeats have been silent for a while, a lease at most.
    return _ends_at(server) + state.plan.lease_seconds
