"""The shape of a job: the number and the size of its pods by role; and changes of the shape."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import msgspec

from elastrec.platform.specs.metrics import Role

if TYPE_CHECKING:
    from elastrec.platform.specs.elasticity import PodResources, Resources


class PodSize(msgspec.Struct, frozen=True):
    """Requested resources of a pod, which are also its limits."""

    cores: float
    memory_bytes: int


class Places(msgspec.Struct, frozen=True):
    """Pods of one role."""

    count: int
    size: PodSize

    @staticmethod
    def of(resources: PodResources) -> Places:
        """The places of a role as in the job file."""
        return Places(resources.count, PodSize(resources.cores, resources.memory))

    def changed(self, change: PlacesChange) -> Places:
        """These places with what the change names."""
        cores = self.size.cores if change.cores is None else change.cores
        memory_bytes = self.size.memory_bytes if change.memory_bytes is None else change.memory_bytes
        return Places(self.count if change.count is None else change.count, PodSize(cores, memory_bytes))

    def change_from(self, before: Places) -> PlacesChange:
        """The change that leads from other places to these."""
        return PlacesChange(
            count=None if self.count == before.count else self.count,
            cores=None if self.size.cores == before.size.cores else self.size.cores,
            memory_bytes=None if self.size.memory_bytes == before.size.memory_bytes else self.size.memory_bytes,
        )


class PlacesChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change for the pods of one role; None: no change. Cores and memory are those of one pod."""

    count: int | None = None
    cores: float | None = None
    memory_bytes: int | None = None

    def changed(self, change: PlacesChange) -> PlacesChange:
        """This change with what another one names."""
        named = {field: value for field in self.__struct_fields__ if (value := getattr(change, field)) is not None}
        return msgspec.structs.replace(self, **named)

    def earlier(self, before: Places) -> PlacesChange:
        """The change of the same fields to the values of other places, which undoes this one if it was made there."""
        return PlacesChange(
            count=None if self.count is None else before.count,
            cores=None if self.cores is None else before.size.cores,
            memory_bytes=None if self.memory_bytes is None else before.size.memory_bytes,
        )


ShapeChange = Mapping[Role, PlacesChange]


class Shape(msgspec.Struct, frozen=True):
    """Places by role. A value: equal shapes are equal keys."""

    places: dict[Role, Places]

    def __hash__(self) -> int:
        return hash(frozenset(self.places.items()))

    def __getitem__(self, role: Role) -> Places:
        return self.places[role]

    @staticmethod
    def of(resources: Resources) -> Shape:
        """Workers and servers of a job file."""
        return Shape(
            {
                Role.PARAMETER_SERVER: Places.of(resources.parameter_server),
                Role.WORKER: Places.of(resources.worker),
            }
        )

    def changed(self, change: ShapeChange) -> Shape:
        """This shape with what the change names."""
        return Shape({role: p.changed(change[role]) if role in change else p for role, p in self.places.items()})

    def change_from(self, before: Shape) -> ShapeChange:
        """The change that leads from another shape to this one."""
        return {r: places.change_from(before[r]) for r, places in self.places.items() if places != before[r]}


def field_name(role: Role, field: str) -> str:
    """The name of a field of a PlacesChange in messages: `workers`, `parameter_server_cores`."""
    name = role.replace("-", "_")
    return f"{name}s" if field == "count" else f"{name}_{field}"


def named_fields(change: ShapeChange) -> dict[str, float]:
    """The fields that a change sets, by their names in messages."""
    return {
        field_name(role, field): value
        for role, places in change.items()
        for field in PlacesChange.__struct_fields__
        if (value := getattr(places, field)) is not None
    }


def sizes_of_fields(sizes: Shape, fields: Collection[str]) -> ShapeChange:
    """The change to these sizes in which only those are set that fields of a job file name.

    Args:
        sizes: of the job file.
        fields: dotted paths, `spec.resources.worker.count`; others than those of sizes are ignored.
    """

    def change(role: Role, section: str) -> PlacesChange:
        places, path = sizes[role], f"spec.resources.{section}"
        return PlacesChange(
            count=places.count if f"{path}.count" in fields else None,
            cores=places.size.cores if f"{path}.cores" in fields else None,
            memory_bytes=places.size.memory_bytes if f"{path}.memory" in fields else None,
        )

    return {
        Role.WORKER: change(Role.WORKER, "worker"),
        Role.PARAMETER_SERVER: change(Role.PARAMETER_SERVER, "parameter_server"),
    }


UNDER_WAY, DONE = "under way", "done"


class MovedServer(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter server that owns rows before or after a migration.

    Attributes:
        is_new, leaves: whether it owns no rows before, or none after.
        up_seconds: when a new server had registered; None if it existed before or never registered.
    """

    name: str
    is_new: bool = False
    leaves: bool = False
    up_seconds: float | None = None


class MigrationSeen(msgspec.Struct, frozen=True, kw_only=True):
    """One change of parameter servers while the job trained (DLRover-RM §5.2).

    Seconds are on the job's clock; None: this stage was not reached.

    Attributes:
        servers_before, servers_after: how many own rows.
        copying_seconds, handing_over_seconds: when these stages began; the last time if they began again.
        outcome: UNDER_WAY, DONE, or why it was given up.
        requests: ids of the requests that were open meanwhile.
        servers: empty before rows are copied, unless the migration was given up before.
    """

    servers_before: int
    servers_after: int
    unix_seconds: float
    begun_seconds: float
    copying_seconds: float | None = None
    handing_over_seconds: float | None = None
    ended_seconds: float | None = None
    outcome: str = UNDER_WAY
    requests: list[str] = []
    servers: list[MovedServer] = []

    @property
    def pause_seconds(self) -> float | None:
        """Seconds from the new routing table until its owners serve, in which no step ends; None unless the migration
        is done."""
        if self.outcome != DONE or self.handing_over_seconds is None or self.ended_seconds is None:
            return None
        return self.ended_seconds - self.handing_over_seconds

    @property
    def copied_seconds(self) -> float | None:
        """Seconds in which rows were copied while the job trained; None unless the migration is done."""
        if self.outcome != DONE or self.handing_over_seconds is None or self.copying_seconds is None:
            return None
        return self.handing_over_seconds - self.copying_seconds
