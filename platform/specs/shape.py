"""The shape of a job: how many pods of each role, and the size of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from elastrec.platform.specs.metrics import Role

if TYPE_CHECKING:
    from elastrec.platform.specs.job import PodResources, Resources


class PodSize(msgspec.Struct, frozen=True):
    """What a pod asks for and is limited to."""

    cores: float
    memory_bytes: int


class Places(msgspec.Struct, frozen=True):
    """Pods of one role."""

    count: int
    size: PodSize

    @staticmethod
    def of(resources: PodResources) -> Places:
        """As a job file has them."""
        return Places(resources.count, PodSize(resources.cores, resources.memory))

    def changed(self, change: PlacesChange) -> Places:
        """These places with what the change names."""
        cores = self.size.cores if change.cores is None else change.cores
        memory_bytes = self.size.memory_bytes if change.memory_bytes is None else change.memory_bytes
        return Places(self.count if change.count is None else change.count, PodSize(cores, memory_bytes))


class PlacesChange(msgspec.Struct, frozen=True, kw_only=True):
    """What shall be different for the pods of one role; None: nothing. Cores and memory are those of one pod."""

    count: int | None = None
    cores: float | None = None
    memory_bytes: int | None = None


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


def field_name(role: Role, field: str) -> str:
    """The name that people read for a field of a PlacesChange: `workers`, `parameter_server_cores`."""
    name = role.replace("-", "_")
    return f"{name}s" if field == "count" else f"{name}_{field}"


def named_fields(change: ShapeChange) -> dict[str, float]:
    """What a change names, under the names that people read."""
    return {
        field_name(role, field): value
        for role, places in change.items()
        for field in PlacesChange.__struct_fields__
        if (value := getattr(places, field)) is not None
    }
