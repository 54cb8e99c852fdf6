"""Requests for another shape of a running job: their contents, which are open, and their outcomes. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from elastrec.platform.master.machine.effects import Decided, Effect
from elastrec.platform.specs.metrics import Role
from elastrec.platform.specs.shape import PlacesChange, ShapeChange, named_fields
from elastrec.platform.specs.text import plain_words
from elastrec.platform.transport.messages.ledger import OwnPlan
from elastrec.platform.transport.messages.observer import (
    REQUEST_TIMEOUT_SECONDS,
    PodMove,
    ShapeOutcome,
    ShapeRequest,
)

if TYPE_CHECKING:
    from elastrec.platform.master.machine.state import JobState

KEPT_REQUESTS = 64
"""Number of ended requests that are kept. An older plan id counts as new."""


class RequestedShape(msgspec.Struct, kw_only=True):
    """One request.

    Attributes:
        asked: the time of the request; `change`, `moves`: its contents.
        before: the earlier values of its fields, and of those of requests that it superseded; memory that was doubled
            after a kill is not below the doubled amount.
        roles: of the pods that it concerns; `moved_pods`: pods to be moved for it, or for requests that it superseded.
        avoided_nodes: names of the nodes on which its new pods must not run.
        losses: number of its new pods that were lost.
        progressed: when a pod of its roles last became ready (`stalls`); 0: none has.
        plan_id, timeout_seconds: see ChangeShape; own_plan: see ShapeAsked.
    """

    request_id: str
    asked: float
    change: dict[Role, PlacesChange]
    before: dict[Role, PlacesChange]
    moves: list[PodMove] = []
    roles: list[Role] = []
    moved_pods: list[str] = []
    avoided_nodes: list[str] = []
    losses: int = 0
    progressed: float = 0.0
    plan_id: str = ""
    timeout_seconds: float = REQUEST_TIMEOUT_SECONDS
    outcome: ShapeOutcome = ShapeOutcome.OPEN
    reason: str = ""
    asked_by: str = ""
    own_plan: OwnPlan | None = None

    @property
    def is_open(self) -> bool:
        return self.outcome is ShapeOutcome.OPEN

    @property
    def deadline(self) -> float:
        """When the request is given up."""
        return self.asked + self.timeout_seconds

    def names_size(self, role: Role) -> bool:
        """Whether it requests another size of the pods of a role."""
        return names_size(self.change.get(role))

    def is_about_same_as(self, other: RequestedShape) -> bool:
        """Whether both requests name the same field of the shape, or the same pod to be moved.

        The other one also has the fields of requests that it superseded.
        """
        if set(self.moved_pods) & set(other.moved_pods):
            return True
        return bool(named_fields(self.change).keys() & named_fields(other.before).keys())

    def reported(self) -> ShapeRequest:
        """For observers."""
        return ShapeRequest(
            request_id=self.request_id,
            wanted=in_words(self.change, self.moves),
            outcome=self.outcome,
            reason=self.reason,
            plan_id=self.plan_id,
            asked_by=self.asked_by,
        )


def names_size(places: PlacesChange | None) -> bool:
    """Whether a change concerns cores or memory."""
    return places is not None and (places.cores is not None or places.memory_bytes is not None)


def in_words(change: ShapeChange, moves: list[PodMove]) -> str:
    """The contents of a request, for people."""
    words = plain_words.places(change)
    words += [f"{move.pod} moved" + (" to another node" if move.leaves_node else "") for move in moves]
    return ", ".join(words)


def own_plans(state: JobState) -> list[OwnPlan]:
    """The master's own requests and their outcomes, the oldest first."""
    return [
        msgspec.structs.replace(request.own_plan, outcome=request.outcome.value, reason=request.reason)
        for request in state.shape_requests
        if request.own_plan is not None
    ]


def open_requests(state: JobState) -> list[RequestedShape]:
    """The oldest first."""
    return [request for request in state.shape_requests if request.is_open]


def find(state: JobState, request_id: str) -> RequestedShape | None:
    """The request with this id; None if there is none, or it ended long ago."""
    return next((request for request in state.shape_requests if request.request_id == request_id), None)


def of_plan(state: JobState, plan_id: str) -> RequestedShape | None:
    """The request of a plan; None if there is none, or it ended long ago."""
    return next((r for r in state.shape_requests if plan_id and r.plan_id == plan_id), None)


def memory_if_given_up(state: JobState, role: Role) -> list[tuple[RequestedShape, int]]:
    """The open requests that name the memory of a role's pods, with the memory to which each returns if given up."""
    return [
        (request, places.memory_bytes)
        for request in open_requests(state)
        if (places := request.before.get(role)) is not None and places.memory_bytes is not None
    ]


def return_to_memory(request: RequestedShape, role: Role, memory_bytes: int) -> None:
    """Changes the memory to which a request returns if it is given up."""
    request.before[role] = msgspec.structs.replace(request.before[role], memory_bytes=memory_bytes)


def newest(state: JobState, role: Role, *, size_only: bool = False) -> RequestedShape | None:
    """The newest open request about pods of a role; with `size_only`, about their size."""
    for request in reversed(open_requests(state)):
        if request.names_size(role) if size_only else role in request.roles:
            return request
    return None


def add_pods(state: JobState, role: Role, number: int) -> None:
    """Adds pods of the wanted size, for the newest open request about their role, if there is one."""
    # Two running pods never share a place, because the memory of a place on its node belongs to one pod at a time.
    taken = {member.index for member in state.membership.members.values() if member.role is role}
    free = (index for index in range(len(taken) + max(0, number)) if index not in taken)
    about = [request for request in open_requests(state) if role in request.roles]
    avoided = sorted({node for request in about for node in request.avoided_nodes})
    size = state.wanted_shape[role].size
    for _ in range(number):
        state.membership.add(
            role, next(free), size, state.time, made_for=about[-1].request_id if about else "", avoids_nodes=avoided
        )


def add(state: JobState, request: RequestedShape) -> None:
    """Adds a request; the oldest ended requests are removed."""
    ended = [one.request_id for one in state.shape_requests if not one.is_open]
    forgotten = set(ended[: max(0, len(ended) - KEPT_REQUESTS)])
    kept = [one for one in state.shape_requests if one.request_id not in forgotten]
    state.shape_requests = [*kept, request]


def end(state: JobState, request: RequestedShape, outcome: ShapeOutcome, reason: str, effects: list[Effect]) -> None:
    """Ends a request; its new pods now belong to the job."""
    request.outcome, request.reason = outcome, reason
    for member in state.membership.members.values():
        if member.made_for == request.request_id:
            member.made_for = ""
    inputs = {"request": request.request_id, "outcome": str(outcome), "reason": reason}
    effects.append(Decided(decision="shape_ended", inputs=inputs))


def supersede(state: JobState, earlier: RequestedShape, later: RequestedShape, effects: list[Effect]) -> None:
    """A later request supersedes an earlier one for the same fields, and takes over its other fields.

    If the later one is given up, nothing that the earlier one wanted remains: it could not be created either, and no
    request would end because of it.
    """
    for member in state.membership.members.values():
        if member.outgoing_for == earlier.request_id:
            member.outgoing_for = later.request_id
        if member.made_for == earlier.request_id:
            member.made_for = later.request_id
    for role, places in earlier.before.items():
        later.before[role] = later.before.get(role, PlacesChange()).changed(places)
    later.roles = [*later.roles, *(role for role in earlier.roles if role not in later.roles)]
    later.avoided_nodes = [*later.avoided_nodes, *earlier.avoided_nodes]
    later.moved_pods = sorted({*later.moved_pods, *earlier.moved_pods})
    end(state, earlier, ShapeOutcome.SUPERSEDED, f"by {plain_words.numbered(later.request_id)}", effects)
