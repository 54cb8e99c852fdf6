"""Changes of a running job's pods without progress: when they count as stalled, and what is undone. Pure.

Until the hand-over of rows, a change only delays later changes. If it makes no progress for
`spec.faults.migration_timeout`, it is undone as if its requester had cancelled it; if a server reports that it can
never copy its buckets, or is killed for memory meanwhile (`losses`), it is undone immediately. After the hand-over has
begun, the change continues, because some of the rows are elsewhere, and only a rollback, which has its own limit
(`migration.ticked`), can undo it.

Progress is the beginning of a stage, a pod that becomes ready, or rows that were not copied before
(`CopyProgress.advance`).

Requests are undone, but not the creation of pods on which the job depends. The successor of a lost worker or server
waits for room without a limit, because nothing works in its place. Other open requests are undone, which may free room.
The successors of a slow worker, and of a server with notice of its end, belong to requests: their predecessors still
work, and stay. Once the server with notice has ended, its successor owns its rows, and the job depends on it.

Only time on the job's clock in which a master received reports counts. After a restart of the master, a change only
gets the time that pods need to report their progress. During a save, servers cannot copy buckets that the save has not
copied yet, so this time does not count either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastrec.platform.master.machine import migration
from elastrec.platform.master.machine.effects import Effect
from elastrec.platform.master.machine.events import PodReported, Ticked
from elastrec.platform.master.pods import requests, shape, succession
from elastrec.platform.master.pods.membership import Member
from elastrec.platform.master.pods.requests import RequestedShape, open_requests
from elastrec.platform.specs.metrics import Role
from elastrec.platform.specs.shape import PlacesChange
from elastrec.platform.specs.text.quantities import format_bytes
from elastrec.platform.specs.text.some import some
from elastrec.platform.transport.messages.job import CopyProgress
from elastrec.platform.transport.messages.observer import ShapeOutcome

if TYPE_CHECKING:
    from elastrec.platform.master.machine.migration import Migration
    from elastrec.platform.master.machine.state import JobState

_NEWS_SHARE = 0.05
"""Share of the limit: progress is journalled at most once in this time, and at least this time is left after a
restart."""


def deadline(state: JobState) -> float | None:
    """The time at which the next change counts as stalled; None if no change can stall."""
    limit = state.plan.migration_timeout_seconds
    late = [since + limit for request in open_requests(state) if (since := _waits_since(state, request)) is not None]
    if state.migration is not None and _can_stall(state.migration):
        late.append(_progressed(state.migration) + limit)
    return min(late, default=None)


def ticked(state: JobState, event: Ticked, effects: list[Effect]) -> None:
    """Undoes changes that made no progress for too long."""
    limit, under_way = state.plan.migration_timeout_seconds, state.migration
    late = {
        request.request_id
        for request in open_requests(state)
        if (since := _waits_since(state, request)) is not None and since + limit <= state.time
    }
    no_further = f"for {limit:g} s (spec.faults.migration_timeout)"
    if under_way is not None and _can_stall(under_way) and _progressed(under_way) + limit <= state.time:
        if under_way.stage == migration.STARTING:
            starting = [server for server in migration.targets(state) if not server.is_registered]
            reason = f"no new server got ready {no_further}{_not_started(starting, event.waiting)}"
            undo(state, under_way, ShapeOutcome.TIMED_OUT, reason, effects)
        else:
            reason = f"no new rows were copied {no_further}{_not_copied(under_way, event.problems)}"
            undo(state, under_way, ShapeOutcome.FAILED, reason, effects)
    for request in open_requests(state):
        if request.request_id in late:
            waiting = _not_started(_waiting(state, request), event.waiting)
            reason = f"no pod got ready {no_further}{waiting}"
            state.given_up = f"{requests.in_words(request.change, request.moves)}: {reason}"
            shape.give_up(state, request, ShapeOutcome.TIMED_OUT, reason, effects)


def is_news(state: JobState, report: PodReported) -> bool:
    """Whether a report must be journalled because of the progress of a server's copying."""
    copying = _of_migration(state, report)
    if copying is None or state.migration is None:
        return False
    if copying.is_permanent:
        return True
    idle_seconds = report.time - _progressed(state.migration)
    is_further = copying.advance > state.migration.advances.get(report.pod, 0)
    return is_further and idle_seconds >= _NEWS_SHARE * state.plan.migration_timeout_seconds


def take_report(state: JobState, report: PodReported, effects: list[Effect]) -> None:
    """Records the progress of a server's copying; a change that can never be copied is undone."""
    copying, under_way = _of_migration(state, report), state.migration
    if copying is None or under_way is None:
        return
    if copying.advance > under_way.advances.get(report.pod, 0):
        under_way.advances[report.pod], under_way.progressed = copying.advance, state.time
    if copying.is_permanent:
        reason = f"{report.pod} cannot copy its buckets: {copying.problem}"
        undo(state, under_way, ShapeOutcome.FAILED, reason, effects)


def registered(state: JobState, member: Member) -> None:
    """A pod became ready for the first time."""
    for request in open_requests(state):
        if member.role in request.roles:
            request.progressed = state.time
    under_way = state.migration
    if under_way is None:
        return
    served = {role for request in _requests_behind(state, under_way) for role in request.roles}
    if member.role in served | {Role.PARAMETER_SERVER}:
        under_way.progressed = state.time


def pass_time(state: JobState, seconds: float) -> None:
    """Time in which a save kept servers from copying does not count."""
    under_way = state.migration
    if under_way is not None and under_way.stage == migration.COPYING and state.saves.under_way:
        under_way.progressed = min(state.time, _progressed(under_way) + seconds)


def restarted(state: JobState, suspended_seconds: float) -> None:
    """No reports were received for a while: this time does not count, and all pods have time to report their
    progress."""
    least = state.time - (1 - _NEWS_SHARE) * state.plan.migration_timeout_seconds
    for request in open_requests(state):
        if (since := _waits_since(state, request)) is not None:
            request.progressed = min(state.time, max(since + suspended_seconds, least))
    if state.migration is not None:
        since = _progressed(state.migration)
        state.migration.progressed = min(state.time, max(since + suspended_seconds, least))


def undo(state: JobState, under_way: Migration, outcome: ShapeOutcome, reason: str, effects: list[Effect]) -> None:
    """Undoes the change: owners stay as they are, its requests are given up, and later requests follow.

    Servers that were wanted because of a request that has ended, for example one that was superseded by a request that
    is given up here, are not wanted any more.
    """
    behind = _requests_behind(state, under_way)
    if under_way.moves:
        state.relief_after = state.time + state.plan.migration_timeout_seconds
    migration.cancel(state, reason, effects)
    for request in behind:
        shape.give_up(state, request, outcome, reason, effects)
    asking = {request.request_id: request for request in open_requests(state)}
    for server in state.owners():
        if server.outgoing and server.outgoing_for not in asking:
            succession.call_off(state, server)
    names_count = any(_names_count(request) for request in asking.values())
    if not (under_way.moves or under_way.count or names_count):
        owned = PlacesChange(count=len(state.ownership.servers))  # one of them may just have been lost
        shape.note(state, state.wanted_shape.changed({Role.PARAMETER_SERVER: owned}), "")
    migration.dismiss_spare(state, effects)
    goals = [requests.in_words(request.change, request.moves) for request in behind] or ["other parameter servers"]
    goal = f"{len(under_way.moves)} hot buckets elsewhere" if under_way.moves else "; ".join(goals)
    state.given_up = f"{goal}: {reason}"


def words(state: JobState, time: float) -> str:
    """The time for which a change of servers has made no progress; empty if it makes progress or that is unknown."""
    limit, under_way = state.plan.migration_timeout_seconds, state.migration
    if under_way is None or not _can_stall(under_way):
        return ""
    seconds = time - _progressed(under_way)
    # Reports after the last journalled one are not known here.
    return f"no progress for {seconds:.0f} s of {limit:g} s" if seconds > 2 * _NEWS_SHARE * limit else ""


def _can_stall(under_way: Migration) -> bool:
    """Whether it is before its cut-over and does not wait for a save."""
    if under_way.stage == migration.COPYING:
        return not set(under_way.sources) <= set(under_way.copied)
    return under_way.stage != migration.HANDING_OVER


def _progressed(under_way: Migration) -> float:
    return max(under_way.since, under_way.progressed)


def _waits_since(state: JobState, request: RequestedShape) -> float | None:
    """Since when a request waits for pods that are not ready; None if it does not wait for any."""
    waiting = _waiting(state, request)
    if not waiting or shape.is_cut_over(state, request):
        return None
    return max(request.asked, request.progressed, min(member.created for member in waiting))


def _waiting(state: JobState, request: RequestedShape) -> list[Member]:
    """Pods of the request, or pods that the job needs, that have not started; servers only if there is no migration."""
    return [
        member
        for member in state.membership.members.values()
        if member.role in request.roles
        and not (member.is_registered or member.retiring)
        and member.made_for in ("", request.request_id)
        and (member.role is Role.WORKER or state.migration is None)
    ]


def _requests_behind(state: JobState, under_way: Migration) -> list[RequestedShape]:
    """The requests that a migration fulfils; others wait for the next one (`migration`)."""
    if under_way.moves:
        return []
    wanted_by = {server.outgoing_for for server in state.owners() if server.outgoing}
    return [
        request
        for request in open_requests(state)
        if request.request_id in wanted_by or (not under_way.count and _names_count(request))
    ]


def _names_count(request: RequestedShape) -> bool:
    return request.change.get(Role.PARAMETER_SERVER, PlacesChange()).count is not None


def _of_migration(state: JobState, report: PodReported) -> CopyProgress | None:
    """A server's progress with its present copying order."""
    copying, under_way = report.copying, state.migration
    if copying is None or under_way is None or under_way.stage != migration.COPYING:
        return None
    if report.pod not in under_way.sources:
        return None
    return copying if copying.order_id == under_way.order_id else None


def _not_started(members: list[Member], waiting: dict[str, str]) -> str:
    """Pods with the requested size, and their state in the cluster."""
    named = [
        f"{member.name} ({member.asked.cores:g} cores, {format_bytes(member.asked.memory_bytes)})"
        + (f": {waiting[member.name]}" if waiting.get(member.name) else "")
        for member in members
    ]
    return f"; not started: {some(named)}" if named else ""


def _not_copied(under_way: Migration, problems: dict[str, str]) -> str:
    """Servers that have rows to copy, and their problems."""
    lacking = sorted(set(under_way.sources) - set(under_way.copied))
    return f" by {some([f'{name}: {problems[name]}' if problems.get(name) else name for name in lacking])}"
