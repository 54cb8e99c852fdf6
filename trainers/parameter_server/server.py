"""The server's state and its request handlers: rows, dense slice, consistency, exactly-once pushes.

Rows are read and changed side by side, behind the locks of their stripes (`storage`). Whatever changes the model passes
the gate, and a save closes it for the moment in which all buckets are frozen. `changed` guards what is said of workers
and rounds, and is never held while rows are touched; gate, `changed` and stripes are taken in this order. Requests that
must wait (bsp, ssp) sleep on `changed` outside of the gate, and are told `Blocked` after a few seconds so that a
connection is never mistaken for a dead one.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import structlog

from elastrec.platform.specs.errors import CheckpointError, ElastrecError, IncompatibleError, TransportError
from elastrec.platform.specs.job import JobSpec
from elastrec.platform.transport.job_messages import Message, RoutingTable, TableUsage, WorkerProcess
from elastrec.trainers.parameter_server.consistency import Consistency, Round
from elastrec.trainers.parameter_server.dense_slice import DenseSlice, layout_size, slice_bounds
from elastrec.trainers.parameter_server.found_rows import FoundRows
from elastrec.trainers.parameter_server.gate import Gate
from elastrec.trainers.parameter_server.global_batch import GlobalBatch, Pushed
from elastrec.trainers.parameter_server.gradients import Gradient, average
from elastrec.trainers.parameter_server.messages import (
    Accepted,
    Applied,
    Blocked,
    GetStats,
    InitDense,
    Initialised,
    Join,
    Leave,
    Pull,
    Push,
    PushPull,
    Rows,
    Stale,
    Stamp,
    Stats,
)
from elastrec.trainers.parameter_server.plan import TablePlan, plan_of_job
from elastrec.trainers.parameter_server.requests import PUSH_ARRAYS, check_ids, check_push
from elastrec.trainers.parameter_server.storage import RowStore
from elastrec.trainers.parameter_server.storage.store import MOST_STRIPES
from elastrec.trainers.threads import granted_threads

Array = np.ndarray[Any, Any]
DenseSource = Callable[[DenseSlice], list[str]]
"""Overwrites what it knows of a slice, returns the names of parameters that it does not know."""

log = structlog.get_logger(__name__)

_PATIENCE_SECONDS = 5.0


@dataclass
class _Sender:
    """The pushes of one worker process.

    Attributes:
        taken: the highest sequence whose round is complete; `applied`: the highest that is in the parameters.
        waiting: sequences that are not applied yet.
    """

    taken: int = -1
    applied: int = -1
    waiting: set[int] = field(default_factory=set)


@dataclass
class _Step:
    """One step of bsp.

    Attributes:
        round: pushes whose workers may go on after it; `pushes`: those that it applies, of this round and earlier ones.
    """

    round: list[Pushed]
    pushes: list[Pushed]


@dataclass(frozen=True)
class Frozen:
    """A server's model of one moment.

    Attributes:
        owned: buckets that the server answers for; stores: with those of their buckets that are frozen.
    """

    owned: list[int]
    stores: list[tuple[RowStore, list[int]]]
    dense: DenseSlice | None
    generation: int

    def thaw(self) -> None:
        """Gives up what was not copied; may be called at any time, and again."""
        for store, buckets in self.stores:
            store.thaw(buckets)


def stripes_for(cores: int) -> int:
    """Locks of a store: one for one core, else four per core, so that two requests seldom want the same one."""
    return 1 if cores <= 1 else min(MOST_STRIPES, 4 * cores)


def _counts_of(store: RowStore, counts: Array) -> Array:
    """A store's part of a request's counts."""
    part: Array = counts[store.group.first_table : store.group.end_table]
    return part


def _process(stamp: Stamp) -> WorkerProcess:
    return WorkerProcess(stamp.worker, stamp.incarnation)


@dataclass(frozen=True)
class Place:
    """What one server is responsible for under a routing table."""

    server: int
    servers: int
    owned: Array  # [V] bool

    @staticmethod
    def under(routing: RoutingTable, name: str) -> Place:
        """Raises ElastrecError when the routing table does not name the server."""
        if name not in routing.servers:
            raise ElastrecError(f"the routing table of epoch {routing.epoch} names {routing.servers}, not {name!r}")
        index = routing.servers.index(name)
        return Place(index, len(routing.servers), np.asarray(routing.owners) == index)

    def same_as(self, other: Place) -> bool:
        return (self.server, self.servers) == (other.server, other.servers) and np.array_equal(self.owned, other.owned)


class ParameterServer:
    """Everything one server holds. Thread-safe.

    Args:
        name: the pod's name, as routing tables have it.
        spec: the job.
        wall_clock: seconds since the epoch, for eviction.
        capacity_rows: per table group; default: what the machine could hold.
        cores: that serve at once; default: what the pod was granted.

    Attributes:
        transfers: see Heartbeat.
    """

    def __init__(
        self,
        name: str,
        spec: JobSpec,
        *,
        plan: TablePlan | None = None,
        wall_clock: Callable[[], float] = time.time,
        capacity_rows: int | None = None,
        cores: int | None = None,
    ) -> None:
        self.name = name
        self.spec = spec
        self.plan = plan or plan_of_job(spec)
        self.now_seconds = wall_clock
        self._capacity_rows = capacity_rows
        self._stripes = stripes_for(granted_threads(os.environ) if cores is None else cores)
        self.gate = Gate()
        self.changed = threading.Condition(threading.RLock())
        self._dense_lock = threading.Lock()
        self.epoch, self.generation, self.ready = -1, -1, False
        self.transfers = 0
        self._frozen: Frozen | None = None
        self.place: Place | None = None
        self.stores: list[RowStore] = []
        self.dense: DenseSlice | None = None
        self._dense_source: DenseSource | None = None
        self._dense_trained = False
        self._pulls = self._pushes = self._rounds = 0
        self._forget_workers()

    def _forget_workers(self) -> None:
        self._consistency = Consistency(self.spec.training.consistency.mode, self.spec.training.consistency.staleness)
        self._senders: dict[WorkerProcess, _Sender] = {}
        self._held: dict[int, Pushed] = {}
        self._found = FoundRows()
        self._next_token = 0
        self._steps: deque[_Step] = deque()
        self._is_stepping = False
        training = self.spec.training
        is_bsp = training.consistency.mode == "bsp"
        self._batch = GlobalBatch(training.batch_size * self.spec.resources.worker.count if is_bsp else 0)

    # What the master directs

    def empty_stores(self, place: Place) -> list[RowStore]:
        """Fresh stores for a place; to be filled and then given to `become`."""
        return [
            RowStore(self.plan, group, place.owned, self._capacity_rows, self._stripes) for group in self.plan.groups
        ]

    def become(
        self,
        place: Place,
        routing: RoutingTable,
        generation: int,
        stores: list[RowStore],
        dense: DenseSlice | None = None,
        dense_source: DenseSource | None = None,
    ) -> None:
        """Forgets everything and starts to serve with these contents.

        Args:
            dense_source: knows the record's dense values, should a worker's network have another layout than `dense`.
        """
        with self.gate.closed(), self.changed:
            self.place, self.stores, self.dense, self._dense_source = place, stores, dense, dense_source
            self._dense_trained = False
            self.epoch, self.generation, self.ready = routing.epoch, generation, True
            self._forget_workers()
            self.changed.notify_all()

    def start_empty(self, routing: RoutingTable, generation: int) -> None:
        """Serves from nothing: rows come from their hashes, dense values from the first worker."""
        place = Place.under(routing, self.name)
        self.become(place, routing, generation, self.empty_stores(place))

    def suspend(self) -> None:
        """Answers Stale until the next `become`."""
        with self.gate.closed(), self.changed:
            self.ready = False
            self.changed.notify_all()

    def forget(self) -> None:
        """Frees the model and answers Stale until the next `become`."""
        with self.gate.closed(), self.changed:
            self.ready, self.place = False, None
            self.stores, self.dense, self._dense_source, self._frozen = [], None, None, None
            self._forget_workers()
            self.changed.notify_all()

    def adopt(self, routing: RoutingTable, generation: int, members: Sequence[WorkerProcess], version: int) -> None:
        """Takes a directive that orders no restore; another share of the rows suspends the server until one does.

        Args:
            members, version: of the directive; see Consistency.confirm.
        """
        with self.gate.closed(), self.changed:
            if not self.ready:
                return
            assert self.place is not None
            if not self.place.same_as(Place.under(routing, self.name)):
                log.warning("suspended", reason="another share of the buckets without a restore", epoch=routing.epoch)
                self.ready = False
            self.epoch, self.generation = routing.epoch, generation
            for worker in self._consistency.confirm(members, version):
                void, rounds = self._consistency.drop(worker)
                self._drop(worker, void)
                self._queue(rounds)
            self._take_steps()
            self.changed.notify_all()

    def _drop(self, worker: WorkerProcess, void: list[int]) -> None:
        """Voids what a worker has pushed and is not applied: the master has given its shards to others."""
        for token in void:
            del self._held[token]
        self._batch.drop(worker)
        self._found.forget(worker)
        sender = self._senders.get(worker, _Sender())
        log.info("member_dropped", worker=worker.pod, incarnation=worker.incarnation, pushes_void=len(sender.waiting))
        sender.waiting.clear()

    def freeze(self) -> Frozen:
        """What the server holds, of this moment, for a copy while requests go on; `Frozen.thaw` ends it.

        Raises:
            CheckpointError: there is nothing yet.
        """
        with self.gate.closed(), self.changed:
            if not self.ready or self.place is None:
                raise CheckpointError(f"server {self.name} has nothing to save: it has not restored yet")
            frozen = Frozen(
                owned=np.flatnonzero(self.place.owned).tolist(),
                stores=[(store, np.flatnonzero(store.owned).tolist()) for store in self.stores],
                dense=None if self.dense is None else self.dense.copy(),
                generation=self.generation,
            )
            for store, buckets in frozen.stores:
                store.freeze(buckets)
            self._frozen = frozen
            return frozen

    def thaw(self) -> None:
        """Gives up a copy that is under way: it fails."""
        with self.changed:
            frozen = self._frozen
        if frozen is not None:
            frozen.thaw()

    def evict(self) -> None:
        """Drops what was not seen for long, in steps between which requests are served."""
        for store in list(self.stores):
            steps, dropped = store.eviction_steps(self.now_seconds()), 0
            while True:
                with self.gate.passed():
                    step = next(steps, None)
                if step is None:
                    break
                dropped += step
            if dropped:
                log.info("evicted", entries=dropped, rows_left=store.rows, group=store.group.index)

    # Requests

    def array_handlers(self) -> dict[type[msgspec.Struct], Any]:
        """For RpcServer."""
        return {
            Pull: self.pull,
            Push: self.push,
            PushPull: self.push_pull,
            InitDense: self.init_dense,
            Join: self.join,
            Leave: self.leave,
        }

    def _stale(self, stamp: Stamp) -> Stale | None:
        if self.ready and stamp.epoch == self.epoch and stamp.generation == self.generation:
            return None
        return Stale(epoch=self.epoch, generation=self.generation, ready=self.ready)

    def _not_named(self) -> Stale:
        # A list that names the worker may be on its way.
        return Stale(epoch=self.epoch, generation=self.generation, ready=self.ready, named=False)

    def pull(self, request: Pull, arrays: list[Array]) -> tuple[Message, list[Array]]:
        """See messages."""
        return self._pull(request, arrays, time.monotonic() + _PATIENCE_SECONDS)

    def push(self, request: Push, arrays: list[Array]) -> tuple[Message, list[Array]]:
        """See messages."""
        return self._push(request, arrays, time.monotonic() + _PATIENCE_SECONDS)

    def push_pull(self, request: PushPull, arrays: list[Array]) -> tuple[Message, list[Array]]:
        """See messages."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        answer, nothing = self._push(request.push, arrays[:PUSH_ARRAYS], deadline)
        if not isinstance(answer, Applied):
            return answer, nothing
        return self._pull(request.pull, arrays[PUSH_ARRAYS:], deadline, applied=answer.sequence)

    def _pull(
        self, request: Pull, arrays: list[Array], deadline: float, applied: int = -1
    ) -> tuple[Message, list[Array]]:
        counts, ids = check_ids(self.plan, arrays)
        stamp, worker = request.stamp, _process(request.stamp)
        with self.changed:
            while True:
                if stale := self._stale(stamp):
                    return stale, []
                if request.read_only:
                    break
                if not self._consistency.join(worker, stamp.version):
                    return self._not_named(), []
                # A step of bsp is seen whole or not at all.
                if self._consistency.may_pull(worker) and not self._is_stepping:
                    break
                if not self.changed.wait(deadline - time.monotonic()):
                    return Blocked(), []
            self._pulls += 1
            stores = self.stores
        flat = np.empty(
            sum(int(_counts_of(store, counts).sum()) * store.group.dimension for store in stores), np.float32
        )
        at, number, lookups = 0, 0, []
        for store in stores:
            mine = _counts_of(store, counts)
            end = at + int(mine.sum())
            out = flat[number : number + (end - at) * store.group.dimension].reshape(end - at, store.group.dimension)
            lookups.append(store.pull(mine, ids[at:end], read_only=request.read_only, out=out)[1])
            at, number = end, number + out.size
        if not request.read_only:
            with self.changed:
                self._found.remember(worker, counts, ids, lookups)
        if not request.dense:
            return Rows(applied=applied), [flat, np.empty(0, np.float32)]
        dense = self.dense
        if dense is None:
            raise TransportError("the dense parameters were asked for before any worker sent them (InitDense)")
        # Sent while others push: a step leaves this array alone (see DenseSlice).
        return Rows(applied=applied), [flat, dense.values]

    def _push(self, request: Push, arrays: list[Array], deadline: float) -> tuple[Message, list[Array]]:
        gradient = check_push(self.plan, arrays, request.samples)
        stamp, sequence, worker = request.stamp, request.sequence, _process(request.stamp)
        with self.gate.passed():
            with self.changed:
                if stale := self._stale(stamp):
                    return stale, []
                sender = self._senders.setdefault(worker, _Sender())
                is_new = sequence > sender.applied and sequence not in sender.waiting
                if is_new:
                    self._check_dense(gradient)
                    if not self._consistency.join(worker, stamp.version):
                        return self._not_named(), []
                    sender.waiting.add(sequence)
                    self._pushes += 1
                    if self._consistency.mode == "bsp":
                        token, self._next_token = self._next_token, self._next_token + 1
                        self._held[token] = Pushed(worker, sequence, gradient)
                        self._queue(self._consistency.push(worker, token))
            if is_new and self._consistency.mode != "bsp":
                self._apply_alone(Pushed(worker, sequence, gradient))
            elif is_new:
                self._take_steps()
        with self.changed:
            while sequence > sender.taken:
                if stale := self._stale(stamp):
                    return stale, []
                if sequence not in sender.waiting:
                    return Blocked(), []  # dropped: sent again, it is refused unless a newer list names the worker
                if not self.changed.wait(deadline - time.monotonic()):
                    return Blocked(), []
            return Applied(sequence=sender.applied), []

    def _check_dense(self, gradient: Gradient) -> None:
        expected = 0 if self.dense is None else len(self.dense.values)
        if len(gradient.dense) not in (0, expected):
            raise TransportError(f"a dense gradient of {len(gradient.dense)} elements for a slice of {expected}")

    def _apply_alone(self, push: Pushed) -> None:
        """A push of async or ssp, beside those of others; its worker's clock counts it once it is applied."""
        try:
            self._step([push])
        except BaseException:
            with self.changed:
                self._senders[push.worker].waiting.discard(push.sequence)
            raise
        with self.changed:
            sender = self._senders[push.worker]
            sender.taken = max(sender.taken, push.sequence)
            self._rounds += 1
            if self._consistency.is_member(push.worker):
                self._consistency.push(push.worker, 0)
            self.changed.notify_all()

    def _queue(self, rounds: list[Round]) -> None:
        """Rounds of bsp that are complete, to be applied in this order by `_take_steps`."""
        for pushes in rounds:
            held = [self._held.pop(token) for _, token in pushes]
            self._steps.append(_Step(held, self._batch.add(held)))
        if self._consistency.mode == "bsp" and not self._consistency.members:
            self._steps.append(_Step([], self._batch.take()))  # nobody is left who could fill the step

    def _take_steps(self) -> None:
        """Applies what is queued, unless another thread is at it. Inside the gate."""
        with self.changed:
            if self._is_stepping or not self._steps:
                return
            self._is_stepping = True
        try:
            while True:
                with self.changed:
                    if not self._steps:
                        # Before anybody may queue another one.
                        self._is_stepping = False
                        self.changed.notify_all()
                        return
                    step = self._steps.popleft()
                self._step(step.pushes)
                with self.changed:
                    for push in step.round:
                        sender = self._senders[push.worker]
                        sender.taken = max(sender.taken, push.sequence)
                    self._rounds += bool(step.round)
                    self.changed.notify_all()
        except BaseException:
            with self.changed:
                self._is_stepping = False
                self.changed.notify_all()
            raise

    def _step(self, pushes: Sequence[Pushed]) -> None:
        """One step of the optimisers with the mean of these pushes; without any, none."""
        if not pushes:
            return
        gradient = average([push.gradient for push in pushes])
        known = None
        if len(pushes) == 1:
            with self.changed:
                known = self._found.take(pushes[0].worker, gradient)
        now = self.now_seconds()
        for index, (store, group) in enumerate(zip(self.stores, gradient.groups, strict=True)):
            if len(group.ids):
                lookup = known[index] if known else None
                store.push(group.counts, group.ids, group.sightings, group.gradients, now, lookup)
        with self._dense_lock:
            if len(gradient.dense) and self.dense is not None:
                self.dense.apply(gradient.dense)
                self._dense_trained = True
        with self.changed:
            for push in pushes:
                sender = self._senders[push.worker]
                sender.waiting.discard(push.sequence)
                sender.applied = max(sender.applied, push.sequence)

    def init_dense(self, request: InitDense, arrays: list[Array]) -> tuple[Message, list[Array]]:
        """See messages."""
        with self.gate.passed(), self.changed, self._dense_lock:
            if stale := self._stale(request.stamp):
                return stale, []
            assert self.place is not None
            if self.dense is not None and self.dense.layout == request.layout:
                return Initialised(fresh=False, steps=self.dense.steps), []
            if self._dense_trained:
                raise IncompatibleError(
                    "the network of this worker has other dense parameters than the one being trained"
                )
            start, end = slice_bounds(layout_size(request.layout), self.place.server, self.place.servers)
            if len(arrays) != 1 or arrays[0].dtype != np.float32 or arrays[0].shape != (end - start,):
                raise IncompatibleError(
                    f"InitDense needs one float32 array of {end - start} elements, [{start}, {end})"
                )
            dense = DenseSlice(request.layout, start, arrays[0], self.spec.optimizers.dense)
            fresh = dense.names() if self._dense_source is None else self._dense_source(dense)
            self.dense = dense
            log.info("dense_initialised", start=start, end=end, parameters=len(request.layout), fresh=len(fresh))
            return Initialised(fresh=True, steps=dense.steps), []

    def join(self, request: Join, arrays: list[Array]) -> tuple[Message, list[Array]]:
        with self.changed:
            if stale := self._stale(request.stamp):
                return stale, []
            if not self._consistency.join(_process(request.stamp), request.stamp.version):
                return self._not_named(), []
            return Accepted(), []

    def leave(self, request: Leave, arrays: list[Array]) -> tuple[Message, list[Array]]:
        worker = _process(request.stamp)
        with self.gate.passed():
            with self.changed:
                if stale := self._stale(request.stamp):
                    return stale, []
                sender = self._senders.get(worker, _Sender())
                if request.sequence > sender.applied and request.sequence not in sender.waiting:
                    return self._not_named(), []  # dropped with the worker
                self._queue(self._consistency.leave(worker))
                self.changed.notify_all()
            self._take_steps()
        with self.changed:
            while self._is_stepping:
                # Another thread applies what the worker asks for.
                self.changed.wait()
            return Applied(sequence=sender.applied), []

    # Accounting

    def usage(self) -> list[TableUsage]:
        """Rows and bytes per table."""
        return [usage for store in list(self.stores) for usage in store.usage()]

    def stats(self, request: GetStats) -> Stats:
        with self.changed:
            return Stats(
                epoch=self.epoch,
                generation=self.generation,
                tables=self.usage(),
                dense_parameters=0 if self.dense is None else len(self.dense.values),
                pulls=self._pulls,
                pushes=self._pushes,
                rounds=self._rounds,
                members=[worker.pod for worker in self._consistency.members],
            )
