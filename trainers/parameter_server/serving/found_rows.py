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
class FoundPull:
    """A pull of ids [U] int64, counts [T] of them per table, and its lookups by table group."""

    counts: Array
    ids: Array
    lookups: Sequence[Lookup]

    def is_of(self, gradient: Gradient) -> bool:
        """Whether the gradient is of the rows that were pulled."""
        at, table = 0, 0
        for group in gradient.groups:
            end, last = at + len(group.ids), table + len(group.counts)
            has_counts = self.counts[table:last].tobytes() == group.counts.tobytes()
            if not has_counts or not np.array_equal(self.ids[at:end], group.ids):
                return False
            at, table = end, last
        return True


class FoundRows:
    """The last pulls of each worker."""

    def __init__(self) -> None:
        self._pulls: dict[WorkerProcess, deque[FoundPull]] = {}

    def remember(self, worker: WorkerProcess, pull: FoundPull) -> None:
        self._pulls.setdefault(worker, deque(maxlen=_PULLS_AHEAD)).append(pull)

    def forget(self, worker: WorkerProcess) -> None:
        self._pulls.pop(worker, None)

    def pulls(self, worker: WorkerProcess) -> list[FoundPull]:
        """The last pulls of a worker; the gradient of one of them may come next (`FoundPull.is_of`)."""
        return list(self._pulls.get(worker, ()))

    def take(self, worker: WorkerProcess, pull: FoundPull) -> Sequence[Lookup] | None:
        """The lookups of a pull, once; None if they were taken or forgotten meanwhile."""
        pulls = self._pulls.get(worker, deque())
        if pull not in pulls:
            return None
        pulls.remove(pull)
        return pull.lookups
