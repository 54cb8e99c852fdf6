"""Where the rows of a pull are, for the push of their gradients: looking them up is most of a push's work.

No lock in here; whether rows have moved since, a store finds out by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from elastrec.platform.transport.messages.job import WorkerProcess
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
        """A pull of ids [U] int64, counts [T] of them per table, found them so in each table group's store."""
        self._pulls.setdefault(worker, deque(maxlen=_PULLS_AHEAD)).append(_Pull(counts, ids, lookups))

    def forget(self, worker: WorkerProcess) -> None:
        self._pulls.pop(worker, None)

    def take(self, worker: WorkerProcess, gradient: Gradient) -> Sequence[Lookup] | None:
        """Per table group the lookup of a pull of the worker for the same ids; it is given out once."""
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
