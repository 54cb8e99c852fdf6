"""What can happen to a job: the inputs of its state machine and the records of its journal.

`time` is in seconds of the job's own clock, which only runs while a master runs, and never goes back, even if the
machine's clock is set.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from elastrec.platform.clusters.pods import EndReason
from elastrec.platform.master.machine.recovery import CompleteRecord
from elastrec.platform.specs.metrics import Role
from elastrec.platform.specs.shape import PlacesChange, PodSize, Shape
from elastrec.platform.transport.messages.directive import PodOrders
from elastrec.platform.transport.messages.job import CopyProgress, RestoreProblem, SavedPart, ShardProgress
from elastrec.platform.transport.messages.ledger import OwnPlan
from elastrec.platform.transport.messages.observer import REQUEST_TIMEOUT_SECONDS, PodMove, WorkerOrder


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    time: float


class ResumedFrom(msgspec.Struct, frozen=True, kw_only=True):
    """The records of an earlier master from which a master without a journal continues.

    Attributes:
        records: complete records, oldest first; the last one is the first choice.
        trained_rows: counted by earlier masters; 0 if unknown.
        shape: of the job when the last of them was saved, except for what this launch names otherwise than the one
            before; None: unknown.
        orders: those for all workers when it was saved, with the same exception; None: there were none.
        times: seconds of earlier masters by part, as far as they have left them; None: unknown.
    """

    records: list[CompleteRecord]
    trained_rows: int
    shape: Shape | None = None
    orders: PodOrders | None = None
    times: dict[str, float] | None = None


class TermBegun(_Event, frozen=True, kw_only=True):
    """This master has taken a term; its address is `address`; `resumed` is only set for a master without a journal."""

    term: int
    address: str
    resumed: ResumedFrom | None = None


class Begun(_Event, frozen=True, kw_only=True):
    """The job exists; its pods must be created."""


class PodRegistered(_Event, frozen=True, kw_only=True):
    """A pod's process reported for the first time, or again."""

    pod: str
    role: Role
    incarnation: str
    address: str = ""
    node: str = ""
    restored_order_id: str = ""
    started_cores: int = 0


class PodReported(_Event, frozen=True, kw_only=True):
    """The part of a heartbeat that changes something."""

    pod: str
    incarnation: str
    generation: int
    reached_version: int
    progress: list[ShardProgress] = []
    frozen_order_id: str = ""
    in_memory_order_id: str = ""
    saved: SavedPart | None = None
    restored_order_id: str = ""
    damaged: RestoreProblem | None = None
    writing: str = ""
    transfers: int = 0
    orders_version: int = 0
    let_go_version: int = 0
    copied_order_id: str = ""
    taken_order_id: str = ""
    copying: CopyProgress | None = None
    ends_in_seconds: float | None = None


class PodOrdered(_Event, frozen=True, kw_only=True):
    """One worker gets orders of its own, from its next minibatch on."""

    pod: str
    order: WorkerOrder


class WorkersOrdered(_Event, frozen=True, kw_only=True):
    """All workers, including those that join later, get other orders from the same step on."""

    order: WorkerOrder


class ShardsAsked(_Event, frozen=True, kw_only=True):
    """A worker asked for shards."""

    pod: str
    incarnation: str
    generation: int
    request_id: str
    count: int
    kind: str
    progress: list[ShardProgress] = []


class PodFailed(_Event, frozen=True, kw_only=True):
    """A pod reported why it is about to exit."""

    pod: str
    incarnation: str
    retryable: bool
    reason: str
    traceback: str = ""
    shard: ShardProgress | None = None


class PodSilent(_Event, frozen=True, kw_only=True):
    """No heartbeat of this process for the heartbeat timeout; without incarnation: the pod's process never
    registered."""

    pod: str
    incarnation: str
    silent_seconds: float


class PodSeen(_Event, frozen=True, kw_only=True):
    """The cluster has the pod of a member: it was created, or found under that name."""

    pod: str
    uid: str


class PodGone(_Event, frozen=True, kw_only=True):
    """The cluster reports that the pod ended. `message` is for people (the last lines of its log)."""

    pod: str
    uid: str
    end: EndReason
    exit_code: int | None = None
    message: str = ""


class PodDeleted(_Event, frozen=True, kw_only=True):
    """The cluster has no pod with this name any more, which the job gave up."""

    pod: str


class PodResized(_Event, frozen=True, kw_only=True):
    """The pod has this size. `outcome_of`: the requested size, if this is the result of a request."""

    pod: str
    uid: str
    cores: float
    memory_bytes: int
    outcome_of: PodSize | None = None


class ResizeRefused(_Event, frozen=True, kw_only=True):
    """The pod will not get the requested size; it keeps its present one."""

    pod: str
    uid: str
    cores: float
    memory_bytes: int
    reason: str


class PodRefused(_Event, frozen=True, kw_only=True):
    """The cluster will never create this pod, of this size."""

    pod: str
    reason: str
    size: PodSize | None = None


class RecordCommitted(_Event, frozen=True, kw_only=True):
    """The record of a save order is complete. May arrive after the job stopped waiting for it.

    Attributes:
        base: see CompleteRecord.
    """

    order_id: str
    base: str = ""


class RecordFailed(_Event, frozen=True, kw_only=True):
    """The record of a save order cannot be completed."""

    order_id: str
    reason: str
    store_away: bool = False


class StopAsked(_Event, frozen=True, kw_only=True):
    reason: str


class OwnerChanged(_Event, frozen=True, kw_only=True):
    """An observer took the job over; no other observer may stop it."""

    owner: str


class SaveAsked(_Event, frozen=True, kw_only=True):
    pass


class ShapeAsked(_Event, frozen=True, kw_only=True):
    """Another shape is requested, or pods are to be moved; fields that are not named stay as they are wanted.

    The fields are those of ChangeShape.

    Attributes:
        own_plan: of the master itself; None: another caller made the request.
    """

    change: dict[Role, PlacesChange]
    expected_version: int | None = None
    asked_by: str = ""
    reason: str = ""
    moves: list[PodMove] = []
    plan_id: str = ""
    timeout_seconds: float = REQUEST_TIMEOUT_SECONDS
    own_plan: OwnPlan | None = None


class ShapeCancelled(_Event, frozen=True, kw_only=True):
    """A request for a shape was cancelled; `frees_plan`: see CancelShape."""

    request_id: str
    frees_plan: bool = False


class ServerHot(_Event, frozen=True, kw_only=True):
    """Buckets are to leave a server that has more load than the others.

    Attributes:
        ratio: of its load per core to the mean of the others; ratio_after: the expected ratio afterwards.
        moves: name of the new owner by virtual bucket; size_bytes: of these buckets.
        price_seconds: cost of the relief in seconds of the job's time.
        ownership_epoch: under which the load was measured; nothing moves under another one.
    """

    server: str
    ratio: float
    ratio_after: float
    moves: dict[int, str]
    ownership_epoch: int
    size_bytes: int = 0
    price_seconds: float = 0.0


class PodSlow(_Event, frozen=True, kw_only=True):
    """A worker or server is slow because of its node; its successor must start on another node.

    Attributes:
        ratio: of its time per row to the median of the others'.
    """

    pod: str
    incarnation: str
    ratio: float
    seconds_per_row: float
    others_seconds_per_row: float


class Ticked(_Event, frozen=True, kw_only=True):
    """A deadline of the state has passed.

    Attributes:
        waiting: the state in the cluster of pods that have not started, by name.
        problems: why servers have not copied the buckets that they are to take over, if reported, by name.
    """

    waiting: dict[str, str] = {}
    problems: dict[str, str] = {}


class Restarted(_Event, frozen=True, kw_only=True):
    """A new master process has taken over, or the old one was suspended; silence of pods in between does not count.

    `away_seconds` passed without a master, on the wall clock; the job's own clock did not advance. It advanced by
    `suspended_seconds`, in which the process was stopped or its journal had no room, and no report was received.
    """

    away_seconds: float = 0.0
    suspended_seconds: float = 0.0


class Measured(_Event, frozen=True, kw_only=True):
    """The share (0 to 1) of their training time since the last such event in which workers waited for rows."""

    waiting_share: float


Event = (
    TermBegun
    | Begun
    | PodRegistered
    | PodReported
    | PodOrdered
    | WorkersOrdered
    | ShardsAsked
    | PodFailed
    | PodSilent
    | PodSeen
    | PodGone
    | PodDeleted
    | PodResized
    | ResizeRefused
    | PodRefused
    | RecordCommitted
    | RecordFailed
    | StopAsked
    | OwnerChanged
    | SaveAsked
    | ShapeAsked
    | ShapeCancelled
    | ServerHot
    | PodSlow
    | Ticked
    | Restarted
    | Measured
)

Submit = Callable[[Callable[[float], Event]], object]
"""Submits an event that is made from the time on the job's clock."""
