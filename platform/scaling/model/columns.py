"""Allocations as columns, and the features of the throughput model computed from them (DLRover-RM eq. 2–5).

Shape legend: N allocations, K features. Planning looks at 10^5 allocations per job, which only columns make cheap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from types import ModuleType

import numpy as np
import numpy.typing as npt

from elastrec.platform.scaling.amounts import Allocation
from elastrec.platform.scaling.types import ModelShape

Floats = npt.NDArray[np.float64]
TERMS = ("gradient", "update", "synchronise", "embedding")
"""Columns of `features` before the fixed part; the fields of `Coefficients`."""


FIELDS = (
    "workers",
    "parameter_servers",
    "worker_cores",
    "parameter_server_cores",
    "worker_memory_bytes",
    "parameter_server_memory_bytes",
)
"""Rows of a table of allocations, F of them."""


@dataclass(frozen=True, eq=False)
class Columns:
    """N allocations.

    Attributes:
        table_FN: float64 of shape (F, N), in the order of FIELDS; the argument of kernels.
    """

    table_FN: Floats

    @staticmethod
    def of(allocations: Sequence[Allocation]) -> Columns:
        """The columns of these allocations. They are cached between rounds: do not write to their arrays."""
        return _columns_of(tuple(allocations))

    def __len__(self) -> int:
        return self.table_FN.shape[1]

    @property
    def workers(self) -> Floats:
        """Shape (N,), as all others."""
        return self.table_FN[0]

    @property
    def parameter_servers(self) -> Floats:
        """Their number."""
        return self.table_FN[1]

    @property
    def worker_cores(self) -> Floats:
        """Of one worker."""
        return self.table_FN[2]

    @property
    def parameter_server_cores(self) -> Floats:
        """Of one server."""
        return self.table_FN[3]

    @property
    def worker_memory_bytes(self) -> Floats:
        """Of one worker."""
        return self.table_FN[4]

    @property
    def parameter_server_memory_bytes(self) -> Floats:
        """Of one server."""
        return self.table_FN[5]

    def take(self, rows_N: npt.NDArray[np.intp]) -> Columns:
        """The allocations with these indexes."""
        return Columns(np.take(self.table_FN, rows_N, axis=1))

    def allocation(self, row: int) -> Allocation:
        """One row as a value."""
        workers, servers, worker_cores, server_cores, worker_bytes, server_bytes = self.table_FN[:, row].tolist()
        return Allocation(
            workers=round(workers),
            parameter_servers=round(servers),
            worker_cores=worker_cores,
            parameter_server_cores=server_cores,
            worker_memory_bytes=round(worker_bytes),
            parameter_server_memory_bytes=round(server_bytes),
        )


@lru_cache(maxsize=8192)
def _columns_of(allocations: tuple[Allocation, ...]) -> Columns:
    numbers_NF = np.array(
        [[getattr(each, field) for field in FIELDS] for each in allocations], dtype=np.float64
    ).reshape(-1, len(FIELDS))
    return Columns(np.ascontiguousarray(numbers_NF.T))


def forget_columns() -> None:
    """Clears the cache of `Columns.of`."""
    _columns_of.cache_clear()


def features(shape: ModelShape, columns: Columns) -> Floats:
    """The factors of the α of eq. 2–5, in the order of `TERMS`; float64 of shape (N, 4)."""
    return rows_of(shape, columns, by_request=False)[:, : len(TERMS)]


def rows_of(shape: ModelShape, columns: Columns, *, by_request: bool) -> Floats:
    """The factors of all coefficients, in the order of `step_form.COLUMNS`; float64 of shape (N, 7)."""
    rows_NK: Floats = kernels().rows(columns.table_FN, constants_of(shape, by_request=by_request))
    return rows_NK


@lru_cache(maxsize=1024)
def constants_of(shape: ModelShape, *, by_request: bool) -> tuple[float, ...]:
    """A model's constants for kernels: `kernels.Constants`."""
    found: tuple[float, ...] = kernels().Constants(
        float(shape.batch_size), float(shape.dense_bytes), float(shape.embedding_dimension),
        float(shape.network_bytes_per_second), float(by_request),
    )  # fmt: skip
    return found


@cache
def kernels() -> ModuleType:
    """Imported on first use, because most processes do not need numba."""
    from elastrec.platform.scaling.model import kernels

    return kernels


@cache
def linear_kernels() -> ModuleType:
    """Likewise."""
    from elastrec.platform.scaling.model import linear_kernels

    return linear_kernels


@cache
def equation_kernels() -> ModuleType:
    """Likewise."""
    from elastrec.platform.scaling.model import equation_kernels

    return equation_kernels
