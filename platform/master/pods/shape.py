"""Changes of a running job's shape: more or fewer pods, of another size, or on other nodes. Pure.

Pods are first resized in place. If a pod's node has no room, or a server is to have more cores than it has locks for,
another pod takes over (`succession`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from elastrec.platform.master.machine import migration
from elastrec.platform.master.machine.effects import Decided, Effect
from elastrec.platform.master.machine.events import (
    PodRefused,
    PodResized,
    ResizeRefused,
    ShapeAsked,
    ShapeCancelled,
    Ticked,
)
from elastrec.platform.master.pods import orders, requests, succession
from elastrec.platform.master.pods.membership import Member
from elastrec.platform.master.pods.requests import RequestedShape, in_words, names_size, open_requests
from elastrec.platform.specs.metrics import Phase, Role
from elastrec.platform.specs.shape import Places, PlacesChange, PodSize, Shape, ShapeChange
from elastrec.platform.specs.text import plain_words
from elastrec.platform.specs.text.quantities import format_bytes
from elastrec.platform.specs.text.some import some
from elastrec.platform.transport.messages.observer import ShapeOutcome

if TYPE_CHECKING:
    from elastrec.platform.master.machine.state import JobState

IN_PLACE_SECONDS = 60.0
"""The time in which a node may find room for another size of a pod; after that, another pod replaces it."""
_KEPT_CHANGES = 8


class WantedChange(msgspec.Struct, frozen=True, kw_only=True):
    """One change of the wanted shape; `time` is when, on the job's clock."""

    time: float
    before: Shape
    after: Shape
    asked_by: str = ""


def shape_asked(state: JobState, event: ShapeAsked, effects: list[Effect]) -> None:
    if state.phase.is_final or requests.of_plan(state, event.plan_id) is not None:
        return
    words = in_words(event.change, event.moves)
    if event.expected_version not in (None, state.shape_version):
        inputs = {
            "wanted": words, "expected_version": event.expected_version,
            "version": state.shape_version, "asked_by": event.asked_by,
        }  # fmt: skip
        effects.append(Decided(decision="shape_refused", inputs=inputs))
        return
    request = _request(state, event)
    for earlier in open_requests(state):
        if request.is_about_same_as(earlier):
            requests.supersede(state, earlier, request, effects)
    requests.add(state, request)
    state.given_up = ""
    inputs = {"request": request.request_id, "wanted": words, "asked_by": event.asked_by, "reason": event.reason}
    effects.append(Decided(decision="shape_asked", inputs=inputs))
    want(state, state.wanted_shape.changed(event.change), event.change, request.asked_by, effects)
    for move in event.moves:
        if (member := state.membership.members.get(move.pod)) is not None and not member.retiring:
            succession.begin(state, member, f"it is moved ({plain_words.numbered(request.request_id)})", request)


def _request(state: JobState, event: ShapeAsked) -> RequestedShape:
    members = state.membership.members
    moved = [(members[move.pod], move) for move in event.moves if move.pod in members]
    about = {role for role, places in event.change.items() if places != PlacesChange()}
    about |= {member.role for member, _ in moved}
    return RequestedShape(
        request_id=f"shape-{state.phases.next_order()}",
        asked=state.time,
        change=event.change,
        before={role: places.earlier(state.wanted_shape[role]) for role, places in event.change.items()},
        moves=event.moves,
        roles=sorted(about),
        moved_pods=sorted(member.name for member, _ in moved),
        avoided_nodes=sorted({member.node for member, move in moved if move.leaves_node}),
        plan_id=event.plan_id,
        timeout_seconds=event.timeout_seconds,
        asked_by=event.asked_by,
        own_plan=event.own_plan,
    )


def shape_cancelled(state: JobState, event: ShapeCancelled, effects: list[Effect]) -> None:
    request = requests.find(state, event.request_id)
    if request is not None and request.is_open and not is_cut_over(state, request):
        give_up(state, request, ShapeOutcome.CANCELLED, "", effects)
        if event.frees_plan:
            request.plan_id = ""


def is_cut_over(state: JobState, request: RequestedShape) -> bool:
    """Whether the hand-over of buckets for a request has begun, so that it cannot be cancelled or given up any more."""
    return Role.PARAMETER_SERVER in request.roles and migration.blocks_saves(state)


def step(state: JobState, effects: list[Effect]) -> None:
    """Ends the requests that are fulfilled, or cannot be fulfilled any more."""
    if not (opened := open_requests(state)):
        return
    succession.step(state, effects)
    for request in opened:
        if state.phase.is_final:
            # The job never had these sizes.
            note(state, state.wanted_shape.changed(request.before), "")
            requests.end(state, request, ShapeOutcome.SUPERSEDED, f"the job {plain_words.phase(state.phase)}", effects)
        elif _is_reached(state, request):
            requests.end(state, request, ShapeOutcome.DONE, "", effects)


def ticked(state: JobState, event: Ticked, effects: list[Effect]) -> None:
    """Gives up requests whose time is over, and resizes for which nodes have not found room."""
    for member in list(state.membership.members.values()):
        late = _resized_until(member)
        if late is not None and late <= state.time:
            reason = f"its node has not found the room in {IN_PLACE_SECONDS:g} s"
            _not_in_place(state, member, member.asked, reason, effects)
    for request in open_requests(state):
        if request.deadline <= state.time and not is_cut_over(state, request):
            reason = f"it was not reached in {request.timeout_seconds:g} s{_lacking(state, request, event.waiting)}"
            give_up(state, request, ShapeOutcome.TIMED_OUT, reason, effects)


def deadline(state: JobState) -> float | None:
    """The deadline of the next request or resize."""
    late = [request.deadline for request in open_requests(state) if not is_cut_over(state, request)]
    late += [until for member in state.membership.members.values() if (until := _resized_until(member)) is not None]
    return min(late, default=None)


def _resized_until(member: Member) -> float | None:
    """The deadline for changing a pod's size in place; None if there is none."""
    # A pod that has not started waits for room by itself.
    waits = member.awaits_size and member.is_registered and not member.retiring
    return member.size_asked + IN_PLACE_SECONDS if waits else None


def _lacking(state: JobState, request: RequestedShape, waiting: dict[str, str]) -> str:
    """The pods of a request that have not started, and their state in the cluster."""
    members = [m for m in state.membership.members.values() if m.role in request.roles and not m.is_registered]
    named = [f"{m.name}: {waiting[m.name]}" if waiting.get(m.name) else m.name for m in members]
    return f"; not started: {some(named)}" if named else ""


def give_up(
    state: JobState, request: RequestedShape, outcome: ShapeOutcome, reason: str, effects: list[Effect]
) -> None:
    """Gives a request up: its fields return to their earlier values, and no pod leaves because of it."""
    for member in state.membership.members.values():
        if member.outgoing_for == request.request_id:
            succession.call_off(state, member)
    want(state, state.wanted_shape.changed(request.before), request.before, "", effects)
    _let_surplus_go(state, request, effects)
    requests.end(state, request, outcome, reason, effects)
    migration.dismiss_spare(state, effects)


def note(state: JobState, wanted: Shape, asked_by: str) -> None:
    """Records a change of the wanted shape; no other code changes it."""
    before, state.wanted_shape = state.wanted_shape, wanted
    if before == wanted:
        return
    state.shape_version += 1
    changed = WantedChange(time=state.time, before=before, after=wanted, asked_by=asked_by)
    state.shape_changes = [*state.shape_changes, changed][-_KEPT_CHANGES:]


def reached(state: JobState) -> Shape:
    """The shape with which a master without this journal is to continue the job: as wanted, as far as it was reached.

    Servers: those that own rows, in their largest size, because they have to hold these rows again. Workers: not more
    than have joined, or than the job began with.
    """
    began, workers = state.plan.shape, [w for w in state.membership.workers() if w.is_registered and not w.retiring]
    owners, joined = state.owners(), max(len(workers), began[Role.WORKER].count)
    return Shape(
        {
            Role.PARAMETER_SERVER: Places(len(owners), _largest(owners, began[Role.PARAMETER_SERVER].size)),
            Role.WORKER: Places(
                min(state.wanted_shape[Role.WORKER].count, joined), _largest(workers, began[Role.WORKER].size)
            ),
        }
    )


def _largest(members: list[Member], without: PodSize) -> PodSize:
    """The largest size of pods; `without`: if there are none."""
    sizes = [PodSize(m.cores, m.memory_bytes) if m.awaits_size else m.asked for m in members if m.is_registered]
    return max(sizes, key=lambda size: (size.memory_bytes, size.cores), default=without)


def _is_reached(state: JobState, request: RequestedShape) -> bool:
    """Whether every wanted pod of its roles works, and all other pods belong to other requests."""
    roles = request.roles or list(state.wanted_shape.places)
    others = {one.request_id for one in open_requests(state) if one is not request}
    members = [m for m in state.membership.members.values() if m.role in roles and m.made_for not in others]
    if Role.PARAMETER_SERVER in roles:
        # Servers that are added together with another size or move are added in a separate migration.
        names_count = request.change.get(Role.PARAMETER_SERVER, PlacesChange()).count is not None
        is_there = state.has_wanted_servers if names_count else not any(s.outgoing for s in state.owners())
        if not is_there or (state.migration is not None and (names_count or state.migration.count)):
            return False
    return state.phase not in (Phase.PENDING, Phase.STARTING, Phase.RECOVERING) and all(
        member.is_registered and member.stays and not member.awaits_size for member in members
    )


def want(state: JobState, target: Shape, change: ShapeChange, asked_by: str, effects: list[Effect]) -> None:
    """Changes the wanted shape, only in the fields that the change names."""
    note(state, target, asked_by)
    sized = [role for role, places in change.items() if names_size(places)]
    for role in sized:
        _keep_in_another_size(state, role)
    if Role.WORKER in sized:
        # Their successors may already exist.
        _retire_surplus_workers(state, effects)
    if change.get(Role.WORKER, PlacesChange()).count is not None:
        _set_workers(state, effects)
    for role in sized:
        _resize(state, role, target[role].size, effects)


def _keep_in_another_size(state: JobState, role: Role) -> None:
    """Pods that were to leave because of their size stay, until the cluster refuses them the present one, too."""
    for member in state.membership.members.values():
        if member.role is not role or member.retiring or not member.outgoing:
            continue
        request = requests.find(state, member.outgoing_for)
        if request is None or member.name not in request.moved_pods:
            succession.call_off(state, member)


def _resize(state: JobState, role: Role, size: PodSize, effects: list[Effect]) -> None:
    """Requests a size for all pods of a role that stay."""
    for member in state.membership.members.values():
        if member.role is not role or not member.stays:
            continue
        if needs_other_locks(state, member, size):
            reason = f"a server that started for {_most_cores(state, member):g} cores cannot use more"
            _not_in_place(state, member, size, reason, effects)
        else:
            state.membership.ask_for(member, size, state.time)


def needs_other_locks(state: JobState, member: Member, size: PodSize) -> bool:
    """Whether a pod is a running server that is to have more cores than it has locks for."""
    return size.cores > _most_cores(state, member)


def _most_cores(state: JobState, member: Member) -> float:
    """Cores that a pod may have without being replaced.

    A server has locks for the cores with which it started, even if it has fewer now, and for those that the job file
    allows; a cluster that rounds up may have granted it more.
    """
    most = state.plan.most_server_cores
    if most is None or member.role is not Role.PARAMETER_SERVER or not member.uid:
        return math.inf
    return max(member.cores, member.started_cores, most)


def pod_resized(state: JobState, event: PodResized, effects: list[Effect]) -> None:
    """Takes the pod's size, which is part of the configuration for which speed is measured."""
    member = state.membership.members.get(event.pod)
    if member is None or member.uid != event.uid:
        return
    inputs = {
        "pod": event.pod, "before_cores": member.cores, "cores": event.cores,
        "before_memory_bytes": member.memory_bytes, "memory_bytes": event.memory_bytes,
    }  # fmt: skip
    has_other_cores = event.cores != member.cores
    state.membership.granted(member, PodSize(event.cores, event.memory_bytes), event.outcome_of)
    effects.append(Decided(decision="pod_resized", inputs=inputs))
    if has_other_cores:
        orders.use_cores(state, member, effects)


def resize_refused(state: JobState, event: ResizeRefused, effects: list[Effect]) -> None:
    """The cluster refuses the pod's size; ignored if another size has been requested since."""
    member = state.membership.members.get(event.pod)
    size = PodSize(event.cores, event.memory_bytes)
    if member is not None and member.uid == event.uid and member.asked == size:
        _not_in_place(state, member, size, event.reason, effects)


def _not_in_place(state: JobState, member: Member, size: PodSize, reason: str, effects: list[Effect]) -> None:
    """The pod keeps its size; another pod of the wanted size replaces it, if possible."""
    state.membership.refused(member)
    sizes = _difference(size, PodSize(member.cores, member.memory_bytes))
    inputs = {
        "pod": member.name, "cores": member.cores, "asked_cores": size.cores, "memory_bytes": member.memory_bytes,
        "asked_memory_bytes": size.memory_bytes, "reason": reason,
    }  # fmt: skip
    effects.append(Decided(decision="resize_refused", inputs=inputs))
    member.reason = f"{sizes} were refused: {reason}"
    request = requests.newest(state, member.role, size_only=True) or requests.newest(state, member.role)
    if request is not None:
        succession.begin(state, member, f"{sizes} are not possible in place: {reason}", request)


def _difference(size: PodSize, present: PodSize) -> str:
    """The difference between two sizes, for people."""
    words = [f"{size.cores:g} cores"] if size.cores != present.cores else []
    if size.memory_bytes != present.memory_bytes:
        words.append(f"{format_bytes(size.memory_bytes)} of memory")
    return " and ".join(words)


def creation_refused(state: JobState, event: PodRefused, effects: list[Effect]) -> bool:
    """Ends the open request if only it wanted the pod, or the size of a pod that replaces a lost one.

    So the job keeps its pods. Returns whether there was such a request.
    """
    member = state.membership.members[event.pod]
    request = succession.request_behind(state, member) or _request_of_size(state, member)
    if request is None or member.is_registered:
        return False
    give_up(state, request, ShapeOutcome.REFUSED, f"{event.pod}: {event.reason}", effects)
    return True


def continues_smaller(state: JobState, event: PodRefused, effects: list[Effect]) -> bool:
    """Whether a job that continues in its earlier sizes, for which this cluster has no node, gets those of its launch.

    The launch was checked against the nodes. Its servers may be killed for memory, as those of any job.
    """
    member = state.membership.members[event.pod]
    role, asked, size = member.role, member.asked, state.plan.shape[member.role].size
    if not state.is_resumed or state.phase not in (Phase.PENDING, Phase.STARTING) or asked == size:
        return False
    inputs = {
        "pod": member.name, "cores": size.cores, "asked_cores": asked.cores, "memory_bytes": size.memory_bytes,
        "asked_memory_bytes": asked.memory_bytes, "reason": event.reason,
    }  # fmt: skip
    effects.append(Decided(decision="resize_refused", inputs=inputs))
    change = {role: PlacesChange(cores=size.cores, memory_bytes=size.memory_bytes)}
    note(state, state.wanted_shape.changed(change), "")
    for each in state.membership.members.values():
        if each.role is role:
            state.membership.settle_for(each, size, state.time)
    return True


def _request_of_size(state: JobState, member: Member) -> RequestedShape | None:
    """The open request for the size of a pod, if the pod would have another one without it."""
    request = requests.newest(state, member.role, size_only=True)
    if request is None:
        return None
    without = Places(1, member.asked).changed(request.before[member.role])
    return request if without.size != member.asked else None


def _staying_workers(state: JobState) -> list[Member]:
    """Workers in the order in which they are kept: working ones first, and of these the oldest."""
    staying = [worker for worker in state.membership.workers() if worker.stays]
    return sorted(staying, key=lambda w: (not w.is_registered, bool(w.made_for), w.index))


def _let_surplus_go(state: JobState, request: RequestedShape, effects: list[Effect]) -> None:
    """Surplus workers of a request that is given up leave."""
    staying = _staying_workers(state)
    made = [worker for worker in reversed(staying) if worker.made_for == request.request_id]
    for worker in made[: max(0, len(staying) - state.wanted_shape[Role.WORKER].count)]:
        succession.retire(state, worker, effects)


def _retire_surplus_workers(state: JobState, effects: list[Effect]) -> None:
    for worker in _staying_workers(state)[state.wanted_shape[Role.WORKER].count :]:
        succession.retire(state, worker, effects)


def _set_workers(state: JobState, effects: list[Effect]) -> None:
    _retire_surplus_workers(state, effects)
    count, staying = state.wanted_shape[Role.WORKER].count, _staying_workers(state)
    outgoing = sum(bool(worker.outgoing) and not worker.retiring for worker in state.membership.workers())
    if not outgoing:
        requests.add_pods(state, Role.WORKER, count - len(staying))
