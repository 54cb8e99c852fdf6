"""Allocations as columns, and the features of the throughput model computed from them (DLRover-RM eq. 2–5).

Shape legend: N allocations, K features. Planning looks at 10^5 allocations per job, which only columns make cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from elastrec.platform.scaling.amounts import GIBIBYTE, Allocation, PriceList
from elastrec.platform.scaling.types import ModelShape

Floats = npt.NDArray[np.float64]
Value = TypeVar("Value")
_MOST_KNOWN = 8
"""Values that are kept of columns: as many as a job of some age needs at once."""
TERMS = ("gradient", "update", "synchronise", "embedding")
"""Columns of `features` before the fixed part; the fields of `Coefficients`."""


@dataclass(frozen=True)
class Columns:
    """N allocations; every array is float64 of shape (N,)."""

    workers: Floats
    parameter_servers: Floats
    worker_cores: Floats
    parameter_server_cores: Floats
    worker_memory_bytes: Floats
    parameter_server_memory_bytes: Floats

    @staticmethod
    def of(allocations: Sequence[Allocation]) -> Columns:
        """Of these allocations; kept between rounds, so its arrays are not to be written to."""
        return _columns_of(tuple(allocations))

    def __len__(self) -> int:
        return len(self.workers)

    def take(self, rows_N: npt.NDArray[np.intp] | npt.NDArray[np.bool_]) -> Columns:
        """The rows with these indexes, or where the mask is true."""
        return Columns(*(getattr(self, field)[rows_N] for field in self.__dataclass_fields__))

    def allocation(self, row: int) -> Allocation:
        """One row as a value."""
        return Allocation(
            workers=round(self.workers[row]),
            parameter_servers=round(self.parameter_servers[row]),
            worker_cores=float(self.worker_cores[row]),
            parameter_server_cores=float(self.parameter_server_cores[row]),
            worker_memory_bytes=round(self.worker_memory_bytes[row]),
            parameter_server_memory_bytes=round(self.parameter_server_memory_bytes[row]),
        )

    @cached_property
    def _known(self) -> dict[Hashable, Any]:
        return {}

    def once(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """What `make` computes of these columns, the first time alone: a job's ladders are looked at in every round,
        and most of what they imply stays the same. Arrays are not to be written to.

        Args:
            key: what is computed, and what it depends on besides the columns.
        """
        if key in self._known:
            return cast(Value, self._known[key])
        made = make()
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[key] = made
        return made

    @cached_property
    def cores(self) -> Floats:
        """Of all pods of an allocation, shape (N,)."""
        return self.workers * self.worker_cores + self.parameter_servers * self.parameter_server_cores

    @cached_property
    def memory_bytes(self) -> Floats:
        """Of all pods of an allocation, shape (N,)."""
        return (
            self.workers * self.worker_memory_bytes + self.parameter_servers * self.parameter_server_memory_bytes
        )  # fmt: skip

    def per_step_of(self, batch_size: int) -> Floats:
        """Samples of all workers in one step each, shape (N,)."""
        return self.once(("samples", batch_size), lambda: self.workers * batch_size)

    def per_hour(self, prices: PriceList) -> Floats:
        """Currency per hour of every allocation, shape (N,)."""
        return prices.core_hour * self.cores + prices.gibibyte_hour * self.memory_bytes / GIBIBYTE


@lru_cache(maxsize=8192)
def _columns_of(allocations: tuple[Allocation, ...]) -> Columns:
    numbers_NF = np.array(
        [[getattr(each, field) for field in Columns.__dataclass_fields__] for each in allocations], dtype=np.float64
    ).reshape(-1, len(Columns.__dataclass_fields__))
    return Columns(*np.ascontiguousarray(numbers_NF.T))


def forget_columns() -> None:
    """Drops what `Columns.of` keeps, and with it what was computed of those columns."""
    _columns_of.cache_clear()


def features(shape: ModelShape, columns: Columns) -> Floats:
    """What the α of eq. 2–5 are multiplied with, in the order of `TERMS`; float64 of shape (N, 4)."""
    m, w, p = float(shape.batch_size), columns.workers, columns.parameter_servers
    rows_NK = np.empty((len(w), len(TERMS)))
    rows_NK[:, 0] = m / columns.worker_cores  # eq. 2
    rows_NK[:, 1] = w / (p * columns.parameter_server_cores)  # eq. 3
    rows_NK[:, 2] = (shape.dense_bytes / p) / (shape.network_bytes_per_second / w)  # eq. 4
    rows_NK[:, 3] = m * shape.embedding_dimension / p  # eq. 5
    return rows_NK
