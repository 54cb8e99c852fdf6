"""Deadlines of the stages of saves and restores, and the pods that a stage waits for. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastrec.platform.master.machine import leasing, migration
from elastrec.platform.master.machine.effects import Effect
from elastrec.platform.master.machine.events import PodReported
from elastrec.platform.master.machine.saves import COMMITTING, PAUSING, WRITING, Save
from elastrec.platform.master.pods import succession
from elastrec.platform.master.pods.membership import Member
from elastrec.platform.specs.metrics import Phase, Role
from elastrec.platform.specs.text import plain_words
from elastrec.platform.specs.text.some import some

if TYPE_CHECKING:
    from elastrec.platform.master.machine.state import JobState

_NEWS_SHARE = 0.05
"""Share of a deadline: the progress of transfers is journalled at most once in this time."""
_SHOWN_SECONDS = 1.0
"""Shorter waits are normal and not shown in the status."""


def is_restoring(state: JobState) -> bool:
    """Whether training or evaluation waits for servers to restore."""
    return state.phase in (Phase.STARTING, Phase.RECOVERING)


def writers(state: JobState, save: Save) -> list[Member]:
    """Servers whose parts are missing in a save that waits for them."""
    if save.stage != WRITING:
        return []
    return [server for server in state.owners() if server.name not in save.parts]


def unfrozen(state: JobState, save: Save) -> list[Member]:
    """Servers that have not frozen their cut of a save yet, so that workers must not push to them."""
    return [server for server in writers(state, save) if server.name not in save.frozen]


def restorers(state: JobState) -> list[Member]:
    """Servers that have not restored yet, for which the job waits."""
    if not is_restoring(state):
        return []
    awaited = [state.membership.members[pod] for pod in state.recovery.awaited()]
    return [server for server in awaited if server.is_registered]


def deadline(state: JobState) -> float | None:
    """The earliest deadline of a stage of a save or a restore; None if there is none."""
    deadlines = [late for save in state.saves.under_way.values() if (late := save_deadline(state, save)) is not None]
    deadlines += [_restored_until(state, server) for server in restorers(state)]
    return min(deadlines, default=None)


def save_deadline(state: JobState, save: Save) -> float | None:
    """The deadline of the stage of a save; None if it waits for no pod."""
    if save.stage == PAUSING:
        return save.since + state.plan.lease_seconds
    if save.stage == COMMITTING:
        return save.since + state.plan.save_timeout_seconds
    return min((_written_until(state, save, server) for server in writers(state, save)), default=None)


def late_writers(state: JobState, save: Save) -> list[Member]:
    """Servers that have written nothing for too long."""
    return [server for server in writers(state, save) if _written_until(state, save, server) <= state.time]


def late_restorers(state: JobState) -> list[Member]:
    """Servers that have read nothing for too long."""
    return [server for server in restorers(state) if _restored_until(state, server) <= state.time]


def _written_until(state: JobState, save: Save, server: Member) -> float:
    return max(server.active, save.since) + state.plan.save_timeout_seconds


def _restored_until(state: JobState, server: Member) -> float:
    return max(server.active, state.recovery.servers[server.name].since) + state.plan.restore_timeout_seconds


def begin_anew(state: JobState) -> None:
    """Restarts the time of all current stages."""
    state.saves.keep_time(state.time)
    state.recovery.keep_time(state.time)


def changes_state(state: JobState, member: Member, report: PodReported) -> bool:
    """Whether a report shows progress of a server, or that it does not write into an abandoned folder any more."""
    for order_id, entry in state.saves.abandoned.items():
        if entry.is_left_by(report.pod, report.incarnation, report.writing, report.reached_version, order_id):
            return True
    if report.transfers <= member.transfers:
        return False
    left = [
        late - report.time
        for save in state.saves.under_way.values()
        if member in writers(state, save)
        for late in (_written_until(state, save, member),)
    ]
    timeout = state.plan.save_timeout_seconds
    if member in restorers(state):
        left, timeout = [_restored_until(state, member) - report.time], state.plan.restore_timeout_seconds
    return bool(left) and min(left) <= (1 - _NEWS_SHARE) * timeout


def take_report(state: JobState, member: Member, report: PodReported) -> None:
    """Notes what `changes_state` looks for."""
    if report.transfers > member.transfers:
        member.transfers, member.active = report.transfers, state.time
    for order_id, entry in state.saves.abandoned.items():
        if entry.is_left_by(report.pod, report.incarnation, report.writing, report.reached_version, order_id):
            del entry.writers[report.pod]


def abandon(state: JobState, save: Save, *, is_committing: bool = False) -> None:
    """Gives a save's folder up; the next directive does not contain the save any more."""
    # A server may still write into the folder of a save that was just given up.
    members = [*state.membership.leaving.values(), *state.membership.servers()]
    processes = {m.name: m.incarnation for m in members if m.role is Role.PARAMETER_SERVER and m.is_registered}
    state.saves.abandon(save, processes, state.phases.next_version, is_committing=is_committing)


def discard_abandoned(state: JobState, effects: list[Effect]) -> None:
    """Deletes abandoned folders into which no process writes any more."""
    membership = state.membership
    if not state.saves.abandoned:
        return

    def runs(pod: str, incarnation: str) -> bool:
        member = membership.members.get(pod)
        return pod in membership.leaving if member is None else member.incarnation == incarnation

    effects.extend(state.saves.discard(runs))


def waiting(state: JobState, time: float) -> str:
    """What the job waits for in a stage of a save or a restore, and for how long; empty if it does not wait."""
    for save in state.saves.under_way.values():
        if words := _waiting_for_save(state, save, time):
            return words
    servers = restorers(state)
    if servers:
        # Since a server last read something, which determines its deadline.
        seconds = time - min(max(s.active, state.recovery.servers[s.name].since) for s in servers)
        return _waiting(f"restoring {state.recovery.uri or 'from nothing'}", servers, seconds)
    if words := "; ".join(filter(None, (migration.waiting(state, time), succession.waiting(state)))):
        return words
    for late in state.saves.unknown:
        what = f"it is unknown whether {plain_words.numbered(late.order_id)} is complete"
        return f"{what}: its record has not been committed for {time - late.since:.0f} s"
    return ""


def _waiting_for_save(state: JobState, save: Save, time: float) -> str:
    name = plain_words.numbered(save.order_id)
    if save.stage == COMMITTING:
        seconds = time - save.since
        return f"committing {name} for {seconds:.0f} s" if seconds >= _SHOWN_SECONDS else ""
    if save.stage == PAUSING:
        return _waiting(f"pausing for {name}", leasing.moving_workers(state), time - save.since)
    servers = writers(state, save)
    seconds = max((time - max(server.active, save.since) for server in servers), default=0.0)
    return _waiting(f"writing {name}", servers, seconds)


def _waiting(what: str, members: list[Member], seconds: float) -> str:
    if not members or seconds < _SHOWN_SECONDS:
        return ""
    return f"{what}: waiting for {some([member.name for member in members])} for {seconds:.0f} s"
