"""Jobs that wait for room, the most urgent first, then by arrival. Thousands may wait: most are equal to another one.

Jobs of one priority that ask for the same find room or do not, so that only the first of them has to be tried.
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
    """What waits. Not to be changed while it is gone through, but for `take`."""

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
        """By all of them together."""
        total = Resources()
        for (_, held), entries in self._alike.items():
            each = held.resources
            total += Resources(len(entries) * each.cores, len(entries) * each.memory_bytes)
        return total

    def tries(self) -> Iterator[Running]:
        """The jobs to try, in order. One that is not taken before the next is asked for speaks for all its equals."""
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
        """Takes out the first of those that are alike."""
        kind = (running.job.priority, running.held)
        entries = self._alike[kind]
        assert entries[0][3] is running
        del entries[0]
        if not entries:
            del self._alike[kind]
        self._count -= 1
