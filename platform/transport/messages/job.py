"""What pods say to the job master, and what it answers.

The master does not send orders; every answer carries the *directive*: the whole of what the pod should be doing,
with a version. A pod that missed ten of them only needs the last. Units: seconds, bytes, samples.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import msgspec

from elastrec.platform.specs.buckets import balanced_owners, dense_buckets_for
from elastrec.platform.specs.metrics import Role
from elastrec.platform.specs.splits import ManifestStream, Split


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of everything that crosses the wire; tagged by its class name."""


class Mode(StrEnum):
    """What a pod should be doing."""

    IDLE = "idle"
    TRAIN = "train"
    EVALUATE = "evaluate"
    PAUSE = "pause"  # finish the running step, push, acknowledge, then do nothing
    EXIT = "exit"


class RoutingTable(msgspec.Struct, frozen=True, kw_only=True):
    """Which server owns which bucket.

    Attributes:
        epoch: rises with every change; a server refuses a request with another epoch.
        owners: for each virtual bucket, an index into `servers`.
        servers: pod names, and `addresses` in the same order; an address is empty until the server is ready.
        dense_owners: for each dense bucket, an index into `servers`; by default each server has neighbouring ones.
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
        base: order whose record this one may build on, holding only what has changed since; empty: none.
    """

    order_id: str
    uri: str
    base: str = ""


class RestoreOrder(msgspec.Struct, frozen=True):
    """Forget everything and load your buckets' rows from a record (`uri` empty: start from nothing).

    Attributes:
        with_marks: take also which pushes are in the record, at whose positions splits begin. False: its parameters
            alone, for the same splits may be trained from their beginning.
    """

    order_id: str
    uri: str
    with_marks: bool = False


class TakeFrom(msgspec.Struct, frozen=True):
    """Buckets that another server owns: their numbers, virtual and dense ones, and where the server is reached."""

    server: str
    address: str
    buckets: list[int]
    dense_buckets: list[int]


class TakeOrder(msgspec.Struct, frozen=True):
    """Copy these buckets while their owners serve, and take them over once a routing table gives them to you.

    DLRover-RM §5.2: seamless migration.
    """

    order_id: str
    sources: list[TakeFrom]

    def is_due(self, routing: RoutingTable, pod: str) -> bool:
        """Whether a routing table gives the buckets to this pod."""
        if pod not in routing.servers:
            return False
        index = routing.servers.index(pod)
        return all(
            all(routing.owners[bucket] == index for bucket in source.buckets)
            and all(routing.dense_owners[bucket] == index for bucket in source.dense_buckets)
            for source in self.sources
        )


class Directive(msgspec.Struct, frozen=True, kw_only=True):
    """The whole of what one pod should be doing now.

    Attributes:
        term: of the master. Directives are ordered by term, then version; a pod that knows a term obeys no lower one.
        version: a pod reports the highest version that it has reached (see Heartbeat.reached_version).
        generation: grows with every rollback; leases and pushes of an older one are void.
        members: workers whose pushes count; without those that have nothing to train in bsp and ssp. Sent to
            servers only.
        trains_alone: whether no other worker trains: what it pushes meets no others' pushes.
        moving: of the change of servers that is under way: until it is over, a server keeps what it has given away;
            take: what this server takes over in it. Sent to servers only.
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
        """Of two directives the one with the higher order is the newer one."""
        return self.term, self.version


class PodOrders(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one pod should do otherwise than the others; beside the directive. Of a server, `cores` alone.

    Attributes:
        version: of the orders of this pod, whatever they say; rises with every change.
        batch_size: samples per step; None: as the job file says.
        learning_rate_scale: factor of both learning rates.
        is_idle: it takes no minibatch, others do not wait for it, and its shards are for them.
        cores: that the pod has had since it was resized in place; None: those that it was started with.
    """

    version: int
    batch_size: int | None = None
    learning_rate_scale: float = 1.0
    is_idle: bool = False
    cores: float | None = None


class Register(Message, frozen=True):
    """A pod's process has started. Sent again after a restart of either side.

    Attributes:
        incarnation: random per process; the one that registered last counts, an earlier one is ordered to exit.
        address: `host:port` where the pod serves, else empty.
    """

    pod: str
    role: Role
    incarnation: str
    address: str = ""
    node: str = ""
    # Set by a server whose state survived a master restart, so that it is not asked to restore again.
    restored_order_id: str = ""


class Registered(Message, frozen=True):
    """Answer to Register: the job file as JSON, and what to do.

    Attributes:
        rank: index of the pod among its role; workers use it as a stable small number.
        streams: where the splits of each stream are read, by its name.
        heartbeat_seconds: how often to give a heartbeat, until an answer says otherwise; 0: as the job file says.
        orders: of this pod alone; None: it has none.
        wall_seconds: since the epoch, on the master's clock; None: it does not say.
    """

    job_json: bytes
    rank: int
    streams: dict[str, ManifestStream]
    directive: Directive
    heartbeat_seconds: float = 0.0
    orders: PodOrders | None = None
    wall_seconds: float | None = None


class Shard(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A split of a stream that is leased to one pod (AntDT §V-C).

    Attributes:
        kind: what the pod is to do with it.
        offset: rows of the split, in the order in which they are read, that somebody else has trained: begin there.
        position: where that is, in the words of the stream's source; empty: `offset` says it.
        attempt: 1 for the first lease.
        keep_predictions: evaluation: also write rows and predictions for the check of the export.
    """

    kind: str  # "train" | "evaluate"
    split: Split
    offset: int
    attempt: int
    position: bytes = b""
    keep_predictions: bool = False

    def progress(self, offset: int, *, ended: bool, position: bytes = b"", sketch: bytes = b"") -> ShardProgress:
        """A report of this attempt."""
        return ShardProgress(
            stream=self.split.stream,
            number=self.split.number,
            attempt=self.attempt,
            offset=offset,
            ended=ended,
            position=position,
            sketch=sketch,
        )


class ShardProgress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Rows of a leased shard whose gradients the servers have applied, counted from the split's beginning.

    Attributes:
        stream, number: of the split.
        position: where to go on reading behind those rows, in the words of the stream's source; empty: `offset` says
            it.
        ended: these are all rows of the split.
        sketch: encoded HeadSketches of evaluation rows, sent with the completion only.
    """

    stream: str
    number: int
    attempt: int
    offset: int
    ended: bool
    position: bytes = b""
    sketch: bytes = b""


class WindowMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over the time of one window; all zero when nothing ran.

    Attributes:
        number: rises by one with every window of a process. A window whose delivery was not confirmed is sent again
            under its number, and counts once.
        loss_sum: of the trained loss, times samples; `losses`: the same of each loss that the model names, where there
            are several.
        bytes_read: of the minibatches as the reader handed them over; `bytes_read_plain`: without deduplication.
        sketch: encoded coarse HeadSketches of predictions before the update.
    """

    number: int = 0
    samples: int = 0
    steps: int = 0
    loss_sum: float = 0.0
    wait_seconds: float = 0.0
    pull_seconds: float = 0.0
    compute_seconds: float = 0.0
    push_seconds: float = 0.0
    bytes_pulled: int = 0
    bytes_pushed: int = 0
    bytes_read: int = 0
    bytes_read_plain: int = 0
    losses: dict[str, float] = {}
    sketch: bytes = b""


class TableUsage(msgspec.Struct, frozen=True, kw_only=True):
    """One table's share of one server."""

    table: str
    rows: int
    bytes: int


class RestoreProblem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a server has not carried a restore order out yet.

    Attributes:
        is_damaged: the record's bytes are not those that were written; else the store cannot be asked, and the server
            tries again by itself.
    """

    order_id: str
    reason: str
    is_damaged: bool


class CopyProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a server is with an order to take buckets over.

    Attributes:
        advance: rises with every answer that brings the server further than it has been under this order; what is
            copied again after an error does not count.
        copied_bytes: of cells, what was copied again included.
        buckets_left: of the order, those of which something is still to be copied for the first time.
        problem: why the last try failed; empty: the server has got further since.
        is_permanent: no later try could succeed, and none is made before the buckets are due.
    """

    order_id: str
    advance: int = 0
    copied_bytes: int = 0
    buckets_left: int = 0
    problem: str = ""
    is_permanent: bool = False


class SavedPart(msgspec.Struct, frozen=True, kw_only=True):
    """A server has written its part of a record; `manifest_json` is what the checkpoints room needs to trust it.

    A server that could not write (store full or out of reach) says why in `problem` and lives on: the master gives
    the record up and tries again later.

    Attributes:
        store_away: the store could not be asked, so that another try makes sense however many failed.
    """

    order_id: str
    manifest_json: bytes
    problem: str = ""
    store_away: bool = False


class ServerLoad(msgspec.Struct, frozen=True, omit_defaults=True):
    """What requests ask of one server, averaged over some heartbeats.

    Attributes:
        rows_per_second: that requests name, in the buckets which it serves.
        hottest: numbers of the buckets that have most of them, and their rows per second, from the highest on.
        seconds_per_row: of reading and changing rows, on the clock: what the server's node makes of it counts, waiting
            for workers, for saves or for the network does not. 0: no row was named yet.
    """

    rows_per_second: float = 0.0
    hottest: list[tuple[int, float]] = []
    seconds_per_row: float = 0.0


class Heartbeat(Message, frozen=True):
    """Heartbeat, progress and metrics of one pod.

    Attributes:
        frozen_order_id: of a server, the last save of which it has taken its cut: pushes from then on are not in it.
        in_memory_order_id: of a server, the last save whose part lies in its node's memory.
        writing: of a server, the save order into whose folder its process writes; empty: none.
        transfers: of a server, sections of records that its process has written or read, and errors by which the
            checkpoint store has answered; while it rises, the store does not hang.
        orders_version: of the orders of its own that the process has; 0: none.
        let_go_version: of the last orders to be idle under which it has let go of all its shards; 0: none.
        copied_order_id: of the order to take buckets over of which little is left to copy; taken_order_id: whose
            buckets the server has taken over. Empty: none.
        copying: of a server, how far it is with the order that it carries out; None: it carries out none.
        ends_in_seconds: of a server whose process was sent SIGTERM: it serves so long at most; None: it was not.
    """

    pod: str
    incarnation: str
    generation: int
    reached_version: int
    progress: list[ShardProgress] = []
    metrics: WindowMetrics = WindowMetrics()
    tables: list[TableUsage] = []
    frozen_order_id: str = ""
    in_memory_order_id: str = ""
    saved: SavedPart | None = None
    restored_order_id: str = ""
    restore_problem: RestoreProblem | None = None
    writing: str = ""
    transfers: int = 0
    orders_version: int = 0
    let_go_version: int = 0
    copied_order_id: str = ""
    taken_order_id: str = ""
    copying: CopyProgress | None = None
    ends_in_seconds: float | None = None
    memory_bytes: int = 0
    cpu_seconds: float = 0.0
    dense_bytes: int = 0  # of this server's share of the dense parameters
    load: ServerLoad = ServerLoad()  # of a server


class Answer(Message, frozen=True, omit_defaults=True):
    """Answer to a heartbeat.

    Attributes:
        known: false when the pod must register again.
        heartbeat_seconds: until the next one, unless there is something to report; 0: as before.
        orders: of this pod alone; None: it has none.
    """

    directive: Directive | None
    known: bool = True
    heartbeat_seconds: float = 0.0
    orders: PodOrders | None = None


class LeaseShards(Message, frozen=True):
    """Ask for up to `count` shards. The same `request_id` gets the same shards again (a lost answer costs nothing)."""

    pod: str
    incarnation: str
    generation: int
    request_id: str
    count: int
    kind: str  # "train" | "evaluate"
    progress: list[ShardProgress] = []


class LeaseState(StrEnum):
    GRANTED = "granted"
    WAIT = "wait"  # others still work; some of their shards may come back
    DONE = "done"
    STALE = "stale"  # wrong generation or unknown pod: look at the directive


class Leased(Message, frozen=True, omit_defaults=True):
    """Answer to LeaseShards; `orders`: under which the shards are trained (see Answer)."""

    state: LeaseState
    shards: list[Shard] = []
    wait_seconds: float = 0.0
    directive: Directive | None = None
    orders: PodOrders | None = None


class Failed(Message, frozen=True):
    """A pod is about to exit because of an error. `retryable` false: the same code would fail again (a user's bug)."""

    pod: str
    incarnation: str
    retryable: bool
    reason: str
    traceback: str = ""
    shard: ShardProgress | None = None


class Done(Message, frozen=True):
    """Plain answer: accepted or why not."""

    accepted: bool = True
    reason: str = ""
