"""Memory of simulated servers: its true growth, and a master's measurements of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from elastrec.platform.scaling.amounts import Allocation, is_positive, require
from elastrec.platform.scaling.memory import Servers, TableHistory
from elastrec.platform.scaling.memory_outlook import MemorySeen


class MemoryTruth(msgspec.Struct, frozen=True, kw_only=True):
    """A job's true need: φ(n) = rows_scale · n^exponent rows after n samples (Heaps' law).

    Attributes:
        worker_bytes: use of a worker, independent of its allocation.
        server_base_bytes: of one server before its first row.
        imbalance: rows of the fullest server over the mean, ≥ 1.
    """

    worker_bytes: float
    server_base_bytes: float
    bytes_per_row: float
    rows_scale: float
    exponent: float
    imbalance: float = 1.1

    def __post_init__(self) -> None:
        for name in ("worker_bytes", "server_base_bytes", "bytes_per_row", "rows_scale"):
            value = getattr(self, name)
            require(is_positive(value), f"memory.{name}", value, "above 0", "correct the workload")
        require(0 < self.exponent <= 1, "memory.exponent", self.exponent, "above 0, at most 1", "0.5 to 0.9 is usual")
        require(self.imbalance >= 1, "memory.imbalance", self.imbalance, "1 or more", "1 is an even spread")

    def rows(self, samples: float) -> float:
        """Of all servers together."""
        return float(self.rows_scale * samples**self.exponent)

    def server_bytes(self, servers: int, samples: float) -> float:
        """Of the fullest of so many servers."""
        return self.server_base_bytes + self.imbalance * self.bytes_per_row * self.rows(samples) / servers

    def samples_until(self, servers: int, limit_bytes: float) -> float:
        """Number of samples after which the fullest server exceeds its limit."""
        room = (limit_bytes - self.server_base_bytes) * servers / (self.imbalance * self.bytes_per_row)
        if room <= 0:
            return 0.0
        # Roots with small exponents overflow; no table gets so large.
        logarithm = math.log(room / self.rows_scale) / self.exponent
        return math.exp(logarithm) if logarithm < 200.0 else math.inf


def seen_of(
    truth: MemoryTruth,
    samples: Sequence[float],
    rows: Sequence[float],
    allocation: Allocation,
    trained: float,
    remaining: float,
    samples_per_second: float,
    largest_bytes: float,
) -> MemorySeen:
    """A master's measurements: rows counted so far, bytes in use now.

    Args:
        samples, rows: counts of rows, and the numbers of samples at these counts; rising.
    """
    table = TableHistory(
        table="all", samples=tuple(samples), rows=tuple(rows), bytes_per_row=truth.bytes_per_row
    )  # fmt: skip
    servers = Servers(
        count=allocation.parameter_servers,
        used_bytes=truth.server_bytes(allocation.parameter_servers, trained),
        limit_bytes=float(allocation.parameter_server_memory_bytes),
        imbalance=truth.imbalance,
        largest_bytes=largest_bytes,
    )
    return MemorySeen(
        tables=(table,) if samples else (),
        servers=servers,
        worker_used_bytes=truth.worker_bytes,
        trained=trained,
        remaining=remaining,
        samples_per_second=samples_per_second or None,
    )
