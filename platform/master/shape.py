"""Changes of a running job's shape: more or fewer pods, more or fewer cores. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from elastrec.platform.master import losses
from elastrec.platform.master.effects import Decided, Effect
from elastrec.platform.master.events import PodResized, ResizeRefused, ShapeAsked, ShapeTakenBack
from elastrec.platform.master.membership import Member
from elastrec.platform.specs.metrics import Phase, Role
from elastrec.platform.transport.job_messages import ShapeOutcome, ShapeRequest

if TYPE_CHECKING:
    from elastrec.platform.master.state import JobState

TIMEOUT_SECONDS = 3600.0
"""A request that the job has not reached by then, as there is no room or no record, is given up."""


class RequestedShape(msgspec.Struct, kw_only=True):
    """The last request for a shape.

    Attributes:
        asked: when; `wanted`: what, by field of ShapeAsked; `before`: the same fields as they were wanted before.
    """

    request_id: str
    asked: float
    wanted: dict[str, float]
    before: dict[str, float]
    outcome: ShapeOutcome = ShapeOutcome.OPEN
    reason: str = ""

    def told(self) -> ShapeRequest:
        """For observers."""
        return ShapeRequest(
            request_id=self.request_id, wanted=_words(self.wanted), outcome=self.outcome, reason=self.reason
        )


def shape_asked(state: JobState, event: ShapeAsked, effects: list[Effect]) -> None:
    if state.phase.is_final:
        return
    wanted = {
        name: float(value)
        for name, value in msgspec.structs.asdict(event).items()
        if name != "time" and value is not None
    }
    state.phases.orders += 1
    request_id = f"shape-{state.phases.orders}"
    _end(state, ShapeOutcome.SUPERSEDED, f"by {request_id}", effects)
    before = _wanted_now(state)
    state.requested_shape = RequestedShape(
        request_id=request_id, asked=state.time, wanted=wanted, before={name: before[name] for name in wanted}
    )
    effects.append(Decided(decision="shape_asked", inputs={"request": request_id, "wanted": _words(wanted)}))
    _want(state, wanted, effects)


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
    _want(state, request.before, effects)


def _wanted_now(state: JobState) -> dict[str, float]:
    found = {"workers": float(len(_staying_workers(state))), "parameter_servers": float(state.wanted_servers)}
    for name, members, places in (
        ("worker_cores", _staying_workers(state), state.plan.workers),
        ("parameter_server_cores", state.membership.servers(), state.plan.servers),
    ):
        found[name] = members[0].wanted_cores if members else places.cores
    return found


def _has_wanted(state: JobState) -> bool:
    """Whether every pod that is wanted works, and no other one is there."""
    members = state.membership.members.values()
    return (
        all(member.is_registered and not member.retiring and member.asked_cores is None for member in members)
        and len(state.membership.servers()) == state.wanted_servers
        and state.phase not in (Phase.PENDING, Phase.STARTING, Phase.RECOVERING)
    )


def _want(state: JobState, wanted: dict[str, float], effects: list[Effect]) -> None:
    of_roles = (
        (Role.WORKER, wanted.get("worker_cores")),
        (Role.PARAMETER_SERVER, wanted.get("parameter_server_cores")),
    )
    for role, cores in of_roles:
        for member in state.membership.members.values():
            if cores is not None and member.role is role:
                state.membership.ask_for(member, cores)
    if (workers := wanted.get("workers")) is not None:
        _set_workers(state, int(workers), wanted.get("worker_cores"), effects)
    servers = wanted.get("parameter_servers")
    if servers is not None and servers != state.wanted_servers:
        # Rows change their owners only while everybody stands still on a complete record.
        state.wanted_servers = int(servers)
        if servers != len(state.membership.servers()):
            state.phases.save_asked = True


def _words(wanted: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in wanted.items())


def _staying_workers(state: JobState) -> list[Member]:
    """In the order in which they stay: those that work first."""
    return sorted(
        (w for w in state.membership.workers() if not w.retiring), key=lambda w: (not w.is_registered, w.index)
    )


def pod_resized(state: JobState, event: PodResized, effects: list[Effect]) -> None:
    """The size counts from now on: for the cost, and for the configuration that a speed was measured in."""
    member = state.membership.members.get(event.pod)
    if member is None or member.uid != event.uid:
        return
    inputs = {"pod": event.pod, "before_cores": member.cores, "cores": event.cores, "memory_bytes": event.memory_bytes}
    state.membership.granted(member, event.cores, event.memory_bytes, state.time)
    effects.append(Decided(decision="pod_resized", inputs=inputs))


def resize_refused(state: JobState, event: ResizeRefused, effects: list[Effect]) -> None:
    """It keeps what it has; what was asked for is forgotten, unless it is something else by now."""
    member = state.membership.members.get(event.pod)
    if member is None or member.uid != event.uid or member.asked_cores != event.cores:
        return
    state.membership.ask_for(member, member.cores)
    member.reason = f"{event.cores:g} cores were refused: {event.reason}"
    inputs = {"pod": event.pod, "cores": member.cores, "asked_cores": event.cores, "reason": event.reason}
    effects.append(Decided(decision="resize_refused", inputs=inputs))
    cores_of = {Role.WORKER: "worker_cores", Role.PARAMETER_SERVER: "parameter_server_cores"}[member.role]
    if state.requested_shape is not None and state.requested_shape.wanted.get(cores_of) == event.cores:
        _end(state, ShapeOutcome.REFUSED, f"{event.pod}: {event.reason}", effects)


def _set_workers(state: JobState, wanted: int, cores: float | None, effects: list[Effect]) -> None:
    staying = _staying_workers(state)
    for worker in staying[wanted:]:
        worker.retiring = True
        if not worker.is_registered:
            # Nobody is there yet who could leave by itself.
            losses.dismiss(state, worker, effects, delete=True)
    taken = {worker.index for worker in state.membership.workers()}
    free = (index for index in range(len(taken) + wanted) if index not in taken)
    places = state.plan.workers
    size = cores or (staying[0].wanted_cores if staying else places.cores)
    for _ in range(wanted - len(staying)):
        state.membership.add(Role.WORKER, next(free), size, places.memory_bytes, state.time)
    state.phases.version += 1
