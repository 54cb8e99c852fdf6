"""Replacement of running pods: pods that are moved, and pods that cannot be resized in place. Pure.

Successors start first. A worker leaves when its successor has registered, a server hands its buckets over
(`migration`). The failure of a request's new pods does not affect the working pods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastrec.platform.master.machine import migration
from elastrec.platform.master.machine.effects import Decided, Effect
from elastrec.platform.master.machine.events import PodSlow, ShapeAsked
from elastrec.platform.master.pods import losses, requests, shape
from elastrec.platform.master.pods.membership import Member, MemberStage
from elastrec.platform.master.pods.requests import RequestedShape
from elastrec.platform.specs.metrics import Phase, Role
from elastrec.platform.specs.text.some import some
from elastrec.platform.transport.messages.observer import PodMove, ShapeOutcome

if TYPE_CHECKING:
    from elastrec.platform.master.machine.state import JobState


def begin(state: JobState, member: Member, reason: str, request: RequestedShape) -> None:
    """Marks a pod as to be replaced by another one."""
    member.outgoing, member.outgoing_for = reason, request.request_id
    state.membership.revision += 1


def call_off(state: JobState, member: Member) -> None:
    """Cancels the replacement of a pod."""
    member.outgoing = member.outgoing_for = ""
    state.membership.revision += 1


def step(state: JobState, effects: list[Effect]) -> None:
    """Adds workers that replace others, and retires workers whose successors have registered."""
    if state.phase.is_final:
        return
    workers = [worker for worker in state.membership.workers() if not worker.retiring]
    outgoing = [worker for worker in workers if worker.outgoing]
    if not outgoing:
        return
    count = state.wanted_shape[Role.WORKER].count
    requests.add_pods(state, Role.WORKER, count - sum(worker.stays for worker in workers))
    staying = [worker for worker in state.membership.workers() if worker.stays]
    needed = max(0, count - sum(worker.is_registered for worker in staying))
    # Working pods leave last.
    for worker in sorted(outgoing, key=lambda w: w.is_registered)[: max(0, len(outgoing) - needed)]:
        retire(state, worker, effects)


def may_move_slow(state: JobState) -> bool:
    """Whether a slow worker or server can be moved now: nothing else changes, and the job has not moved too many."""
    is_allowed = state.slow_moves < state.plan.slow_pod_moves
    is_free = state.migration is None and state.has_wanted_servers and not requests.open_requests(state)
    return is_allowed and state.phase is Phase.TRAINING and is_free


def leave_slow_node(state: JobState, event: PodSlow, effects: list[Effect]) -> None:
    """Starts a successor on another node, as by a user's request; then the slow pod leaves."""
    member = state.membership.members.get(event.pod)
    if member is None or member.incarnation != event.incarnation or not member.stays or not member.node:
        return
    if not may_move_slow(state):
        return
    state.slow_moves += 1
    state.slow_moved[member.role] = state.time
    inputs = {
        "pod": member.name, "role": str(member.role), "node": member.node, "ratio": round(event.ratio, 3),
        "seconds_per_row": event.seconds_per_row, "others_seconds_per_row": event.others_seconds_per_row,
        "moves": state.slow_moves, "allowed": state.plan.slow_pod_moves,
    }  # fmt: skip
    effects.append(Decided(decision="slow_pod_moved", inputs=inputs))
    move = PodMove(pod=member.name, leaves_node=True)
    shape.shape_asked(state, ShapeAsked(time=event.time, change={}, moves=[move], asked_by="slow node"), effects)


def retire(state: JobState, worker: Member, effects: list[Effect]) -> None:
    """A worker finishes its step and leaves; one that has not registered cannot leave by itself."""
    state.membership.move(worker, MemberStage.RETIRING)
    worker.leaving_since = state.time
    if not worker.is_registered:
        losses.dismiss(state, worker, effects, delete=True)


def deadline(state: JobState) -> float | None:
    """When the next worker that does not leave by itself is deleted."""
    return min((_left_until(state, worker) for worker in _leaving(state)), default=None)


def ticked(state: JobState, effects: list[Effect]) -> None:
    """Deletes workers that were ordered to leave and still run, as after an end that a thread of the model holds up."""
    for worker in _leaving(state):
        if _left_until(state, worker) <= state.time:
            losses.dismiss(state, worker, effects, delete=True)


def keep_time(state: JobState) -> None:
    """Restarts the time of workers that leave."""
    for worker in _leaving(state):
        worker.leaving_since = state.time


def _leaving(state: JobState) -> list[Member]:
    # While a worker has shards, their leases limit the time without progress.
    return [w for w in state.membership.workers() if w.retiring and not any(w.name in q.held for q in state.queues)]


def _left_until(state: JobState, worker: Member) -> float:
    return worker.leaving_since + state.plan.lease_seconds + state.plan.exit_seconds


def request_behind(state: JobState, member: Member) -> RequestedShape | None:
    """The open request for which the pod was created; None if the job depends on the pod."""
    if not member.made_for or member.name in state.ownership.servers or migration.is_lost_with(state, member.name):
        return None
    request = requests.find(state, member.made_for)
    return request if request is not None and request.is_open else None


def count_loss(
    state: JobState,
    member: Member,
    request: RequestedShape,
    reason: str,
    effects: list[Effect],
    *,
    is_hopeless: bool = False,
) -> bool:
    """Counts a loss of a new pod of a request, or of its process; returns False if the request is given up for it."""
    request.losses += 1
    if not is_hopeless and request.losses <= state.plan.pod_restarts:
        return True
    times = "" if is_hopeless else f"its pods were lost {request.losses} times; the last one, "
    shape.give_up(state, request, ShapeOutcome.REFUSED, f"{times}{member.name}: {reason}", effects)
    return False


def newcomer_lost(
    state: JobState,
    member: Member,
    request: RequestedShape,
    reason: str,
    effects: list[Effect],
    *,
    delete: bool,
    is_hopeless: bool,
) -> None:
    """A new pod of a request is lost: another one is created, or the request is given up.

    A pod that is itself being replaced has a successor already.

    Args:
        is_hopeless: whether another pod would be lost, too.
    """
    if member.name in state.membership.members:
        losses.dismiss(state, member, effects, delete=delete)
    if not count_loss(state, member, request, reason, effects, is_hopeless=is_hopeless) or member.outgoing:
        return
    again = state.membership.add(
        member.role, member.index, member.asked, state.time, made_for=member.made_for, avoids_nodes=member.avoids_nodes
    )
    again.reason = reason
    losses.replaced(state, member, again, reason, effects)


def stand_in(state: JobState, lost: Member, *, may_be_starting: bool) -> Member | None:
    """The successor of a pod that was lost while it was being replaced, if it can take its place now.

    For a server: a working server that owns nothing and is to stay, or a starting one if there is no other. For a
    worker: a starting one, because a worker leaves when its successor works.
    """
    members = state.membership
    if lost.role is Role.WORKER:
        made = [w for w in members.workers() if w.stays and w.made_for == lost.outgoing_for and not w.oom_bytes]
        new = [worker for worker in made if not worker.is_registered]
    elif lost.name in state.ownership.servers:
        new = [server for server in members.servers() if server.stays and server.name not in state.ownership.servers]
    else:
        return None
    new.sort(key=lambda member: not member.is_registered)
    return next((member for member in new if member.is_registered or may_be_starting), None)


def waiting(state: JobState) -> str:
    """The workers that are being replaced, with their successors, as text; empty if there are none."""
    workers = state.membership.workers()
    outgoing = [worker.name for worker in workers if worker.outgoing and not worker.retiring]
    if not outgoing:
        return ""
    starting = [worker.name for worker in workers if worker.stays and not worker.is_registered]
    return f"{some(starting)} in the place of {some(outgoing)}"
