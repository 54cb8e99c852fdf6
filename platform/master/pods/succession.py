"""Pods whose place others are to take while they work on: moved ones, and those that cannot be resized in place. Pure.

Successors start first. A worker leaves once its successor has registered, a server hands its buckets over
(`migration`). Whatever becomes of a pod that was made for a request, the pods that work are left as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    """Another pod is to take the place of this one."""
    member.outgoing, member.outgoing_for = reason, request.request_id
    state.membership.revision += 1


def call_off(state: JobState, member: Member) -> None:
    """The pod stays."""
    member.outgoing = member.outgoing_for = ""
    state.membership.revision += 1


def step(state: JobState, effects: list[Effect]) -> None:
    """Makes workers that take the place of others, and lets those go whose successors are there."""
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
    # Those that work leave last.
    for worker in sorted(outgoing, key=lambda w: w.is_registered)[: max(0, len(outgoing) - needed)]:
        retire(state, worker, effects)


def may_move_slow(state: JobState) -> bool:
    """Whether a slow worker or server can be moved now: nothing else changes, and the job has not moved too many."""
    is_allowed = state.slow_moves < state.plan.slow_pod_moves
    is_free = state.migration is None and state.has_wanted_servers and not requests.open_requests(state)
    return is_allowed and state.phase is Phase.TRAINING and is_free


def leave_slow_node(state: JobState, event: PodSlow, effects: list[Effect]) -> None:
    """A successor starts elsewhere, as if a person had asked for it; then the slow pod leaves."""
    member = state.membership.members.get(event.pod)
    if member is None or member.incarnation != event.incarnation or not member.stays or not member.node:
        return
    if not may_move_slow(state):
        return
    state.slow_moves += 1
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
    if not worker.is_registered:
        losses.dismiss(state, worker, effects, delete=True)


def request_behind(state: JobState, member: Member) -> RequestedShape | None:
    """The open request for which a pod was made that the job does not depend on; None: it depends on the pod."""
    if not member.made_for or member.name in state.ownership.servers:
        return None
    request = requests.find(state, member.made_for)
    return request if request is not None and request.is_open else None


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
    """A pod that was made for a request is lost: another one is made, or the request is given up.

    Args:
        is_hopeless: another one would be lost, too.
    """
    request.losses += 1
    if member.name in state.membership.members:
        losses.dismiss(state, member, effects, delete=delete)
    if is_hopeless or request.losses > state.plan.pod_restarts:
        times = "" if is_hopeless else f"its pods were lost {request.losses} times; the last one, "
        shape.give_up(state, request, ShapeOutcome.REFUSED, f"{times}{member.name}: {reason}", effects)
        return
    again = state.membership.add(
        member.role, member.index, member.asked, state.time, made_for=member.made_for, avoids_nodes=member.avoids_nodes
    )
    again.reason = reason
    losses.replaced(state, member, again, reason, effects)


def spare_server(state: JobState, *, may_be_starting: bool = False) -> Member | None:
    """A server that works, owns nothing and is to stay; one that starts only where there is no other."""
    spare = [s for s in state.membership.servers() if s.stays and s.name not in state.ownership.servers]
    spare.sort(key=lambda server: not server.is_registered)
    return next((server for server in spare if server.is_registered or may_be_starting), None)


def waiting(state: JobState) -> str:
    """Which workers start in the place of which others; empty: none."""
    workers = state.membership.workers()
    outgoing = [worker.name for worker in workers if worker.outgoing and not worker.retiring]
    if not outgoing:
        return ""
    starting = [worker.name for worker in workers if worker.stays and not worker.is_registered]
    return f"{some(starting)} in the place of {some(outgoing)}"
