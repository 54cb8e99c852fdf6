"""Jobs that wait for capacity, by priority, then by arrival. Thousands may wait.

Equal jobs of one priority either all fit or all do not, so that only the first of them is tried. Whether the nodes have
the cores for its pods is found for all kinds at once, because in a full cluster most of them fit nowhere.

Shape legend: K kinds of jobs, equal in priority and allocation, in the order of `_alike`; L of them, which are tried.
"""

from __future__ import annotations

import heapq
import math
from bisect import insort
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from elastrec.platform.scaling.amounts import Allocation, Resources
from elastrec.platform.scaling.model.columns import Floats
from elastrec.platform.simulator.nodes import Nodes
from elastrec.platform.simulator.placing import place
from elastrec.platform.simulator.running import Running

Entry = tuple[float, float, int, Running]
"""(−priority, arrival, number, job)."""


class Queue:
    """The waiting jobs. Do not change it while iterating, except with `take`."""

    def __init__(self) -> None:
        self._alike: dict[tuple[float, Allocation], list[Entry]] = {}
        # Priority, workers, cores of one, servers, cores of one, cores and bytes of one job.
        self._table_K7 = np.empty((0, 7))
        # Whether the empty cluster has room for such a job: 1 or 0; NaN: not known yet.
        self._possible_K = np.empty(0)
        self._count = 0
        self._empty: Nodes | None = None

    def __len__(self) -> int:
        return self._count

    def add(self, number: int, running: Running) -> None:
        """A job; `number` orders jobs of one priority and arrival."""
        job = running.job
        entry = (-job.priority, job.arrival_seconds, number, running)
        kind, held = (job.priority, running.held), running.held
        if kind not in self._alike:
            self._alike[kind] = []
            row = (
                job.priority, held.workers, held.worker_cores, held.parameter_servers, held.parameter_server_cores,
                held.resources.cores, held.resources.memory_bytes,
            )  # fmt: skip
            self._table_K7 = np.vstack([self._table_K7, row])
            self._possible_K = np.append(self._possible_K, math.nan)
        insort(self._alike[kind], entry)
        self._count += 1

    def asked(self, nodes: Nodes) -> Resources:
        """Resources of all of them together, without jobs for which all of these nodes together are too small: no
        capacity that others leave free would help them."""
        if not self._alike or not nodes.count:
            return Resources()
        if self._empty is None or self._empty.count != nodes.count:
            self._empty = Nodes(nodes.count, nodes.size)
            self._possible_K[:] = math.nan
        unknown = np.flatnonzero(np.isnan(self._possible_K))
        if len(unknown):
            kinds = list(self._alike)
            for k in unknown:
                self._possible_K[k] = place(self._empty.copy(), kinds[k][1]) is not None
        cores_K, bytes_K = self._table_K7.T[-2:]
        jobs_K = self._possible_K * [len(entries) for entries in self._alike.values()]
        # Added one after the other: a pairwise sum is rounded otherwise.
        return Resources(float((cores_K * jobs_K).cumsum()[-1]), float((bytes_K * jobs_K).cumsum()[-1]))

    def tries(self, nodes: Nodes, least_priority: float) -> Iterator[Running]:
        """The jobs to try, in order: those that may fit on the nodes, and those of a priority above the given one, for
        which others may make room. If one is not taken before the next iteration, its equals are skipped."""
        tried = np.flatnonzero(_are_tried(self._table_K7, nodes, least_priority))
        kinds = list(self._alike) if len(tried) else []
        kinds, table_L7 = [kinds[k] for k in tried], self._table_K7[tried]
        heads = [(self._alike[kind][0], place) for place, kind in enumerate(kinds)]
        heapq.heapify(heads)
        while heads:
            entry, place = heapq.heappop(heads)
            yield entry[3]
            left = self._alike.get(kinds[place], [])
            if left and left[0] is entry:
                continue
            if left:
                heads.append((left[0], place))
            # The taken job has left room for fewer of the others.
            are_tried = _are_tried(table_L7[[each for _, each in heads]], nodes, least_priority)
            heads = [head for head, is_tried in zip(heads, are_tried, strict=True) if is_tried]
            heapq.heapify(heads)

    def take(self, running: Running) -> None:
        """Removes the first of equal jobs."""
        kind = (running.job.priority, running.held)
        entries = self._alike[kind]
        assert entries[0][3] is running
        del entries[0]
        if not entries:
            place = list(self._alike).index(kind)
            del self._alike[kind]
            self._table_K7 = np.delete(self._table_K7, place, axis=0)
            self._possible_K = np.delete(self._possible_K, place)
        self._count -= 1


def _are_tried(table_K7: Floats, nodes: Nodes, least_priority: float) -> npt.NDArray[np.bool_]:
    priority_K, workers_K, worker_cores_K, servers_K, server_cores_K = table_K7.T[:5]
    may_K = nodes.may_hold(workers_K, worker_cores_K)
    # In a full cluster, few are left.
    may_K[may_K] = nodes.may_hold(servers_K[may_K], server_cores_K[may_K])
    tried_K: npt.NDArray[np.bool_] = may_K | (priority_K > least_priority)
    return tried_K
