"""The sections `resources` and `scaling` of a job file: sizes of pods, and their limits; and prices of resources."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from elastrec.platform.specs.base import Spec
from elastrec.platform.specs.text.patterns import CURRENCY_PATTERN
from elastrec.platform.specs.text.quantities import Cores, CoresOrNone, Memory, format_bytes

SIZES = {
    "worker_cores": ("worker", "cores"),
    "worker_memory_bytes": ("worker", "memory"),
    "parameter_server_cores": ("parameter_server", "cores"),
    "parameter_server_memory_bytes": ("parameter_server", "memory"),
}
"""For each size that may have limits: the field of `scaling.amounts.Allocation`, and its place in `resources`."""

LIMITED = (("worker", "count"), ("parameter_server", "count"), *SIZES.values())
"""What has limits in `scaling`, by its place in `resources`."""


def what_of(role: str, amount: str) -> str:
    """How the limits of a `count`, `cores` or `memory` are named: `minimum_workers`, `maximum_worker_cores`."""
    return f"{role}s" if amount == "count" else f"{role}_{amount}"


class PodResources(Spec):
    """The number of pods of a role, and the size of each."""

    count: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Number of pods of this role; 1 for master and evaluator."""
    cores: Cores = 1.0
    """Cores of each pod; thread counts follow it."""
    memory: Memory = 2 * 2**30
    """Memory of each pod. A pod that uses more is killed and replaced by a pod with twice the memory, up to
    `scaling.maximum_ROLE_memory`. If this happens twice in a row at the same size, without progress in between, the job
    fails."""


class Resources(Spec):
    """Requested sizes by role."""

    master: PodResources = PodResources(cores=0.25, memory=512 * 2**20)
    """The pod that owns the job: shards, membership, phases."""
    worker: PodResources = PodResources()
    """The pods that compute gradients."""
    parameter_server: PodResources = PodResources()
    """The pods that hold the embedding rows and the dense parameters."""
    evaluator: PodResources = PodResources()
    """The pod that exports the model and scores the champion after training."""
    startup_cores: CoresOrNone = 1.0
    """Cores that master, workers and servers may use while they start, if the cores are idle and it is more than the
    pod's own cores. They load their libraries faster, and then work with the granted cores. 0: no additional cores."""
    virtual_buckets: Annotated[int, Field(ge=64, le=65_536)] = 256
    """Number of buckets to which rows are assigned; buckets are assigned to servers."""

    @field_validator("master", "evaluator")
    @classmethod
    def _single(cls, resources: PodResources) -> PodResources:
        if resources.count != 1:
            raise ValueError("count must be 1: a job has exactly one pod of this role; remove the field count")
        return resources

    @model_validator(mode="after")
    def _consistent(self) -> Resources:
        if self.parameter_server.count > self.virtual_buckets:
            raise ValueError(
                f"parameter_server.count {self.parameter_server.count} is above virtual_buckets "
                f"{self.virtual_buckets}; every server needs at least one bucket"
            )
        return self


class Prices(Spec):
    """Prices of resources in any currency. All prices are required, because defaults could be in another currency."""

    core_hour: Annotated[float, Field(ge=0)]
    """Price of one core for an hour."""
    gibibyte_hour: Annotated[float, Field(ge=0)]
    """Price of one GiB of memory for an hour."""

    @model_validator(mode="after")
    def _not_all_free(self) -> Prices:
        if not self.core_hour + self.gibibyte_hour:
            raise ValueError("core_hour and gibibyte_hour are both 0; set at least one")
        return self


class PaidPrices(Prices):
    """What a team pays for the resources of its jobs. It does not affect decisions."""

    currency: Annotated[str, Field(pattern=CURRENCY_PATTERN, examples=["EUR"])]
    """The currency of both prices, as its ISO 4217 code."""

    def of(self, core_seconds: float, byte_seconds: float) -> float:
        """The cost of the given core-seconds and byte-seconds."""
        return (self.core_hour * core_seconds + self.gibibyte_hour * byte_seconds / 2**30) / 3600


class Elasticity(Spec):
    """The sizes with which a job starts, and the limits of live scaling."""

    start: Literal["job_file", "history"] = "job_file"
    """`job_file`: start with the sizes under `resources`; `history`: start with the sizes of similar finished jobs."""
    enabled: bool = True
    """Whether the job takes part in automatic scaling."""
    relieve_hot_servers: bool = True
    """Whether the job moves buckets away from a parameter server that gets far more look-ups per core than the others.
    Does not depend on `enabled`."""
    minimum_workers: Annotated[int, Field(ge=1, le=10_000)] = 1
    """The minimum number of workers, even if other jobs need the cores; at most `resources.worker.count`."""
    maximum_workers: Annotated[int, Field(ge=1, le=10_000)] = 64
    """The maximum number of workers; at least `resources.worker.count`."""
    minimum_parameter_servers: Annotated[int, Field(ge=1, le=10_000)] = 1
    """The minimum number of parameter servers; at most `resources.parameter_server.count`."""
    maximum_parameter_servers: Annotated[int, Field(ge=1, le=10_000)] = 16
    """The maximum number of parameter servers, which is also limited by `resources.virtual_buckets`; at least
    `resources.parameter_server.count`."""
    minimum_worker_cores: Cores | None = None
    """No plan gives a worker fewer cores. Absent: the cores under `resources`. As with all limits of sizes, plans do
    not change the size if both the minimum and the maximum are absent."""
    maximum_worker_cores: Cores | None = None
    """No plan gives a worker more cores. Absent: the cores under `resources`."""
    minimum_worker_memory: Memory | None = None
    """No plan gives a worker less memory. Absent: the memory under `resources`."""
    maximum_worker_memory: Memory | None = None
    """No worker gets more memory, neither by a plan nor after it was killed for memory. Absent: the memory under
    `resources`."""
    minimum_parameter_server_cores: Cores | None = None
    """No plan gives a parameter server fewer cores. Absent: the cores under `resources`."""
    maximum_parameter_server_cores: Cores | None = None
    """No plan gives a parameter server more cores. Absent: the cores under `resources`. If a person requests more,
    the servers are replaced by larger ones, because a server cannot use more cores than it was started for."""
    minimum_parameter_server_memory: Memory | None = None
    """No plan gives a parameter server less memory. Absent: the memory under `resources`."""
    maximum_parameter_server_memory: Memory | None = None
    """No parameter server gets more memory, neither by a plan (even if its tables will need it) nor after it was killed
    for memory. Absent: the memory under `resources`; then only more servers can help."""

    @model_validator(mode="after")
    def _ordered(self) -> Elasticity:
        for role, amount in LIMITED:
            what, (least, most) = what_of(role, amount), self.limits(role, amount)
            if least is not None and most is not None and least > most:
                raise ValueError(
                    f"minimum_{what} {in_words(what, least)} is above maximum_{what} {in_words(what, most)}; raise the "
                    "maximum or lower the minimum"
                )
        return self

    def limits(self, role: str, amount: str) -> tuple[float | None, float | None]:
        """Minimum and maximum `count` of pods of a role, or `cores` or `memory` (bytes) of each; None if the job file
        has no such limit."""
        what = what_of(role, amount)
        return getattr(self, f"minimum_{what}"), getattr(self, f"maximum_{what}")


def in_words(field: str, value: float) -> str:
    """A number or an amount of a job file, for people."""
    return format_bytes(int(value)) if field.endswith("memory") else f"{value:g}"
