"""Changes of a running job's shape: more or fewer pods, more or fewer cores. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from elastrec.platform.master.machine import migration
from elastrec.platform.master.machine.effects import Decided, Effect
from elastrec.platform.master.machine.events import PodRefused, PodResized, ResizeRefused, ShapeAsked, ShapeTakenBack
from elastrec.platform.master.pods import losses
from elastrec.platform.master.pods.membership import Member, MemberStage
from elastrec.platform.specs.metrics import Phase, Role
from elastrec.platform.specs.shape import Places, PlacesChange, PodSize, Shape, ShapeChange, field_name, named_fields
from elastrec.platform.transport.messages.observer import ShapeOutcome, ShapeRequest

if TYPE_CHECKING:
    from elastrec.platform.master.machine.state import JobState

MOST_WORKERS = 10_000
TIMEOUT_SECONDS = 3600.0
"""A request that the job has not reached by then, as there is no room or no record, is given up."""
_KEPT_CHANGES = 8


class RequestedShape(msgspec.Struct, kw_only=True):
    """The last request for a shape.

    Attributes:
        asked: when; `change`: what; `before`: the shape that was wanted before.
    """

    request_id: str
    asked: float
    change: dict[Role, PlacesChange]
    before: Shape
    outcome: ShapeOutcome = ShapeOutcome.OPEN
    reason: str = ""
    asked_by: str = ""

    def told(self) -> ShapeRequest:
        """For observers."""
        return ShapeRequest(
            request_id=self.request_id, wanted=_words(self.change), outcome=self.outcome, reason=self.reason
        )


class WantedChange(msgspec.Struct, frozen=True, kw_only=True):
    """One change of the wanted shape; `time` is when, on the job's clock."""

    time: float
    before: Shape
    after: Shape
    asked_by: str = ""


def shape_asked(state: JobState, event: ShapeAsked, effects: list[Effect]) -> None:
    if state.phase.is_final:
        return
    if event.expected_version not in (None, state.shape_version):
        inputs = {
            "wanted": _words(event.change), "expected_version": event.expected_version,
            "version": state.shape_version, "asked_by": event.asked_by,
        }  # fmt: skip
        effects.append(Decided(decision="shape_refused", inputs=inputs))
        return
    request_id = f"shape-{state.phases.next_order()}"
    _end(state, ShapeOutcome.SUPERSEDED, f"by {request_id}", effects)
    change, before = event.change, state.wanted_shape
    state.requested_shape = RequestedShape(
        request_id=request_id, asked=state.time, change=change, before=before, asked_by=event.asked_by
    )
    inputs = {"request": request_id, "wanted": _words(change), "asked_by": event.asked_by}
    effects.append(Decided(decision="shape_asked", inputs=inputs))
    _want(state, before.changed(change), change, effects)


def shape_taken_back(state: JobState, event: ShapeTakenBack, effects: list[Effect]) -> None:
    if state.requested_shape is not None and state.requested_shape.request_id == event.request_id:
        _give_up(state, ShapeOutcome.TAKEN_BACK, "", effects)


def step(state: JobState, effects: list[Effect]) -> None:
    """Ends the request once the job has the shape, or cannot have it any more."""
    request = state.requested_shape
    if request is None or request.outcome is not ShapeOutcome.OPEN:
        return
    if state.phase.is_final:
        _end(state, ShapeOutcome.SUPERSEDED, f"the job is {state.phase}", effects)
    elif _has_wanted(state):
        _end(state, ShapeOutcome.DONE, "", effects)
    elif request.asked + TIMEOUT_SECONDS <= state.time:
        _give_up(state, ShapeOutcome.TIMED_OUT, f"it was not reached in {TIMEOUT_SECONDS:g} s", effects)


def deadline(state: JobState) -> float | None:
    """When an open request is given up."""
    request = state.requested_shape
    return request.asked + TIMEOUT_SECONDS if request is not None and request.outcome is ShapeOutcome.OPEN else None


def _end(state: JobState, outcome: ShapeOutcome, reason: str, effects: list[Effect]) -> None:
    request = state.requested_shape
    if request is None or request.outcome is not ShapeOutcome.OPEN:
        return
    request.outcome, request.reason = outcome, reason
    inputs = {"request": request.request_id, "outcome": str(outcome), "reason": reason}
    effects.append(Decided(decision="shape_ended", inputs=inputs))


def _give_up(state: JobState, outcome: ShapeOutcome, reason: str, effects: list[Effect]) -> None:
    request = state.requested_shape
    if request is None or request.outcome is not ShapeOutcome.OPEN:
        return
    _end(state, outcome, reason, effects)
    _want(state, request.before, request.change, effects)


def _note(state: JobState, wanted: Shape, asked_by: str) -> None:
    """The one place where the wanted shape changes."""
    before, state.wanted_shape = state.wanted_shape, wanted
    if before == wanted:
        return
    state.shape_version += 1
    changed = WantedChange(time=state.time, before=before, after=wanted, asked_by=asked_by)
    state.shape_changes = [*state.shape_changes, changed][-_KEPT_CHANGES:]


def _has_wanted(state: JobState) -> bool:
    """Whether every pod that is wanted works, and no other one is there."""
    members = state.membership.members.values()
    return (
        all(member.is_registered and not member.retiring and not member.awaits_size for member in members)
        and state.has_wanted_servers
        and state.migration is None
        and state.phase not in (Phase.PENDING, Phase.STARTING, Phase.RECOVERING)
    )


def _want(state: JobState, target: Shape, change: ShapeChange, effects: list[Effect]) -> None:
    """Wants another shape, which differs from the one before in nothing but what the change names."""
    before = state.wanted_shape
    _note(state, target, state.requested_shape.asked_by if state.requested_shape else "")
    for member in state.membership.members.values():
        if member.role in change and change[member.role].cores is not None:
            state.membership.ask_for(member, target[member.role].size.cores)
    workers = change.get(Role.WORKER)
    if workers is not None and workers.count is not None:
        _set_workers(state, target[Role.WORKER], effects)
    servers = target[Role.PARAMETER_SERVER].count
    if (
        servers != before[Role.PARAMETER_SERVER].count
        and not state.has_wanted_servers
        and not migration.is_possible(state)
    ):
        # Rows change their owners while everybody pauses on a complete record.
        state.saves.is_asked = True


def refusal(state: JobState, change: ShapeChange, *, live_only: bool) -> str:
    """Why the running job cannot have another shape; empty when it can.

    Args:
        live_only: as in ChangeShape.
    """
    most = {Role.WORKER: MOST_WORKERS, Role.PARAMETER_SERVER: state.plan.virtual_buckets}
    for role, places in change.items():
        if role not in most:
            return f"change: role {str(role)!r} is not allowed; allowed: {', '.join(most)}"
        if places.count is not None and not 1 <= places.count <= most[role]:
            return f"{field_name(role, 'count')}: {places.count} is not allowed; allowed: 1 to {most[role]}"
        if places.cores is not None and not (math.isfinite(places.cores) and places.cores > 0):
            return f"{field_name(role, 'cores')}: {places.cores} is not allowed; allowed: above 0"
    return next((words for role in change if (words := _not_yet_possible(state, role, change[role], live_only))), "")


def _not_yet_possible(state: JobState, role: Role, change: PlacesChange, live_only: bool) -> str:
    members = [member for member in state.membership.members.values() if member.role is role]
    memory = change.memory_bytes
    if memory is not None and any(member.asked.memory_bytes != memory for member in members):
        name = role.replace("-", " ")
        return (
            f"{memory / 2**30:.3g} GiB per {name} are not yet possible live: the job would have to stop; "
            f"give spec.resources.{role.replace('-', '_')}.memory in its next job file"
        )
    if not live_only:
        return ""
    is_other_count = change.count not in (None, state.wanted_shape[role].count)
    if role is Role.PARAMETER_SERVER and is_other_count and not migration.is_possible(state):
        why = "with spec.training.consistency.mode bsp" if state.plan.is_synchronous else f"while it is {state.phase}"
        return (
            f"{why} another number of parameter servers is not possible live: the job would have to save, "
            "restart its servers and restore; ask without live_only to have that done"
        )
    if change.cores is not None and any(member.asked.cores != change.cores for member in members):
        name = field_name(role, "cores")
        return f"another size of pods ({name}: {change.cores:g}) is not yet possible live; ask without live_only"
    return ""


def _words(change: ShapeChange) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in named_fields(change).items())


def _staying_workers(state: JobState) -> list[Member]:
    """In the order in which they stay: those that work first."""
    return sorted(
        (w for w in state.membership.workers() if not w.retiring), key=lambda w: (not w.is_registered, w.index)
    )


def pod_resized(state: JobState, event: PodResized, effects: list[Effect]) -> None:
    """From now on the size is part of the configuration in which speed is measured."""
    member = state.membership.members.get(event.pod)
    if member is None or member.uid != event.uid:
        return
    inputs = {"pod": event.pod, "before_cores": member.cores, "cores": event.cores, "memory_bytes": event.memory_bytes}
    state.membership.granted(member, PodSize(event.cores, event.memory_bytes), event.outcome_of)
    effects.append(Decided(decision="pod_resized", inputs=inputs))


def resize_refused(state: JobState, event: ResizeRefused, effects: list[Effect]) -> None:
    """It keeps what it has; what was asked for is forgotten, unless it is something else by now."""
    member = state.membership.members.get(event.pod)
    if member is None or member.uid != event.uid or member.asked.cores != event.cores:
        return
    state.membership.refused(member)
    member.reason = f"{event.cores:g} cores were refused: {event.reason}"
    inputs = {"pod": event.pod, "cores": member.cores, "asked_cores": event.cores, "reason": event.reason}
    effects.append(Decided(decision="resize_refused", inputs=inputs))
    refused = PlacesChange(cores=event.cores)
    if state.wanted_shape[member.role].changed(refused) == state.wanted_shape[member.role]:
        # No later pod is made with what the cluster will not give.
        _note(state, state.wanted_shape.changed({member.role: PlacesChange(cores=member.cores)}), "")
    request = state.requested_shape
    if request is not None and (asked := request.change.get(member.role)) is not None and asked.cores == event.cores:
        _end(state, ShapeOutcome.REFUSED, f"{event.pod}: {event.reason}", effects)


def creation_refused(state: JobState, event: PodRefused, effects: list[Effect]) -> bool:
    """Whether the pod was wanted by nothing but an open request, which this ends: the job keeps the pods it had."""
    request = state.requested_shape
    if request is None or request.outcome is not ShapeOutcome.OPEN:
        return False
    surplus = _staying_workers(state)[request.before[Role.WORKER].count :]
    surplus += [server for server in state.membership.servers() if server.name not in state.ownership.servers]
    if all(member.name != event.pod or member.is_registered for member in surplus):
        return False
    _give_up(state, ShapeOutcome.REFUSED, f"{event.pod}: {event.reason}", effects)
    return True


def _set_workers(state: JobState, wanted: Places, effects: list[Effect]) -> None:
    staying = _staying_workers(state)
    for worker in staying[wanted.count :]:
        state.membership.move(worker, MemberStage.RETIRING)
        if not worker.is_registered:
            # None of them runs yet, so none can leave by itself.
            losses.dismiss(state, worker, effects, delete=True)
    taken = {worker.index for worker in state.membership.workers()}
    free = (index for index in range(len(taken) + wanted.count) if index not in taken)
    for _ in range(wanted.count - len(staying)):
        state.membership.add(Role.WORKER, next(free), wanted.size, state.time)
