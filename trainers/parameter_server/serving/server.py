"""One parameter server, directed by the master. `handlers` serves its requests."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import structlog

from elastrec.platform.specs.errors import CheckpointError, ElastrecError
from elastrec.platform.specs.job import JobSpec
from elastrec.platform.transport.messages.directive import RoutingTable, WorkerProcess
from elastrec.trainers.parameter_server.dense.store import DenseBucket, DenseStore
from elastrec.trainers.parameter_server.messages import Parameter
from elastrec.trainers.parameter_server.model import DenseSource, Model, make_stores, stripes_for
from elastrec.trainers.parameter_server.plan import TablePlan, plan_of_job
from elastrec.trainers.parameter_server.serving.attendance import Attendance
from elastrec.trainers.parameter_server.serving.found_rows import FoundRows
from elastrec.trainers.parameter_server.serving.handlers import RequestHandlers
from elastrec.trainers.parameter_server.serving.marks import BucketMarks, Marks
from elastrec.trainers.parameter_server.serving.place import Frozen, Left, Place, marks_within
from elastrec.trainers.parameter_server.storage import RowStore
from elastrec.trainers.parameter_server.storage.memory import UsedRegions
from elastrec.trainers.threads import threads_for

__all__ = ["Frozen", "ParameterServer", "Place"]

Array = np.ndarray[Any, Any]

log = structlog.get_logger(__name__)


class ParameterServer(RequestHandlers):
    """The complete state of one server. Thread-safe.

    Args:
        name: the pod's name, as in routing tables.
        spec: the job.
        clock: the job's, seconds since the epoch, for eviction.
        capacity_rows: per table group; default: the capacity of the machine's memory.
        granted_cores: with which it starts. It has locks for as many, or for as many as the job file allows later if
            that is more (`JobSpec.most_server_cores`).

    Attributes:
        transfers: see Heartbeat.
    """

    def __init__(
        self,
        name: str,
        spec: JobSpec,
        *,
        plan: TablePlan | None = None,
        clock: Callable[[], float] = time.time,
        capacity_rows: int | None = None,
        granted_cores: float = 1.0,
    ) -> None:
        super().__init__(spec, plan or plan_of_job(spec), clock)
        self.name = name
        self._capacity_rows = capacity_rows
        self._stripes = stripes_for(threads_for(max(granted_cores, spec.most_server_cores)))
        self.transfers = 0
        # Future buckets that it does not serve yet, and their stores.
        self._staged: tuple[Array, list[RowStore]] | None = None
        # The table group and bucket with which the next eviction begins.
        self._evicted_to = (0, 0)
        # A save that copies it keeps a reference, and releases it at its end.
        self._frozen: weakref.ref[Frozen] | None = None

    def empty_stores(self, place: Place, used: UsedRegions | None = None) -> list[RowStore]:
        """New stores for a place, to be filled and then passed to `become`.

        Args:
            used: see `forget`; unused memory is returned to the system.
        """
        stores = make_stores(self.plan, place.owned, self._capacity_rows, self._stripes, used)
        if used is not None:
            used.clear()
        return stores

    def become(
        self,
        place: Place,
        routing: RoutingTable,
        generation: int,
        stores: list[RowStore],
        dense: DenseStore | None = None,
        dense_source: DenseSource | None = None,
        marks: Sequence[BucketMarks] = (),
    ) -> None:
        """Discards everything and starts to serve with these contents.

        Args:
            dense_source: knows the record's dense values, should a worker's network have another layout than `dense`.
            marks: of the pushes in these contents; a bucket without marks has no pushes.
        """
        with self.gate.closed(), self.changed:
            self._begin(Model(self.spec, place, stores, dense, dense_source), marks)
            self._serve_under(routing, generation)

    def _begin(self, model: Model | None, marks: Sequence[BucketMarks] = ()) -> None:
        self.left = self._staged = None
        self.begin(model, marks)

    def _serve_under(self, routing: RoutingTable, generation: int) -> None:
        self.epoch, self.generation, self.ready = routing.epoch, generation, True
        self.routing = routing
        self.changed.notify_all()

    def start_empty(self, routing: RoutingTable, generation: int) -> None:
        """Serves without a record: initial rows come from their hashes, dense values from the first worker."""
        place = Place.under(routing, self.name)
        self.become(place, routing, generation, self.empty_stores(place))

    def suspend(self) -> None:
        """Answers Stale until the next `become`."""
        with self.gate.closed(), self.changed:
            self.ready = False
            self.changed.notify_all()

    def forget(self) -> UsedRegions:
        """Drops the model and answers Stale until the next `become`.

        Returns the memory of its rows, for new stores; it is freed with the last reference. Rows that a request still
        reads do not change.
        """
        with self.gate.closed(), self.changed:
            used = UsedRegions((store, store.regions) for store in self.stores)
            self.ready, self._frozen = False, None
            self._begin(None)
            self.changed.notify_all()
        return used

    def adopt(
        self,
        routing: RoutingTable,
        generation: int,
        members: Sequence[WorkerProcess],
        version: int,
        *,
        moves: bool = False,
    ) -> None:
        """Applies a directive without a restore; if the server's share changes, it is suspended until a restore.

        Args:
            members, version: of the directive; see Consistency.confirm.
            moves: whether buckets change their owners: the server then continues unchanged until the new owner requests
                them (`give_away`), so that no server waits for a directive.
        """
        with self.gate.closed(), self.changed:
            if not self.ready:
                return
            assert self.model is not None and self.routing is not None
            if generation == self.generation and routing.epoch < self.epoch:
                routing = self.routing  # a server that has taken over buckets has sent a newer one
            place = Place.under(routing, self.name)
            if moves and place.without(self.model.place).is_empty and not place.same_as(self.model.place):
                routing = self.routing
            elif not self.model.place.same_as(place):
                log.warning("suspended", reason="another share of the buckets without a restore", epoch=routing.epoch)
                self.ready = False
            self.epoch, self.generation, self.routing = routing.epoch, generation, routing
            for worker in self.pushes.confirm(members, version):
                self.forget_found(worker)
            self.take_steps()
            self.changed.notify_all()

    # Buckets that change servers; see `migration`

    def give_away(self, routing: RoutingTable, order_id: str) -> None:
        """Serves under a newer routing table; buckets of other owners stay in `left` until `drop_left`.

        If the table also gives it buckets of others, it answers Stale until it has taken them over. The contents of an
        earlier change of servers are dropped, because the next change begins only after its end. Unapplied pushes are
        sent again, laid out for the owners under that table. The gate is closed, and `changed` is held.

        Raises:
            ElastrecError: the routing table only gives the server buckets that it does not hold.
        """
        assert self.model is not None
        place = Place.under(routing, self.name) if self.name in routing.servers else Place.nothing(self.model.place)
        new, leaving = place.without(self.model.place), self.model.place.without(place)
        if leaving.is_empty and not new.is_empty:
            raise ElastrecError(
                f"server {self.name} is given buckets under epoch {routing.epoch} that it does not hold"
            )
        if not leaving.is_empty:
            self.drop_left()
            marks, dense, numbers = self.pushes.marks.values(), self.model.dense, np.flatnonzero(leaving.dense_owned)
            copies = [] if dense is None else dense.copies(numbers.tolist())
            if dense is not None:
                dense.drop(numbers.tolist())
            layout = [] if dense is None else dense.layout
            self.pushes.begin_again()
            self.left = Left(
                order_id, routing.epoch, leaving, self.pushes.attendance(), marks_within(marks, leaving), layout,
                copies, self.model.untouched_record,
            )  # fmt: skip
            kept = self.model.place.without(leaving)
            self._change_place(kept, marks_within(marks, kept))
            log.info(
                "given_away", buckets=int(leaving.owned.sum()), dense_buckets=len(numbers), epoch=routing.epoch
            )  # fmt: skip
        self._serve_under(routing, self.generation)
        self.ready = new.is_empty

    def _change_place(self, place: Place, marks: Sequence[BucketMarks]) -> None:
        assert self.model is not None
        self.model.place, self._found = place, FoundRows()
        self.pushes.marks = Marks(place.owned, place.dense_owned, marks)

    def drop_left_before(self, epoch: int, moving: str) -> None:
        """Drops `left` if a directive shows that its new owners have all of it.

        A server does not get every directive: it may miss the one between two changes of servers, and may get one from
        before a hand-over afterwards.

        Args:
            epoch: of the directive's routing table; moving: see Directive.
        """
        self._drop_left(lambda left: epoch >= left.epoch and moving != left.order_id)

    def drop_left(self) -> None:
        """Frees the memory of `left`, because its new owners have all of it."""
        self._drop_left(lambda left: True)

    def _drop_left(self, is_over: Callable[[Left], bool]) -> None:
        # Read and cleared in one step, because a hand-over in between would set another value.
        with self.changed:
            left, stores = self.left, self.stores
            if left is None or not is_over(left):
                return
            self.left = None
        _drop(stores, np.flatnonzero(left.place.owned))

    def stage(self, buckets: Array) -> list[RowStore]:
        """Stores for virtual buckets [b] that the server will own: they are copied into these and not served yet.

        Raises:
            ElastrecError: it holds one of them already.
        """
        self.unstage()
        with self.gate.closed(), self.changed:
            nothing = np.zeros(self.plan.virtual_buckets, np.bool_)
            stores = self.empty_stores(Place(nothing, nothing)) if self.model is None else self.model.stores
            if held := [bucket for bucket in buckets.tolist() if any(store.owned[bucket] for store in stores)]:
                raise ElastrecError(f"server {self.name} is to take over bucket {held[0]}, which it holds")
            for store in stores:
                for bucket in buckets.tolist():
                    store.bucket(bucket).own()
            self._staged = buckets, stores
            return stores

    def unstage(self) -> None:
        """Drops copied buckets that are not owned."""
        with self.changed:
            staged, self._staged = self._staged, None
        if staged is not None:
            _drop(staged[1], staged[0])

    def take_over(
        self,
        routing: RoutingTable,
        order_id: str,
        generation: int,
        attendances: Sequence[Attendance],
        marks: Sequence[BucketMarks],
        layout: Sequence[Parameter] | None,
        dense: Sequence[DenseBucket],
        dense_source: DenseSource | None,
    ) -> None:
        """Also serves the staged buckets, under a routing table that assigns them to this server.

        Pushes that are not applied come again, laid out for the owners under that table. Buckets that the table assigns
        to others are given away first, if nobody has requested them yet.

        Args:
            order_id: of the change of servers.
            attendances: of the servers that gave the buckets away.
            marks: of the new buckets, virtual and dense.
            layout, dense, dense_source: see Model.take_in_dense.

        Raises:
            ElastrecError: the routing table assigns others to it; nothing has changed.
        """
        place = Place.under(routing, self.name)
        with self.gate.closed(), self.changed:
            if self._staged is None:
                raise ElastrecError(f"server {self.name} has staged nothing that it could take over")
            buckets, stores = self._staged
            leaving = None if self.model is None else self.model.place.without(place)
            held = np.zeros(len(place.owned), np.bool_) if self.model is None else self.model.place.owned & place.owned
            held[buckets] = True
            if not np.array_equal(held, place.owned):
                raise ElastrecError(f"server {self.name} has staged other buckets than epoch {routing.epoch} gives it")
            if leaving is not None and not leaving.is_empty:
                self.give_away(routing, order_id)
            self._staged = None
            if self.model is None:
                new = place.dense_owned
                self.begin(Model(self.spec, place, stores), marks)
                self.pushes.attend(attendances)
            else:
                new = place.without(self.model.place).dense_owned
                self.pushes.begin_again()
                self.pushes.attend([self.pushes.attendance(), *attendances])
                self._change_place(place, [*self.pushes.marks.values(), *marks])
            assert self.model is not None
            self.model.take_in_dense(new, layout, dense, dense_source)
            self._serve_under(routing, generation)

    def freeze(self) -> Frozen:
        """A snapshot of the server, for a copy while requests continue; `Frozen.thaw` ends it.

        Raises:
            CheckpointError: there is nothing yet.
        """
        with self.gate.closed(), self.changed:
            model = self.model
            if not self.ready or model is None:
                raise CheckpointError(f"server {self.name} has nothing to save: it has not restored yet")
            frozen = Frozen(
                owned=np.flatnonzero(model.place.owned).tolist(),
                # Not all buckets of the stores, because moving ones are not this server's.
                stores=[(store, np.flatnonzero(model.place.owned).tolist()) for store in model.stores],
                dense=None if model.dense is None else model.dense.copy(),
                generation=self.generation,
                marks=self.pushes.marks.values(),
            )
            for store, buckets in frozen.stores:
                store.cuts.freeze(buckets)
            self._frozen = weakref.ref(frozen)
            return frozen

    def thaw(self) -> None:
        """Cancels a running copy, which then fails."""
        with self.changed:
            frozen = None if self._frozen is None else self._frozen()
        if frozen is not None:
            frozen.thaw()

    def evict(self, may_continue: Callable[[], bool] = lambda: True) -> bool:
        """Evicts rows that were not seen for long, in steps between which requests are served.

        Only rows of buckets that this server serves: those in `left` must not change, because a removed row's place is
        filled with another row, which a copy of the last changes would miss.

        Args:
            may_continue: called after each step; if it returns False, the next call begins with the bucket after this
                one.

        Returns whether the last bucket was reached.
        """
        first = reached = self._evicted_to

        def is_due(bucket: int) -> bool:
            nonlocal reached
            place, here = self.place, (store.group.index, bucket)
            if place is None or not place.owned[bucket] or here < first:
                return False
            reached = (store.group.index, bucket + 1)
            return True

        for store in list(self.stores):
            steps, dropped, goes_on = store.eviction_steps(self.now_seconds(), is_due), 0, True
            while goes_on:
                with self.gate.passed():
                    step = next(steps, None)
                if step is None:
                    break
                dropped += step
                goes_on = may_continue()
            if dropped:
                log.info("evicted", entries=dropped, rows_left=store.rows, group=store.group.index)
            if not goes_on:
                self._evicted_to = reached
                return False
        self._evicted_to = (0, 0)
        return True


def _drop(stores: Sequence[RowStore], buckets: Array) -> None:
    for store in stores:
        for bucket in buckets.tolist():
            store.bucket(bucket).drop()
