"""Jobs that wait for capacity, by priority, then by arrival. Thousands may wait, most of them equal to another one.

Equal jobs of one priority either all fit or all do not, so that only the first of them is tried.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Iterator

from elastrec.platform.scaling.amounts import Allocation, Resources
from elastrec.platform.simulator.running import Running

Entry = tuple[float, float, int, Running]
"""(−priority, arrival, number, job)."""


class Queue:
    """The waiting jobs. Do not change it while iterating, except with `take`."""

    def __init__(self) -> None:
        self._alike: dict[tuple[float, Allocation], list[Entry]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, number: int, running: Running) -> None:
        """A job; `number` orders jobs of one priority and arrival."""
        job = running.job
        entry = (-job.priority, job.arrival_seconds, number, running)
        insort(self._alike.setdefault((job.priority, running.held), []), entry)
        self._count += 1

    def asked(self) -> Resources:
        """Resources of all of them together."""
        total = Resources()
        for (_, held), entries in self._alike.items():
            each = held.resources
            total += Resources(len(entries) * each.cores, len(entries) * each.memory_bytes)
        return total

    def tries(self) -> Iterator[Running]:
        """The jobs to try, in order. If one is not taken before the next iteration, its equals are skipped."""
        heads = [(entries[0], kind) for kind, entries in self._alike.items()]
        heapq.heapify(heads)
        while heads:
            entry, kind = heads[0]
            yield entry[3]
            left = self._alike.get(kind, [])
            if left and left[0] is not entry:
                heapq.heapreplace(heads, (left[0], kind))
            else:
                heapq.heappop(heads)

    def take(self, running: Running) -> None:
        """Removes the first of equal jobs."""
        kind = (running.job.priority, running.held)
        entries = self._alike[kind]
        assert entries[0][3] is running
        del entries[0]
        if not entries:
            del self._alike[kind]
        self._count -= 1
