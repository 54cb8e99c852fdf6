"""Servers with notice of their end: records and migration before the end, and the pause until they have ended. Pure.

A record is saved immediately, and another server starts and takes the buckets over. If there is not enough time,
workers pause shortly before the end for one more record, and continue after the server has ended, so that a rollback
repeats less than a step.
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
"""The time for the last record is the duration of the one before times this factor, plus this number of seconds: on a
busy node steps and heartbeats are late, and a record that is only slightly late is useless."""


def is_new(member: Member, report: PodReported) -> bool:
    """Whether a server's process reports for the first time that it is about to be ended."""
    return report.ends_in_seconds is not None and member.role is Role.PARAMETER_SERVER and not member.has_notice


def given(state: JobState, member: Member, ends_in_seconds: float, effects: list[Effect]) -> None:
    """Saves a record immediately, and starts another server to take the buckets over before the process is ended.

    If there is not enough time, the new server replaces the lost one (`losses`). After training, the final record has
    all rows, and buckets do not move any more.
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
    """Begins or ends the pause for the last record; returns whether something changed."""
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
    """When the pause begins, or when it ends although the server has not ended."""
    leaving = _leaving(state)
    if not leaving:
        return None
    if state.saves.held_since is not None:
        return max(_given_up_at(state, server) for server in leaving)
    if state.saves.quiescing is not None or migration.blocks_saves(state):
        return None  # checked again after that
    lead = _RECORD_FACTOR * state.saves.last_seconds + _MARGIN_SECONDS
    return min(_ends_at(server) for server in leaving) - lead


def _leaving(state: JobState) -> list[Member]:
    """Servers with notice that own rows of the running training."""
    if state.phase is not Phase.TRAINING:
        return []
    return [server for server in state.owners() if server.has_notice and state.time < _given_up_at(state, server)]


def _ends_at(server: Member) -> float:
    assert server.ends_at is not None
    return server.ends_at


def _given_up_at(state: JobState, server: Member) -> float:
    # The end of a process is noticed when its heartbeats have been missing for a while, at most for a lease.
    return _ends_at(server) + state.plan.lease_seconds
