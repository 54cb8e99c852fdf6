"""Loads or compiles every kernel before the server registers, so that a first request does not wait for seconds."""

from __future__ import annotations

from typing import Any

import numpy as np

from elastrec.platform.specs.job import TableSpec
from elastrec.platform.specs.optimizers import OptimizerSpec
from elastrec.trainers.imports import frozen_afterwards
from elastrec.trainers.parameter_server.dense.rules import STATE_NAMES
from elastrec.trainers.parameter_server.dense.store import DenseStore
from elastrec.trainers.parameter_server.messages import Parameter
from elastrec.trainers.parameter_server.plan import make_plan
from elastrec.trainers.parameter_server.serving.gradients import Gradient, GroupGradient, average
from elastrec.trainers.parameter_server.storage import RowStore
from elastrec.trainers.parameter_server.storage.columns import row_columns
from elastrec.trainers.parameter_server.storage.copying import ROWS, Copied, copy_frozen
from elastrec.trainers.parameter_server.storage.lines import LineMaker
from elastrec.trainers.parameter_server.storage.loading import load, load_columns, reserve_rows, unload
from elastrec.trainers.parameter_server.storage.slabs import SlabLoader

Array = np.ndarray[Any, Any]


@frozen_afterwards()
def warm_kernels() -> None:
    """Runs a tiny request of every kind on separate stores, with read-only arrays as in frames."""
    settings = {"b": TableSpec(admit_after=2, evict_after=60.0)}
    plan = make_plan({"a": 2, "b": 2}, settings=settings, virtual_buckets=64)
    counts, ids = np.array([2], np.int32), np.array([3, 4], np.int64)
    gradients, sightings = np.ones((2, 2), np.float32), np.array([2, 1], np.int32)
    for array in (counts, ids, gradients, sightings):
        array.flags.writeable = False
    for kind in STATE_NAMES:
        optimizer = OptimizerSpec(kind=kind)
        dense = DenseStore([Parameter("w", (2,))], np.ones(1, np.bool_), np.zeros(2, np.float32), optimizer)
        dense.apply(gradients[0])
        dense.apply(gradients[0].copy())  # the mean of a round's gradients
    for group in plan.groups:
        store = RowStore(plan, group, np.ones(plan.virtual_buckets, np.bool_), capacity_rows=64)
        push = GroupGradient(counts, ids, gradients, sightings)
        mean = average([Gradient([push], gradients[0], 1), Gradient([push], gradients[0], 1)])
        merged = average([mean, mean]).groups[0]  # of several rounds that make one step
        store.push(counts, ids, sightings, gradients, 0.0)
        store.push(merged.counts, merged.ids, merged.sightings, merged.gradients, 0.0)
        store.push(counts, ids, sightings, gradients, 0.0, store.pull(counts, ids, read_only=False)[1])
        buckets = np.arange(plan.virtual_buckets)
        store.cuts.freeze(buckets)
        restored = RowStore(plan, group, np.ones(plan.virtual_buckets, np.bool_), capacity_rows=64)
        for copied in list(copy_frozen(store, buckets, 1 << 20)):
            if copied.kind == ROWS and reserve_rows(restored, copied.buckets, copied.counts):
                columns, tables = row_columns(store.layout, copied.cells), np.arange(len(store.salts))
                load_columns(restored, copied.buckets, copied.counts, tables, columns)
                _warm_slabs(RowStore(plan, group, np.ones(plan.virtual_buckets, np.bool_), capacity_rows=64), copied)
            load(store, copied.kind, copied.cells, None, keep_versions=False)
        unload(store, np.empty((0, 4), np.uint32), None)
        # Kernels of servers that move buckets while they serve.
        changes = [store.bucket(bucket).changes(-1) for bucket in range(plan.virtual_buckets)]
        store.push(counts, ids, sightings, gradients, 0.0)
        store.evict(1e6)
        for bucket, whole in enumerate(changes):
            changed = store.bucket(bucket).changes(whole.version)
            store.bucket(bucket).forget_changes(changed.version)
            store.bucket(bucket).take_in(whole)
            store.bucket(bucket).take_in(changed)
        _warm_delta(store, counts, ids, sightings, gradients)


def _warm_delta(store: RowStore, counts: Array, ids: Array, sightings: Array, gradients: Array) -> None:
    """Two saves, of which the second has the changed rows alone, and the states of rows with other update rules."""
    buckets = np.arange(len(store.owned))
    store.cuts.logs = True
    store.cuts.freeze(buckets)
    store.cuts.remember("base", buckets)
    list(copy_frozen(store, buckets, 1 << 20))
    store.push(counts, ids, sightings, gradients, 0.0)
    store.cuts.freeze(buckets)
    list(copy_frozen(store, buckets, 1 << 20, store.cuts.since("base", buckets)))
    store.rules.first_states(np.zeros((1, store.group.dimension), np.float32))


def _warm_slabs(store: RowStore, copied: Copied) -> None:
    """What a save makes of rows beside their cells, and what takes both in."""
    maker = LineMaker(store, most_share=np.inf)
    made = [*maker.add(copied), *maker.finish()]
    reserve_rows(store, copied.buckets, copied.counts)
    slabs = SlabLoader(store, copied.buckets, copied.counts)
    slabs.load_cells(copied.buckets, copied.counts, np.zeros(len(copied.counts), np.int64), copied.cells)[1]()
    slabs.finish()
    for each in made:
        slabs.load_lines(each.buckets, each.counts, each.lines)
