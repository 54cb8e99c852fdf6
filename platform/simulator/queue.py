"""Jobs that wait for capacity, by priority, then by arrival. Thousands may wait.

Equal jobs of one priority either all fit or all do not, so that only the first of them is tried. Whether nodes have the
cores for one pod is compared for all kinds at once, because in a full cluster most of them fit nowhere.

Shape legend: K kinds of jobs, equal in priority and allocation.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Iterator

import numpy as np

from elastrec.platform.scaling.amounts import Allocation, Resources
from elastrec.platform.simulator.nodes import Nodes
from elastrec.platform.simulator.running import Running

Entry = tuple[float, float, int, Running]
"""(−priority, arrival, number, job)."""


class Queue:
    """The waiting jobs. Do not change it while iterating, except with `take`."""

    def __init__(self) -> None:
        self._alike: dict[tuple[float, Allocation], list[Entry]] = {}
        self._kinds: list[tuple[float, Allocation]] = []
        self._needs_K5 = np.empty((0, 5))
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, number: int, running: Running) -> None:
        """A job; `number` orders jobs of one priority and arrival."""
        job = running.job
        entry = (-job.priority, job.arrival_seconds, number, running)
        kind, held = (job.priority, running.held), running.held
        if kind not in self._alike:
            self._alike[kind] = []
            self._kinds.append(kind)
            needs = (
                job.priority, held.workers, held.worker_cores, held.parameter_servers, held.parameter_server_cores,
            )  # fmt: skip
            self._needs_K5 = np.vstack([self._needs_K5, needs])
        insort(self._alike[kind], entry)
        self._count += 1

    def asked(self) -> Resources:
        """Resources of all of them together."""
        total = Resources()
        for (_, held), entries in self._alike.items():
            each = held.resources
            total += Resources(len(entries) * each.cores, len(entries) * each.memory_bytes)
        return total

    def tries(self, nodes: Nodes, least_priority: float) -> Iterator[Running]:
        """The jobs to try, in order: those that may fit on the nodes, and those of a priority above the given one, for
        which others may make room. If one is not taken before the next iteration, its equals are skipped."""
        priority_K, workers_K, worker_cores_K, servers_K, server_cores_K = self._needs_K5.T
        may_K = nodes.may_hold(workers_K, worker_cores_K) & nodes.may_hold(servers_K, server_cores_K)
        kinds = [self._kinds[k] for k in np.flatnonzero(may_K | (priority_K > least_priority))]
        heads = [(self._alike[kind][0], kind) for kind in kinds]
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
            place = self._kinds.index(kind)
            del self._kinds[place]
            self._needs_K5 = np.delete(self._needs_K5, place, axis=0)
        self._count -= 1
