"""Resources, allocations, prices and capacity: plain values, no decisions.

Units: bytes, cores (float), currency per hour. Frozen; JSON in and out.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any

import msgspec

from elastrec.platform.specs.errors import ScalingError
from elastrec.platform.specs.metrics import Role
from elastrec.platform.specs.shape import Shape
from elastrec.platform.specs.text.some import counted

GIBIBYTE = 2**30
"""Bytes."""
MEMORY_STEP = 256 * 2**20
"""Memory is planned in whole steps. Chosen: about the memory of a server's process before its first row; finer steps
would change jobs more often without a benefit for the cluster."""

CORES_STEP = 0.25
"""Cores are planned in whole steps. Chosen: of pods of a core or more, less is within the error of a prediction."""


def refusal(field: str, value: Any, allowed: str, remedy: str) -> ScalingError:
    """The error of a number that is not allowed."""
    return ScalingError(f"{field}: {value} is not allowed; allowed: {allowed}; {remedy}")


def require(holds: bool, field: str, value: Any, allowed: str, remedy: str) -> None:
    """Checks a number.

    Raises:
        ScalingError: unless `holds`.
    """
    if not holds:
        raise refusal(field, value, allowed, remedy)


def is_positive(value: float) -> bool:
    """False for NaN and infinities too."""
    return math.isfinite(value) and value > 0


class Resources(msgspec.Struct, frozen=True):
    """An amount of each resource. Differences may be negative."""

    cores: float = 0.0
    memory_bytes: float = 0.0

    def __add__(self, other: Resources) -> Resources:
        return Resources(self.cores + other.cores, self.memory_bytes + other.memory_bytes)

    def __sub__(self, other: Resources) -> Resources:
        return Resources(self.cores - other.cores, self.memory_bytes - other.memory_bytes)

    def fits(self, room: Resources) -> bool:
        """True when every resource is within `room`; negative amounts always fit.

        A resource that is not requested may be overdrawn already (the cluster has lost capacity that jobs hold).
        """
        # Sums of cores such as 0.1 are inexact; a thousandth of a core is the finest that clusters grant.
        return (self.cores <= max(room.cores, 0.0) + 1e-3) and (self.memory_bytes <= max(room.memory_bytes, 0.0) + 1.0)


class Allocation(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of a job as the numbers that plans search: A of DLRover-RM §4.2.

    The fields are those of a job record's `Sizes`.

    Attributes:
        workers: w of eq. 1.
        parameter_servers: p of eq. 3.
        worker_cores, parameter_server_cores: λ_w and λ_p, of one pod.
    """

    workers: int
    parameter_servers: int
    worker_cores: float
    parameter_server_cores: float
    worker_memory_bytes: int
    parameter_server_memory_bytes: int

    def __post_init__(self) -> None:
        remedy = "correct the plan or the record that it came from"
        for field in ("workers", "parameter_servers", "worker_memory_bytes", "parameter_server_memory_bytes"):
            value = getattr(self, field)
            require(isinstance(value, int) and value >= 1, field, value, "a whole number of at least 1", remedy)
        for field in ("worker_cores", "parameter_server_cores"):
            value = getattr(self, field)
            require(is_positive(value), field, value, "a number above 0", remedy)

    @staticmethod
    def of(shape: Shape) -> Allocation:
        """Raises ScalingError for a shape that no job can have."""
        workers, servers = shape[Role.WORKER], shape[Role.PARAMETER_SERVER]
        return Allocation(
            workers=workers.count,
            parameter_servers=servers.count,
            worker_cores=workers.size.cores,
            parameter_server_cores=servers.size.cores,
            worker_memory_bytes=workers.size.memory_bytes,
            parameter_server_memory_bytes=servers.size.memory_bytes,
        )

    @property
    def resources(self) -> Resources:
        """Of all workers and servers together."""
        return Resources(
            self.workers * self.worker_cores + self.parameter_servers * self.parameter_server_cores,
            float(
                self.workers * self.worker_memory_bytes + self.parameter_servers * self.parameter_server_memory_bytes
            ),
        )

    def changes(self, other: Allocation) -> frozenset[Change]:
        """The kinds of change from this allocation to the other one."""
        if self == other:
            return _NO_CHANGES
        found = set()
        if self.workers != other.workers:
            found.add(Change.WORKERS)
        if self.parameter_servers != other.parameter_servers:
            found.add(Change.SERVERS)
        if (self.worker_cores, self.worker_memory_bytes) != (other.worker_cores, other.worker_memory_bytes):
            found.add(Change.WORKER_SIZE)
        mine = (self.parameter_server_cores, self.parameter_server_memory_bytes)
        if mine != (other.parameter_server_cores, other.parameter_server_memory_bytes):
            found.add(Change.SERVER_SIZE)
        return frozenset(found)

    def __str__(self) -> str:
        return (
            f"{counted(self.workers, 'worker')} × {self.worker_cores:g} cores, "
            f"{self.worker_memory_bytes / GIBIBYTE:.3g} GiB; "
            f"{counted(self.parameter_servers, 'server')} × {self.parameter_server_cores:g} cores, "
            f"{self.parameter_server_memory_bytes / GIBIBYTE:.3g} GiB"
        )


class Change(StrEnum):
    """A kind of change; `JobProfile.movable` lists those that a job supports while it runs."""

    WORKERS = "workers"
    SERVERS = "servers"
    WORKER_SIZE = "worker size"
    SERVER_SIZE = "server size"


_NO_CHANGES = frozenset[Change]()


class PriceList(msgspec.Struct, frozen=True, kw_only=True):
    """Money(r) of eq. 7 on one cluster: currency per hour of one core and of one GiB."""

    core_hour: float
    gibibyte_hour: float

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            value = getattr(self, field)
            require(math.isfinite(value) and value >= 0, f"prices.{field}", value, "0 or more", "correct the list")
        total = self.core_hour + self.gibibyte_hour
        require(total > 0, "prices", "0 for everything", "at least one price above 0", "plans are compared by price")

    @staticmethod
    def of(prices: dict[str, float], cluster: str = "") -> PriceList:
        """A price list as it stands in a file.

        Raises:
            ScalingError: a resource has no price, or there is one for a resource that is not known.
        """
        known = PriceList.__struct_fields__
        where = f"prices of {cluster}" if cluster else "prices"
        missing = [name for name in known if name not in prices]
        require(
            not missing, where, f"without {', '.join(missing)}", f"all of {', '.join(known)}", "add what is missing"
        )
        unknown = sorted(set(prices) - set(known))
        require(not unknown, where, ", ".join(unknown), ", ".join(known), "remove it or correct its name")
        return PriceList(**prices)

    def per_hour(self, resources: Resources) -> float:
        """Currency per hour of an amount."""
        return self.core_hour * resources.cores + self.gibibyte_hour * resources.memory_bytes / GIBIBYTE


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """S of eq. 13.

    Attributes:
        free: capacity that no running job holds; negative when the cluster has lost capacity that jobs hold.
        largest_pod: no pod may be larger (the largest free capacity of a node); None: no such limit.
    """

    free: Resources
    largest_pod: Resources | None = None

    def holds_pods_of(self, allocation: Allocation) -> bool:
        """Whether every single pod fits on a node."""
        if self.largest_pod is None:
            return True
        worker = Resources(allocation.worker_cores, allocation.worker_memory_bytes)
        server = Resources(allocation.parameter_server_cores, allocation.parameter_server_memory_bytes)
        return worker.fits(self.largest_pod) and server.fits(self.largest_pod)
