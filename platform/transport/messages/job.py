"""Messages of pods to the job master, and its answers, which have a directive. Units: seconds, bytes, samples."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from elastrec.platform.specs.metrics import Role
from elastrec.platform.specs.splits import ManifestStream, Split
from elastrec.platform.transport.messages.directive import Directive, PodOrders


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of all messages; tagged by its class name."""


class Register(Message, frozen=True):
    """A pod's process has started. Sent again after a restart of either side.

    Attributes:
        incarnation: random per process; the process that registered last is valid, an earlier one is ordered to exit.
        address: `host:port` where the pod serves, else empty.
        started_cores: of a server: whole cores for which its process has started; 0: a worker.
    """

    pod: str
    role: Role
    incarnation: str
    address: str = ""
    node: str = ""
    started_cores: int = 0
    # Set by a server that kept its state during a restart of the master, so that it need not restore again.
    restored_order_id: str = ""


class Registered(Message, frozen=True):
    """Answer to Register: the job file as JSON, and the directive.

    Attributes:
        rank: index of the pod among its role; workers use it as a stable small number.
        streams: of the job, by name.
        heartbeat_seconds: the heartbeat interval, until an answer changes it; 0: as in the job file.
        orders: for this pod only; None: it has none.
        wall_seconds: since the epoch, by the master's clock at its start; None: unknown.
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
        kind: whether to train or to evaluate it.
        offset: number of rows of the split, in reading order, that are already trained; begin there.
        position: the same position in the form of the stream's source; empty: `offset` is enough.
        attempt: 1 for the first lease.
        keep_predictions: evaluation: also write rows and predictions for the check of the export.
    """

    kind: str  # "train" | "evaluate"
    split: Split
    offset: int
    attempt: int
    position: bytes = b""
    keep_predictions: bool = False

    def progress(
        self, offset: int, *, ended: bool, position: bytes = b"", sketch: bytes = b"", bad_rows: int = 0
    ) -> ShardProgress:
        """A report of this attempt."""
        return ShardProgress(
            stream=self.split.stream,
            number=self.split.number,
            attempt=self.attempt,
            offset=offset,
            ended=ended,
            position=position,
            sketch=sketch,
            bad_rows=bad_rows,
        )


class ShardProgress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Rows of a leased shard whose gradients the servers have applied, counted from the split's beginning.

    Attributes:
        stream, number: of the split.
        position: where to continue reading after those rows, in the form of the stream's source; empty: `offset` is
            enough.
        ended: whether these are all rows of the split.
        sketch: encoded HeadSketches of evaluation rows, sent with the completion only.
        bad_rows: bad rows that were left out between the offset at which this attempt began and `offset`.
    """

    stream: str
    number: int
    attempt: int
    offset: int
    ended: bool
    position: bytes = b""
    sketch: bytes = b""
    bad_rows: int = 0


class WindowMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over the time of one window; all zero if there was no step.

    Attributes:
        number: increases by one with every window of a process. A window whose delivery was not confirmed is sent again
            with the same number, and counts once.
        loss_sum: of the trained loss, times samples; `losses`: the same for each named loss of the model, if there are
            several.
        bytes_read: of the minibatches from the reader; `bytes_read_plain`: without deduplication.
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
    """Why a server has not executed a restore order yet.

    Attributes:
        is_damaged: whether the record's bytes are not those that were written; otherwise the store is not reachable,
            and the server tries again by itself.
        record: URI of the damaged one; empty: that of the order. It may be one on which that of the order builds.
    """

    order_id: str
    reason: str
    is_damaged: bool
    record: str = ""


class CopyProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a server with an order to take buckets over.

    Attributes:
        advance: increases with every answer that is progress under this order; repeated copies after an error do not
            count.
        copied_bytes: of cells, including repeated copies.
        buckets_left: number of buckets of the order that are not completely copied for the first time.
        problem: why the last try failed; empty: there has been progress since.
        is_permanent: whether no later try could succeed; then none is made before the buckets are due.
    """

    order_id: str
    advance: int = 0
    copied_bytes: int = 0
    buckets_left: int = 0
    problem: str = ""
    is_permanent: bool = False


class SavedPart(msgspec.Struct, frozen=True, kw_only=True):
    """A server has written its part of a record; the checkpoints room verifies it with `manifest_json`.

    A server that could not write (store full or not reachable) reports the reason in `problem` and continues; the
    master gives the record up and tries again later.

    Attributes:
        store_away: whether the store was not reachable, so that another try makes sense after any number of failures.
    """

    order_id: str
    manifest_json: bytes
    problem: str = ""
    store_away: bool = False


class BucketLoad(msgspec.Struct, frozen=True, array_like=True):
    """The load of one virtual bucket of a server.

    Attributes:
        rows_per_second: requested rows.
        size_bytes: of its rows and candidates, which another owner must copy.
    """

    bucket: int
    rows_per_second: float
    size_bytes: int = 0


class ServerLoad(msgspec.Struct, frozen=True, omit_defaults=True):
    """The load of one server, averaged over some heartbeats.

    Attributes:
        rows_per_second: requested rows in the buckets that it serves.
        hottest: the buckets with the highest load, in decreasing order.
        seconds_per_row: wall-clock time for reading and changing a row, which includes effects of the server's node,
            but not waiting for workers, saves or the network. 0: no row was requested yet.
    """

    rows_per_second: float = 0.0
    hottest: list[BucketLoad] = []
    seconds_per_row: float = 0.0


class Heartbeat(Message, frozen=True):
    """Heartbeat, progress and metrics of one pod.

    Attributes:
        frozen_order_id: of a server: the last save for which it has frozen its cut, which contains no later pushes.
        in_memory_order_id: of a server: the last save whose part is in its node's memory.
        writing: of a server: the save order into whose folder its process writes; empty: none.
        transfers: of a server: number of sections of records that its process has written or read, and of errors of the
            checkpoint store; while it increases, the store does not hang.
        orders_version: of the process's own orders; 0: none.
        let_go_version: of the last orders to be idle for which it has released all its shards; 0: none.
        copied_order_id: of the order to take buckets over with little left to copy; taken_order_id: of the order whose
            buckets the server has taken over. Empty: none.
        copying: of a server: its progress with the present order; None: it has none.
        ends_in_seconds: of a server whose process was sent SIGTERM: the maximum time that it still serves; None: no
            notice.
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
        known: False if the pod must register again.
        heartbeat_seconds: until the next one, unless there is something to report; 0: as before.
        orders: for this pod only; None: it has none.
    """

    directive: Directive | None
    known: bool = True
    heartbeat_seconds: float = 0.0
    orders: PodOrders | None = None


class LeaseShards(Message, frozen=True):
    """Requests up to `count` shards. The same `request_id` gets the same shards again, so a lost answer has no
    effect."""

    pod: str
    incarnation: str
    generation: int
    request_id: str
    count: int
    kind: str  # "train" | "evaluate"
    progress: list[ShardProgress] = []


class LeaseState(StrEnum):
    GRANTED = "granted"
    WAIT = "wait"  # other workers still have shards, which may be returned
    DONE = "done"
    STALE = "stale"  # wrong generation or unknown pod: see the directive


class Leased(Message, frozen=True, omit_defaults=True):
    """Answer to LeaseShards; `orders`: for training these shards (see Answer)."""

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
