"""Where the rows of a pull are, for the push of their gradients: looking them up is most of a push's work.

Knows stores only by their groups and evictions; no lock in here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from elastrec.platform.transport.job_messages import WorkerProcess
from elastrec.trainers.parameter_server.gradients import Gradient
from elastrec.trainers.parameter_server.row_store import RowStore

Array = np.ndarray[Any, Any]

_PULLS_AHEAD = 2  # a worker that overlaps has pulled the next batch before it pushes this one


@dataclass(frozen=True)
class _Pull:
    counts: Array
    ids: Array
    rows: Array
    evictions: list[int]


class FoundRows:
    """The last pulls of each worker."""

    def __init__(self) -> None:
        self._pulls: dict[WorkerProcess, deque[_Pull]] = {}

    def remember(
        self, worker: WorkerProcess, counts: Array, ids: Array, rows: Array, stores: Sequence[RowStore]
    ) -> None:
        """A pull of ids [U] int64, counts [T] of them per table, found them in these rows [U] of their stores."""
        pull = _Pull(counts, ids, rows, [store.evictions for store in stores])
        self._pulls.setdefault(worker, deque(maxlen=_PULLS_AHEAD)).append(pull)

    def forget(self, worker: WorkerProcess) -> None:
        self._pulls.pop(worker, None)

    def of(self, worker: WorkerProcess, gradient: Gradient, stores: Sequence[RowStore]) -> list[Array] | None:
        """Per table group the rows that a pull of the worker found for the same ids, while they are still there."""
        for pull in self._pulls.get(worker, ()):
            known, at, table = [], 0, 0
            for store, group, evictions in zip(stores, gradient.groups, pull.evictions, strict=True):
                end, last = at + len(group.ids), table + len(group.counts)
                if (
                    store.evictions != evictions
                    or not np.array_equal(pull.counts[table:last], group.counts)
                    or not np.array_equal(pull.ids[at:end], group.ids)
                ):
                    break
                known.append(pull.rows[at:end])
                at, table = end, last
            else:
                return known
        return None
