"""Nodes of a simulated cluster and the pods on them: first fit, no overcommitment. Pure bookkeeping.

Nodes may be added and removed. A closed node keeps its number and has no capacity; resources that are freed on it are
lost.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from elastrec.platform.scaling.amounts import Capacity, Resources, require
from elastrec.platform.scaling.model.columns import Floats
from elastrec.platform.specs.errors import ScalingError

_ROUNDED_CORES = 1e-3
"""Rounding may leave at most so many more cores free on a node than it has."""


class Nodes:
    """Equal nodes with free cores and bytes."""

    def __init__(self, count: int, size: Resources) -> None:
        """Empty nodes.

        Raises:
            ScalingError: no node, or a node without resources.
        """
        require(count >= 1, "nodes.count", count, "at least 1", "a cluster has nodes")
        good = size.cores > 0 and size.memory_bytes > 0
        require(good, "nodes.size", size, "cores and bytes above 0", "give the size of a node")
        self.size = size
        self._cores = np.full(count, float(size.cores))
        self._bytes = np.full(count, float(size.memory_bytes))
        self._is_open = np.ones(count, dtype=bool)
        self._free = Resources(count * float(size.cores), count * float(size.memory_bytes))

    def copy(self) -> Nodes:
        """A copy for trying a placement."""
        other = Nodes.__new__(Nodes)
        other.size, other._free, other._is_open = self.size, self._free, self._is_open
        other._cores, other._bytes = self._cores.copy(), self._bytes.copy()
        return other

    def become(self, other: Nodes) -> None:
        """Takes over the state of a copy, which must not be used afterwards."""
        self._cores, self._bytes, self._free = other._cores, other._bytes, other._free

    @property
    def count(self) -> int:
        """Capacity of the existing nodes."""
        return int(self._is_open.sum())

    @property
    def open(self) -> list[int]:
        """The numbers of the existing nodes."""
        return [int(node) for node in np.flatnonzero(self._is_open)]

    def add(self, count: int) -> None:
        """Adds empty nodes."""
        self._cores = np.concatenate([self._cores, np.full(count, float(self.size.cores))])
        self._bytes = np.concatenate([self._bytes, np.full(count, float(self.size.memory_bytes))])
        self._is_open = np.concatenate([self._is_open, np.ones(count, dtype=bool)])
        self._free += Resources(count * float(self.size.cores), count * float(self.size.memory_bytes))

    def close(self, node: int) -> None:
        """Closes a node. The caller frees the pods on it."""
        self._free -= Resources(float(self._cores[node]), float(self._bytes[node]))
        # Copies share this array.
        self._is_open = self._is_open.copy()
        self._cores[node], self._bytes[node], self._is_open[node] = 0.0, 0.0, False

    def may_hold(self, pods_K: Floats, cores_K: Floats) -> npt.NDArray[np.bool_]:
        """Of K groups of equal pods, those for which the nodes have the cores; `place` refuses all others.

        Args:
            pods_K: numbers of pods; `cores_K`: of one, above 0.
        """
        rising = np.sort(self._cores + 1e-6)
        nodes_K = len(rising) - np.searchsorted(rising, cores_K)
        found: npt.NDArray[np.bool_] = nodes_K * ((self.size.cores + 2 * _ROUNDED_CORES) // cores_K) >= pods_K
        # The pods of every node are counted only for the groups that this leaves. A division and `floor` take a tenth
        # of the time of `//`, but may be rounded.
        left = np.flatnonzero(found)
        if not len(left):
            return found
        pods_NL = np.floor((self._cores[:, None] + 1e-6) / cores_K[left] + 1e-9)
        found[left] = pods_NL.sum(axis=0) >= pods_K[left]
        return found

    def place(self, pods: int, each: Resources) -> list[int] | None:
        """Places equal pods and returns their nodes, one entry per pod; None, without any change, if not all fit."""
        if not pods:
            return []
        # The number of pods that fit on every node; a thousandth of a core is rounding.
        fits = np.minimum(
            (self._cores + 1e-6) // each.cores if each.cores > 0 else pods,
            (self._bytes + 1.0) // each.memory_bytes if each.memory_bytes > 0 else pods,
        ).astype(np.int64)
        taken = np.minimum(fits.cumsum(), pods)
        if taken[-1] < pods:
            return None
        # From the pods on all nodes up to one to those on it.
        taken[1:] -= taken[:-1].copy()
        self._cores -= taken * each.cores
        self._bytes -= taken * each.memory_bytes
        self._free -= Resources(pods * each.cores, pods * each.memory_bytes)
        return [int(node) for node in np.repeat(np.arange(len(taken)), taken)]

    def resize(self, nodes: Sequence[int], before: Resources, after: Resources) -> list[bool]:
        """Resizes one pod on each of these nodes, in turn, and returns those whose node had the capacity.

        The rule of a real node: the pod's own resources count as free for it.
        """
        more, granted = after - before, []
        for node in nodes:
            fits = more.cores <= self._cores[node] + 1e-6 and more.memory_bytes <= self._bytes[node] + 1.0
            granted.append(bool(fits))
            if fits:
                self._cores[node] -= more.cores
                self._bytes[node] -= more.memory_bytes
                self._free -= more
        return granted

    def give_back(self, nodes: Sequence[int], each: Resources) -> None:
        """Frees one pod on each of these nodes.

        Raises:
            ScalingError: more is freed than was taken, which is a bug of the simulator.
        """
        where = self._add(nodes, each.cores, each.memory_bytes)
        if (self._cores[where] > self.size.cores + _ROUNDED_CORES).any() or (
            self._bytes[where] > self.size.memory_bytes + 1e3
        ).any():
            raise ScalingError(f"nodes: {len(nodes)} pods of {each} given back that were never placed")

    def take_back(self, nodes: Sequence[int], each: Resources) -> None:
        """Undoes `give_back`, before anything else was placed."""
        self._add(nodes, -each.cores, -each.memory_bytes)

    def _add(self, nodes: Sequence[int], cores: float, size_bytes: float) -> npt.NDArray[np.int64]:
        """Adds free resources to each of these nodes that is not closed; returns those."""
        where = np.asarray(nodes, dtype=np.int64)
        where = where[self._is_open[where]]
        np.add.at(self._cores, where, cores)
        np.add.at(self._bytes, where, size_bytes)
        self._free += Resources(len(where) * cores, len(where) * size_bytes)
        return where

    @property
    def free(self) -> Resources:
        """Of all nodes together."""
        return self._free

    @property
    def capacity(self) -> Capacity:
        """The capacity for a policy. A pod may be as large as a node, because a change of a job frees its old pods
        first."""
        return Capacity(free=self.free, largest_pod=self.size)
