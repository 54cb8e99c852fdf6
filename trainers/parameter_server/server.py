"""The server's state and its request handlers: rows, dense slice, consistency, exactly-once pushes.

One lock orders all requests: the kernels take well under a millisecond, and a server that should do more is split in
two. Requests that must wait (bsp, ssp) sleep on the lock's condition, and are told `Blocked` after a few seconds so
that a connection is never mistaken for a dead one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import structlog

from elastrec.platform.specs.errors import ElastrecError, IncompatibleError, TransportError
from elastrec.platform.specs.job import JobSpec
from elastrec.platform.transport.job_messages import Message, RoutingTable, TableUsage, WorkerProcess
from elastrec.trainers.parameter_server.consistency import Consistency, Round
from elastrec.trainers.parameter_server.dense_slice import DenseSlice, layout_size, slice_bounds
from elastrec.trainers.parameter_server.found_rows import FoundRows
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
from elastrec.trainers.parameter_server.row_store import RowStore

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

    Attributes:
        is_frozen: a part of a record is being written: requests wait.
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
    ) -> None:
        self.name = name
        self.spec = spec
        self.plan = plan or plan_of_job(spec)
        self.now_seconds = wall_clock
        self._capacity_rows = capacity_rows
        self.changed = threading.Condition(threading.RLock())
        self.epoch, self.generation, self.ready = -1, -1, False
        self.is_frozen = False
        self.transfers = 0
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
        training = self.spec.training
        is_bsp = training.consistency.mode == "bsp"
        self._batch = GlobalBatch(training.batch_size * self.spec.resources.worker.count if is_bsp else 0)

    # What the master directs

    def empty_stores(self, place: Place) -> list[RowStore]:
        """Fresh stores for a place; to be filled and then given to `become`."""
        return [
            RowStore(self.plan, group, self.spec.optimizers.rows, place.owned, self._capacity_rows)
            for group in self.plan.groups
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
        with self.changed:
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
        with self.changed:
            self.ready = False
            self.changed.notify_all()

    def forget(self) -> None:
        """Frees the model and answers Stale until the next `become`."""
        with self.changed:
            self.ready, self.place = False, None
            self.stores, self.dense, self._dense_source = [], None, None
            self._forget_workers()
            self.changed.notify_all()

    def adopt(self, routing: RoutingTable, generation: int, members: Sequence[WorkerProcess], version: int) -> None:
        """Takes a directive that orders no restore; another share of the rows suspends the server until one does.

        Args:
            members, version: of the directive; see Consistency.confirm.
        """
        with self.changed:
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
                self._apply(rounds)
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

    def thaw(self) -> None:
        """Answers requests again, whether or not a part is still being written: it is void then."""
        with self.changed:
            self.is_frozen = False
            self.changed.notify_all()

    def evict(self) -> None:
        """Drops what was not seen for long; cheap when no table evicts."""
        with self.changed:
            for store in self.stores:
                dropped = store.evict(self.now_seconds())
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

    def _wait_until_thawed(self, seconds: float | None = None) -> bool:
        return self.changed.wait_for(lambda: not self.is_frozen, seconds)

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
                if not self._wait_until_thawed(deadline - time.monotonic()):
                    return Blocked(), []
                if stale := self._stale(stamp):
                    return stale, []
                if request.read_only:
                    break
                if not self._consistency.join(worker, stamp.version):
                    return self._not_named(), []
                if self._consistency.may_pull(worker):
                    break
                if not self.changed.wait(deadline - time.monotonic()):
                    return Blocked(), []
            self._pulls += 1
            parts, at, rows = [], 0, np.empty(len(ids), np.int64)
            for store in self.stores:
                mine = counts[store.group.first_table : store.group.end_table]
                end = at + int(mine.sum())
                values = store.pull(mine, ids[at:end], read_only=request.read_only, rows=rows[at:end])
                parts.append(values.reshape(-1))
                at = end
            if not request.read_only:
                self._found.remember(worker, counts, ids, rows, self.stores)
            flat = parts[0] if len(parts) == 1 else np.concatenate(parts)
            if not request.dense:
                return Rows(applied=applied), [flat, np.empty(0, np.float32)]
            if self.dense is None:
                raise TransportError("the dense parameters were asked for before any worker sent them (InitDense)")
            # Sent after the lock is released, while others push: a step leaves this array alone (see DenseSlice).
            return Rows(applied=applied), [flat, self.dense.values]

    def _push(self, request: Push, arrays: list[Array], deadline: float) -> tuple[Message, list[Array]]:
        gradient = check_push(self.plan, arrays, request.samples)
        stamp, sequence = request.stamp, request.sequence
        with self.changed:
            if not self._wait_until_thawed(deadline - time.monotonic()):
                return Blocked(), []
            if stale := self._stale(stamp):
                return stale, []
            worker = _process(stamp)
            sender = self._senders.get(worker)
            if sender is None:
                sender = self._senders[worker] = _Sender()
            if sequence > sender.applied and sequence not in sender.waiting:
                self._check_dense(gradient)
                if not self._consistency.join(worker, stamp.version):
                    return self._not_named(), []
                token = self._next_token
                self._next_token += 1
                self._held[token] = Pushed(worker, sequence, gradient)
                sender.waiting.add(sequence)
                self._pushes += 1
                self._apply(self._consistency.push(worker, token))
            while sequence > sender.taken:
                if not self.changed.wait(deadline - time.monotonic()):
                    return Blocked(), []
                if stale := self._stale(stamp):
                    return stale, []
                if sequence > sender.taken and sequence not in sender.waiting:
                    return Blocked(), []  # dropped: sent again, it is refused unless a newer list names the worker
            return Applied(sequence=sender.applied), []

    def _check_dense(self, gradient: Gradient) -> None:
        expected = 0 if self.dense is None else len(self.dense.values)
        if len(gradient.dense) not in (0, expected):
            raise TransportError(f"a dense gradient of {len(gradient.dense)} elements for a slice of {expected}")

    def _apply(self, rounds: list[Round]) -> None:
        for pushes in rounds:
            held = [self._held.pop(token) for _, token in pushes]
            for push in held:
                sender = self._senders[push.worker]
                sender.taken = max(sender.taken, push.sequence)
            self._step(self._batch.add(held))
            self._rounds += 1
        if self._consistency.mode == "bsp" and not self._consistency.members:
            self._step(self._batch.take())  # nobody is left who could fill the step
        # Async never waits, so nobody has to be woken.
        if rounds and self._consistency.mode != "async":
            self.changed.notify_all()

    def _step(self, pushes: Sequence[Pushed]) -> None:
        """One step of the optimisers with the mean of these pushes; without any, none."""
        if not pushes:
            return
        gradient = average([push.gradient for push in pushes])
        known = self._found.of(pushes[0].worker, gradient, self.stores) if len(pushes) == 1 else None
        now = self.now_seconds()
        for index, (store, group) in enumerate(zip(self.stores, gradient.groups, strict=True)):
            if len(group.ids):
                rows = known[index] if known else None
                store.push(group.counts, group.ids, group.sightings, group.gradients, now, rows)
        if len(gradient.dense) and self.dense is not None:
            self.dense.apply(gradient.dense)
            self._dense_trained = True
        for push in pushes:
            sender = self._senders[push.worker]
            sender.waiting.discard(push.sequence)
            sender.applied = max(sender.applied, push.sequence)

    def init_dense(self, request: InitDense, arrays: list[Array]) -> tuple[Message, list[Array]]:
        """See messages."""
        with self.changed:
            self._wait_until_thawed()
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
            self._wait_until_thawed()
            if stale := self._stale(request.stamp):
                return stale, []
            if not self._consistency.join(_process(request.stamp), request.stamp.version):
                return self._not_named(), []
            return Accepted(), []

    def leave(self, request: Leave, arrays: list[Array]) -> tuple[Message, list[Array]]:
        with self.changed:
            self._wait_until_thawed()
            if stale := self._stale(request.stamp):
                return stale, []
            worker = _process(request.stamp)
            sender = self._senders.get(worker, _Sender())
            if request.sequence > sender.applied and request.sequence not in sender.waiting:
                return self._not_named(), []  # dropped with the worker
            self._apply(self._consistency.leave(worker))
            self.changed.notify_all()
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
