"""What a job's master wants of a pod: the directive, with routing table and orders, and orders for the pod alone.

The master sends no commands; every answer contains the *directive*: the complete description of what the pod should do,
with a version. A pod that missed several of them only needs the last one. Units: seconds, samples.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import msgspec

from elastrec.platform.specs.buckets import balanced_owners, dense_buckets_for


class Mode(StrEnum):
    """The activity of a pod."""

    IDLE = "idle"
    TRAIN = "train"
    EVALUATE = "evaluate"
    PAUSE = "pause"  # finish the running step, push, acknowledge, then do nothing
    EXIT = "exit"


class RoutingTable(msgspec.Struct, frozen=True, kw_only=True):
    """The owners of buckets.

    Attributes:
        epoch: increases with every change; a server refuses a request with another epoch.
        owners: for each virtual bucket, an index into `servers`.
        servers: pod names, and `addresses` in the same order; an address is empty until the server is ready.
        dense_owners: for each dense bucket, an index into `servers`; by default, each server has adjacent ones.
    """

    epoch: int
    owners: list[int]
    servers: list[str]
    addresses: list[str]
    dense_owners: list[int] = []

    def __post_init__(self) -> None:
        if not self.dense_owners:
            buckets = dense_buckets_for(len(self.owners))
            msgspec.structs.force_setattr(self, "dense_owners", balanced_owners(buckets, len(self.servers)))


class WorkerProcess(NamedTuple):
    """One process of a worker's pod; another process of the same pod has another incarnation."""

    pod: str
    incarnation: str


class SaveOrder(msgspec.Struct, frozen=True):
    """Write your part of a checkpoint record into the folder `uri`, then report the part.

    Attributes:
        base: order of the record on which this one may build, with only the changes since then; empty: none.
    """

    order_id: str
    uri: str
    base: str = ""


class RestoreOrder(msgspec.Struct, frozen=True):
    """Discard everything and load your buckets' rows from a record (`uri` empty: start without rows).

    Attributes:
        with_marks: whether to restore the marks of pushes, because splits begin at the record's positions. False: only
            the parameters, because the same splits may be trained from their beginning.
    """

    order_id: str
    uri: str
    with_marks: bool = False


class TakeFrom(msgspec.Struct, frozen=True):
    """Buckets of another server: the numbers of virtual and dense buckets, and the server's address."""

    server: str
    address: str
    buckets: list[int]
    dense_buckets: list[int]


COPY_SHARE = 0.1
"""Share of the time that copying takes while the buckets are trained; workers' requests have the rest.

On two cores that a worker and three servers share, a quarter of the time costs a third of the throughput.
"""


class TakeOrder(msgspec.Struct, frozen=True):
    """Copy these buckets while their owners serve, and take them over when a routing table assigns them to you.

    DLRover-RM §5.2: seamless migration.

    Attributes:
        copy_share: see COPY_SHARE; more if rows change faster than they are copied.
    """

    order_id: str
    sources: list[TakeFrom]
    copy_share: float = COPY_SHARE

    def is_due(self, routing: RoutingTable, pod: str) -> bool:
        """Whether a routing table assigns the buckets to this pod."""
        if pod not in routing.servers:
            return False
        index = routing.servers.index(pod)
        return all(
            all(routing.owners[bucket] == index for bucket in source.buckets)
            and all(routing.dense_owners[bucket] == index for bucket in source.dense_buckets)
            for source in self.sources
        )


class Directive(msgspec.Struct, frozen=True, kw_only=True):
    """The complete description of what a pod should do now.

    Attributes:
        term: of the master. Directives are ordered by term, then version; a pod does not follow a lower term than it
            knows.
        version: a pod reports the highest version that it has reached (see Heartbeat.reached_version).
        generation: increases with every rollback; leases and pushes of an older one are void.
        members: workers whose pushes count, in bsp and ssp without those that have nothing to train. Sent to servers
            only.
        trains_alone: whether no other worker trains.
        moving: the running migration; until it ends, a server keeps the buckets that it has given away;
            take: the buckets that this server takes over. Sent to servers only.
    """

    version: int
    mode: Mode
    generation: int
    routing: RoutingTable
    members: list[WorkerProcess] = []
    trains_alone: bool = False
    save: SaveOrder | None = None
    restore: RestoreOrder | None = None
    moving: str = ""
    take: TakeOrder | None = None
    term: int = 0

    @property
    def order(self) -> tuple[int, int]:
        """The key by which directives are compared; a higher one is newer."""
        return self.term, self.version


class PodOrders(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Instructions for a single pod, in addition to the directive. For a server, only `cores`.

    Attributes:
        version: of this pod's orders; increases with every change.
        batch_size: samples per step; None: as in the job file.
        learning_rate_scale: factor of both learning rates.
        is_idle: whether it takes no minibatches; others then do not wait for it, and get its shards.
        cores: of the pod since it was resized in place; None: those with which it was started.
    """

    version: int
    batch_size: int | None = None
    learning_rate_scale: float = 1.0
    is_idle: bool = False
    cores: float | None = None
