"""Loads or compiles the code of a worker's first step before the worker registers, because leases start when granted.

Compiling the kernels into an empty cache takes longer than a short lease, so a worker that compiled after leasing a
shard would lose the shard again and again. The job is not known yet, so the user's model is not loaded here.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from elastrec.platform.data.reading import kernels
from elastrec.platform.specs.job import TableSpec
from elastrec.trainers.embedding.kernels import pool_rows, spread_gradient
from elastrec.trainers.embedding.routing import Router
from elastrec.trainers.imports import without_collector
from elastrec.trainers.parameter_server.plan import make_plan

_VIRTUAL_BUCKETS = 64


@without_collector()
def warm_up() -> None:
    """Runs every kernel of the worker once with each kind of array in a step, and one step of torch."""
    kernels.load()
    _route_and_pool()
    _torch_step()


def _route_and_pool() -> None:
    """Two features of one id each in two bags: [N] = [F * B] = 4 ids, rows of D = 2 numbers."""
    plan = make_plan({"a": 2, "b": 2}, settings={"b": TableSpec(hash_size=8)}, virtual_buckets=_VIRTUAL_BUCKETS)
    router = Router(plan, [0] * _VIRTUAL_BUCKETS, 1, epoch=0, generation=0)
    values, offsets = np.array([3, 4, 3, 4], np.int64), np.arange(5, dtype=np.int64)
    starts, ends = np.array([0, 2], np.int64), np.array([2, 4], np.int64)
    routed = router.route(values, starts, ends, np.arange(2, dtype=np.int64))
    blocks = (
        np.arange(2, dtype=np.int64),
        np.array([0, 2], np.int64),
        np.arange(2, dtype=np.int64),
        np.array([False, True]),
    )
    firsts, pooled = np.empty((2, 2), np.float32), np.empty((2, 4), np.float32)
    rows = np.ones((len(routed.ids), 2), np.float32)
    spread_gradient(firsts, pooled, routed.inverse, offsets, *blocks, 2, 1, np.zeros_like(rows))
    # Rows of several servers are copied to a new array; those of a single server are in a read-only frame.
    pool_rows(rows, routed.inverse, offsets, *blocks, 2, 1, firsts, pooled)
    rows.flags.writeable = False
    pool_rows(rows, routed.inverse, offsets, *blocks, 2, 1, firsts, pooled)


def _torch_step() -> None:
    # The first forward and backward pass of a process starts torch's threads and loads kernels of libraries.
    layer = nn.Linear(2, 1)
    loss = nn.BCEWithLogitsLoss()(layer(torch.ones(2, 2)).squeeze(1), torch.zeros(2))
    loss.backward()
