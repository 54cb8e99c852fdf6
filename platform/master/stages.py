"""Deadlines of the stages of saves and restores, whom a stage waits for, and what becomes of saves that are given up.

Pure. A save that was given up while servers wrote is *abandoned*: its folder is deleted once nobody writes into it any
more. One whose commit has not ended in time is *unknown*: it counts when its record is found complete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastrec.platform.master import leasing
from elastrec.platform.master.effects import DiscardRecord, Effect
from elastrec.platform.master.events import PodReported
from elastrec.platform.master.membership import Member
from elastrec.platform.master.phases import COMMITTING, PAUSING, WRITING, Abandoned, Save
from elastrec.platform.specs.metrics import Phase

if TYPE_CHECKING:
    from elastrec.platform.master.state import JobState

_NEWS_SHARE = 0.05
"""Of a deadline: transfers are journalled at most so often."""
_SHOWN_SECONDS = 1.0
"""Shorter waits are normal and not worth a line in the status."""
_SHOWN_PODS = 3


def is_restoring(state: JobState) -> bool:
    """Whether work waits for servers to restore."""
    return state.phases.save is None and state.phase in (Phase.STARTING, Phase.RECOVERING)


def awaited_servers(state: JobState) -> list[Member]:
    """Servers that have not written their part, or not restored, although the job waits for that."""
    save = state.phases.save
    if save is not None:
        waits = save.stage == WRITING
        return [server for server in state.membership.servers() if waits and server.name not in save.parts]
    if not is_restoring(state):
        return []
    order_id = state.phases.restore.order_id
    return [s for s in state.membership.servers() if s.is_registered and s.restored_order_id != order_id]


def transfer_timeout(state: JobState) -> float:
    """Seconds that an awaited server may pass without writing or reading anything."""
    is_saving = state.phases.save is not None
    return state.plan.save_timeout_seconds if is_saving else state.plan.restore_timeout_seconds


def deadline(state: JobState) -> float | None:
    """When the stage in which a save or a restore is will be late; None: neither is under way."""
    save = state.phases.save
    if save is not None and save.stage == PAUSING:
        return save.since + state.plan.lease_seconds
    if save is not None and save.stage == COMMITTING:
        return save.since + state.plan.save_timeout_seconds
    timeout = transfer_timeout(state)
    return min((server.active + timeout for server in awaited_servers(state)), default=None)


def late_servers(state: JobState) -> list[Member]:
    """Awaited servers whose time is over."""
    timeout = transfer_timeout(state)
    return [server for server in awaited_servers(state) if server.active + timeout <= state.time]


def begin(state: JobState) -> None:
    """A stage begins, or begins anew: everybody has the whole time for it."""
    if state.phases.save is not None:
        state.phases.save.since = state.time
    for server in state.membership.servers():
        server.active = state.time


def is_news(state: JobState, member: Member, report: PodReported) -> bool:
    """Whether a report shows that a server gets on, or that it does not write into an abandoned folder any more."""
    if any(_has_left(entry, report, order_id) for order_id, entry in state.phases.abandoned.items()):
        return True
    if report.transfers <= member.transfers or member not in awaited_servers(state):
        return False
    return report.time - member.active >= _NEWS_SHARE * transfer_timeout(state)


def take_report(state: JobState, member: Member, report: PodReported) -> None:
    """Notes the signs of `is_news`."""
    if report.transfers > member.transfers:
        member.transfers, member.active = report.transfers, state.time
    for order_id, entry in state.phases.abandoned.items():
        if _has_left(entry, report, order_id):
            del entry.writers[report.pod]


def _has_left(entry: Abandoned, report: PodReported, order_id: str) -> bool:
    # A server that has not reached that version may still begin to write.
    return (
        entry.writers.get(report.pod) == report.incarnation
        and report.writing != order_id
        and report.reached_version >= entry.version
    )


def abandon(state: JobState, save: Save, *, is_committing: bool = False, lost: Member | None = None) -> None:
    """Gives a save's folder up, in the directive's current version; `discard_abandoned` deletes it.

    Args:
        is_committing: its manifest may still be written.
        lost: a server that has no place any more and may still write.
    """
    writers = {}
    if save.stage == WRITING:
        servers = [*state.membership.servers(), *([lost] if lost else [])]
        writers = {server.name: server.incarnation for server in servers if server.name not in save.parts}
    if save.stage != PAUSING:
        state.phases.abandoned[save.order_id] = Abandoned(
            uri=save.uri,
            version=state.phases.version,
            writers=writers,
            is_committing=is_committing,
            may_be_complete=is_committing,
        )


def discard_abandoned(state: JobState, effects: list[Effect]) -> None:
    """Deletes abandoned folders into which nobody writes any more."""
    membership, abandoned = state.membership, state.phases.abandoned
    for order_id, entry in list(abandoned.items()):
        for pod, incarnation in list(entry.writers.items()):
            member = membership.members.get(pod)
            has_ended = member is None and pod not in membership.leaving
            if has_ended or (member is not None and member.incarnation != incarnation):
                del entry.writers[pod]
        if not entry.writers and not entry.is_committing:
            del abandoned[order_id]
            effects.append(DiscardRecord(uri=entry.uri, may_be_complete=entry.may_be_complete))


def records_in_progress(state: JobState) -> list[str]:
    """URIs of records that are being written, or whose end is not known."""
    phases = state.phases
    saves = [*phases.unknown, *([phases.save] if phases.save else [])]
    return [*(save.uri for save in saves), *(entry.uri for entry in phases.abandoned.values())]


def waiting(state: JobState, time: float) -> str:
    """What the job waits for now in a stage of a save or a restore, and for how long; empty: for nothing."""
    save = state.phases.save
    if save is not None and save.stage == COMMITTING:
        seconds = time - save.since
        return f"committing {save.order_id} for {seconds:.0f} s" if seconds >= _SHOWN_SECONDS else ""
    if save is not None and save.stage == PAUSING:
        return _waiting(f"pausing for {save.order_id}", leasing.moving_workers(state), time - save.since)
    servers = awaited_servers(state)
    # Since a server last wrote or read something: by that it is judged.
    seconds = max((time - server.active for server in servers), default=0.0)
    if save is not None:
        return _waiting(f"writing {save.order_id}", servers, seconds)
    if servers:
        return _waiting(f"restoring {state.phases.restore.uri or 'from nothing'}", servers, seconds)
    for late in state.phases.unknown:
        return f"{late.order_id} is unknown: its record has not been committed for {time - late.since:.0f} s"
    return ""


def _waiting(what: str, members: list[Member], seconds: float) -> str:
    if not members or seconds < _SHOWN_SECONDS:
        return ""
    names = ", ".join(member.name for member in members[:_SHOWN_PODS])
    more = f" and {len(members) - _SHOWN_PODS} more" if len(members) > _SHOWN_PODS else ""
    return f"{what}: waiting for {names}{more} for {seconds:.0f} s"
