"""The shape of a job: how many pods of each role, and the size of each; and how one changed into another."""

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


UNDER_WAY, DONE = "under way", "done"


class MovedServer(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter server that owns rows before or after a migration.

    Attributes:
        is_new, leaves: it owns none before, or none after.
        up_seconds: when a new one had registered; None: it was there, or never came up.
    """

    name: str
    is_new: bool = False
    leaves: bool = False
    up_seconds: float | None = None


class MigrationSeen(msgspec.Struct, frozen=True, kw_only=True):
    """One change of parameter servers while the job trained (DLRover-RM §5.2).

    Seconds are on the job's clock; None: it did not come so far.

    Attributes:
        servers_before, servers_after: how many own rows.
        copying_seconds, handing_over_seconds: when these stages began, at last where they had to begin again.
        outcome: UNDER_WAY, DONE, or why it was given up.
        requests: ids of the requests that were open meanwhile.
        servers: empty before rows are copied, unless it was given up before.
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
        """From the new routing table until its owners serve: no step ends meanwhile; None unless it is done."""
        if self.outcome != DONE or self.handing_over_seconds is None or self.ended_seconds is None:
            return None
        return self.ended_seconds - self.handing_over_seconds

    @property
    def copied_seconds(self) -> float | None:
        """How long rows were copied while the job trained; None unless it is done."""
        if self.outcome != DONE or self.handing_over_seconds is None or self.copying_seconds is None:
            return None
        return self.handing_over_seconds - self.copying_seconds
