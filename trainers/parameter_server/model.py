"""Reading and changing a server's part of the model: the rows of its virtual buckets, and its dense buckets.

Rows are read and changed concurrently, with the locks of their stripes (`storage`); the dense buckets have a lock of
their own. Workers, rounds and marks of applied pushes do not belong here.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import structlog

from elastrec.platform.specs.errors import IncompatibleError, TransportError
from elastrec.platform.specs.job import JobSpec
from elastrec.platform.transport.messages.job import TableUsage
from elastrec.trainers.parameter_server.dense.layout import dense_runs, layout_size, run_size
from elastrec.trainers.parameter_server.dense.store import DenseBucket, DenseStore
from elastrec.trainers.parameter_server.messages import InitDense, Initialised, Parameter
from elastrec.trainers.parameter_server.plan import TablePlan
from elastrec.trainers.parameter_server.serving.gradients import Gradient, select
from elastrec.trainers.parameter_server.serving.place import Place
from elastrec.trainers.parameter_server.storage import Lookup, RowStore
from elastrec.trainers.parameter_server.storage.memory import UsedRegions
from elastrec.trainers.parameter_server.storage.store import MOST_STRIPES

Array = np.ndarray[Any, Any]

log = structlog.get_logger(__name__)


class DenseSource(Protocol):
    """The dense parameters of the record at `uri`."""

    @property
    def uri(self) -> str: ...

    def __call__(self, dense: DenseStore) -> list[str]:
        """Overwrites a store with them; returns the names of parameters that the record does not have."""
        ...


def stripes_for(cores: int) -> int:
    """Number of a store's locks: one for one core, otherwise four per core, so that two requests seldom need the same
    one."""
    return 1 if cores <= 1 else min(MOST_STRIPES, 4 * cores)


def make_stores(
    plan: TablePlan, owned: Array, capacity_rows: int | None, stripes: int, used: UsedRegions | None = None
) -> list[RowStore]:
    """Fresh stores, one for each table group; arguments as RowStore's."""
    return [RowStore(plan, group, owned, capacity_rows, stripes, used) for group in plan.groups]


class Model:
    """The parameters that a server holds under one place. Thread-safe.

    Args:
        stores: one for each table group.
        dense: None: the first worker sends it.
        dense_source: knows a record's dense values, should a worker's network have another layout than `dense`.
    """

    def __init__(
        self,
        spec: JobSpec,
        place: Place,
        stores: list[RowStore],
        dense: DenseStore | None = None,
        dense_source: DenseSource | None = None,
    ) -> None:
        self.place, self.stores, self.dense = place, stores, dense
        self._spec = spec
        self._dense_source = dense_source
        self._dense_lock = threading.Lock()
        self._dense_sent = self._dense_trained = False

    def pull(self, counts: Array, ids: Array, *, read_only: bool) -> tuple[Array, list[Lookup]]:
        """Values [sum of U_g * D_g] float32 of ids [U] int64, counts [T] of them per table, and their lookups."""
        sizes = [sum(_part_of(store, counts).tolist()) for store in self.stores]
        values = np.empty(
            sum(size * store.group.dimension for size, store in zip(sizes, self.stores, strict=True)), np.float32
        )
        at, number, lookups = 0, 0, []
        for size, store in zip(sizes, self.stores, strict=True):
            end, last = at + size, number + size * store.group.dimension
            out = values[number:last].reshape(size, store.group.dimension)
            lookups.append(store.pull(_part_of(store, counts), ids[at:end], read_only=read_only, out=out)[1])
            at, number = end, last
        return values, lookups

    def dense_values(self) -> Array:
        """Values of this server's dense buckets [S] float32; a step does not change the array (see DenseStore).

        Raises:
            TransportError: no worker has sent them yet.
        """
        if self.dense is None:
            raise TransportError("the dense parameters were asked for before any worker sent them (InitDense)")
        return self.dense.values

    def check_dense(self, gradient: Gradient) -> None:
        """Raises TransportError when a gradient's dense part does not fit this server's dense buckets."""
        expected = 0 if self.dense is None else len(self.dense.values)
        if len(gradient.dense) not in (0, expected):
            raise TransportError(f"a dense gradient of {len(gradient.dense)} elements for a server of {expected}")

    def apply(self, gradient: Gradient, lookups: Sequence[Lookup] | None, now_seconds: float) -> None:
        """One step of the optimisers.

        Args:
            lookups: of a pull of the same ids, per table group.
        """
        for index, (store, group) in enumerate(zip(self.stores, gradient.groups, strict=True)):
            if len(group.ids):
                lookup = lookups[index] if lookups else None
                store.push(
                    group.counts, group.ids, group.sightings, group.gradients, now_seconds, lookup, gradient.rate_scale
                )
        with self._dense_lock:
            dense, self._dense_trained = self.dense, self._dense_trained or len(gradient.dense) > 0
        if len(gradient.dense) and dense is not None:
            dense.apply(gradient.dense, gradient.dense_buckets, gradient.rate_scale)

    def part_of(self, gradient: Gradient, places: Array) -> Gradient:
        """The part of a gradient in some buckets: places [V + B] bool, virtual and then dense ones."""
        rows = [
            places[store.look_up(group.counts, group.ids).request.buckets]
            for store, group in zip(self.stores, gradient.groups, strict=True)
        ]
        buckets, dense = places[len(self.place.owned) :], gradient.dense[:0]
        if self.dense is not None and len(gradient.dense) and buckets.any():
            dense = self.dense.part_of(gradient.dense, buckets)
        return select(gradient, rows, dense, buckets)

    def init_dense(self, request: InitDense, arrays: list[Array]) -> Initialised:
        """Sets a worker's initial values, unless there are values already.

        Raises:
            IncompatibleError: the parameters differ from those in training, or the array is not this server's share.
        """
        with self._dense_lock:
            if self.dense is not None and self.dense.layout == request.layout:
                self._dense_sent = True
                return Initialised(fresh=False, steps=self.dense.steps)
            if self._dense_trained:
                raise IncompatibleError(
                    "the network of this worker has other dense parameters than the one being trained"
                )
            size = run_size(dense_runs(self.place.dense_owned, layout_size(request.layout)))
            if len(arrays) != 1 or arrays[0].dtype != np.float32 or arrays[0].shape != (size,):
                raise IncompatibleError(
                    f"InitDense needs one float32 array of the {size} elements that this server owns"
                )
            dense = DenseStore(request.layout, self.place.dense_owned, arrays[0], self._spec.optimizers.dense)
            fresh = dense.names() if self._dense_source is None else self._dense_source(dense)
            self.dense, self._dense_sent = dense, True
            log.info("dense_initialised", elements=size, parameters=len(request.layout), fresh=len(fresh))
            return Initialised(fresh=True, steps=dense.steps)

    @property
    def untouched_record(self) -> str:
        """URI of the record with the dense values, until a worker has sent those of its network; empty without one."""
        return "" if self._dense_sent or self._dense_source is None else self._dense_source.uri

    def take_in_dense(
        self,
        new: Array,
        layout: Sequence[Parameter] | None,
        buckets: Sequence[DenseBucket],
        source: DenseSource | None,
    ) -> None:
        """Takes in dense buckets of other servers. The place contains them already.

        If the servers have different layouts, then a worker has sent its parameters to some of them only, and none has
        trained. All values are dropped, and the worker sends them again, because the owners of buckets have changed.

        Args:
            new: [B] bool, the buckets.
            layout: of the other servers; empty: they have no values yet. None: they have different ones.
            source: of the values, if no worker has sent its parameters to one of these servers.
        """
        with self._dense_lock:
            dense, keeps_some = self.dense, bool((self.place.dense_owned & ~new).any())
            self._dense_source, self._dense_sent = self._dense_source or source, self._dense_sent and source is None
            own = (dense.layout if dense is not None else []) if keeps_some else layout
            if new.any() and (not layout or own != list(layout)):
                self.dense = None
                return
            if dense is None or not keeps_some:
                nothing = np.zeros_like(new), np.empty(0, np.float32)
                dense = DenseStore(layout, *nothing, self._spec.optimizers.dense) if layout else None
            if dense is not None:
                dense.take_in(buckets)
            self.dense = dense

    def usage(self) -> list[TableUsage]:
        """Rows and bytes per table of the place's buckets; moving buckets count at the server that serves them."""
        return [usage for store in self.stores for usage in store.usage(self.place.owned)]


def _part_of(store: RowStore, counts: Array) -> Array:
    """A store's part of a request's counts."""
    part: Array = counts[store.group.first_table : store.group.end_table]
    return part
