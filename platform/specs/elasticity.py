"""How far a job may be scaled while it runs, as its job file says, and what resources cost."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from elastrec.platform.specs.base import Spec
from elastrec.platform.specs.text.quantities import Cores, Memory, format_bytes

SIZES = {
    "worker_cores": ("worker", "cores"),
    "worker_memory_bytes": ("worker", "memory"),
    "parameter_server_cores": ("parameter_server", "cores"),
    "parameter_server_memory_bytes": ("parameter_server", "memory"),
}
"""Of sizes, the field of `scaling.amounts.Allocation`, and where `resources` has it; each may have limits."""


class Prices(Spec):
    """What resources cost, in any currency; all of them: half a list would mix currencies."""

    core_hour: Annotated[float, Field(ge=0)]
    """Of one core for an hour."""
    gibibyte_hour: Annotated[float, Field(ge=0)]
    """Of one GiB of memory for an hour."""

    @model_validator(mode="after")
    def _not_all_free(self) -> Prices:
        if not self.core_hour + self.gibibyte_hour:
            raise ValueError("core_hour and gibibyte_hour are both 0; set at least one")
        return self


class PaidPrices(Prices):
    """What a team pays for the resources of its jobs. Nothing is decided by it."""

    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$", examples=["EUR"])]
    """Of both prices, as ISO 4217 names it."""

    def of(self, core_seconds: float, byte_seconds: float) -> float:
        """What cores and memory cost that were held for a time."""
        return (self.core_hour * core_seconds + self.gibibyte_hour * byte_seconds / 2**30) / 3600


class Elasticity(Spec):
    """How large a job starts, and bounds of live scaling."""

    start: Literal["job_file", "history"] = "job_file"
    """`job_file`: start with the sizes under `resources`; `history`: with those of similar finished jobs."""
    enabled: bool = True
    """Whether the job takes part in automatic scaling."""
    relieve_hot_servers: bool = True
    """Whether the job moves buckets away from a parameter server that gets far more look-ups for its cores than the
    others, `enabled` or not."""
    minimum_workers: Annotated[int, Field(ge=1, le=10_000)] = 1
    """It never has fewer workers, even if other jobs need the cores."""
    maximum_workers: Annotated[int, Field(ge=1, le=10_000)] = 64
    """It never has more."""
    minimum_parameter_servers: Annotated[int, Field(ge=1, le=10_000)] = 1
    """It never has fewer parameter servers."""
    maximum_parameter_servers: Annotated[int, Field(ge=1, le=10_000)] = 16
    """It never has more, and never more than resources.virtual_buckets."""
    minimum_worker_cores: Cores | None = None
    """No plan gives a worker fewer cores. Absent: those under `resources`, as for all limits of sizes: without a
    minimum and a maximum plans leave the size as it is."""
    maximum_worker_cores: Cores | None = None
    """No plan gives a worker more cores. Absent: those under `resources`."""
    minimum_worker_memory: Memory | None = None
    """No plan gives a worker less memory. Absent: that under `resources`."""
    maximum_worker_memory: Memory | None = None
    """No plan gives a worker more memory, and none gets more after a kill for it. Absent: that under `resources`."""
    minimum_parameter_server_cores: Cores | None = None
    """No plan gives a parameter server fewer cores. Absent: those under `resources`."""
    maximum_parameter_server_cores: Cores | None = None
    """No plan gives a parameter server more cores. Absent: those under `resources`."""
    minimum_parameter_server_memory: Memory | None = None
    """No plan gives a parameter server less memory. Absent: that under `resources`."""
    maximum_parameter_server_memory: Memory | None = None
    """No plan gives a parameter server more memory, also where its tables will need it, and none gets more after a kill
    for it. Absent: that under `resources`; more servers are then the only remedy."""

    @model_validator(mode="after")
    def _ordered(self) -> Elasticity:
        for what in ("workers", "parameter_servers", *map("_".join, SIZES.values())):
            least, most = getattr(self, f"minimum_{what}"), getattr(self, f"maximum_{what}")
            if least is not None and most is not None and least > most:
                raise ValueError(
                    f"minimum_{what} {in_words(what, least)} is above maximum_{what} {in_words(what, most)}; raise the "
                    "maximum or lower the minimum"
                )
        return self

    def limits(self, role: str, amount: str) -> tuple[float | None, float | None]:
        """Least and most `cores` or `memory` (bytes) of a pod of a role; None where the file has no such limit."""
        return getattr(self, f"minimum_{role}_{amount}"), getattr(self, f"maximum_{role}_{amount}")


def in_words(field: str, value: float) -> str:
    """A number or an amount of a job file, for people."""
    return format_bytes(int(value)) if field.endswith("memory") else f"{value:g}"
