"""The lookups of pulls, used again by the push of their gradients, because a lookup is most of a push's work.

No locks here; a store checks by itself whether rows have moved since.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from elastrec.platform.transport.messages.directive import WorkerProcess
from elastrec.trainers.parameter_server.serving.gradients import Gradient
from elastrec.trainers.parameter_server.storage import Lookup

Array = np.ndarray[Any, Any]

_PULLS_AHEAD = 2  # a worker that overlaps has pulled the next batch before it pushes this one


@dataclass(frozen=True, eq=False)
class _Pull:
    counts: Array
    ids: Array
    lookups: Sequence[Lookup]


class FoundRows:
    """The last pulls of each worker."""

    def __init__(self) -> None:
        self._pulls: dict[WorkerProcess, deque[_Pull]] = {}

    def remember(self, worker: WorkerProcess, counts: Array, ids: Array, lookups: Sequence[Lookup]) -> None:
        """Stores the lookups of a pull of ids [U] int64, counts [T] of them per table, by table group."""
        self._pulls.setdefault(worker, deque(maxlen=_PULLS_AHEAD)).append(_Pull(counts, ids, lookups))

    def forget(self, worker: WorkerProcess) -> None:
        self._pulls.pop(worker, None)

    def take(self, worker: WorkerProcess, gradient: Gradient) -> Sequence[Lookup] | None:
        """Per table group, the lookup of the worker's pull of the same ids; it is returned once."""
        pulls = self._pulls.get(worker, deque())
        for pull in pulls:
            at, table = 0, 0
            for group in gradient.groups:
                end, last = at + len(group.ids), table + len(group.counts)
                if not np.array_equal(pull.counts[table:last], group.counts) or not np.array_equal(
                    pull.ids[at:end], group.ids
                ):
                    break
                at, table = end, last
            else:
                pulls.remove(pull)
                return pull.lookups
        return None
