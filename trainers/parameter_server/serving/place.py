"""The place of a server, and a snapshot of its model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from elastrec.platform.specs.errors import ElastrecError
from elastrec.platform.transport.messages.directive import RoutingTable
from elastrec.trainers.parameter_server.dense.store import DenseBucket, DenseStore
from elastrec.trainers.parameter_server.messages import Parameter
from elastrec.trainers.parameter_server.serving.attendance import Attendance
from elastrec.trainers.parameter_server.serving.marks import BucketMarks
from elastrec.trainers.parameter_server.storage import RowStore

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Place:
    """The buckets of one server under a routing table.

    Attributes:
        owned: [V] bool, its virtual buckets; dense_owned: [B] bool, its dense buckets.
    """

    owned: Array
    dense_owned: Array

    @staticmethod
    def under(routing: RoutingTable, name: str) -> Place:
        """Raises ElastrecError when the routing table does not name the server."""
        if name not in routing.servers:
            raise ElastrecError(f"the routing table of epoch {routing.epoch} names {routing.servers}, not {name!r}")
        index = routing.servers.index(name)
        return Place(np.asarray(routing.owners) == index, np.asarray(routing.dense_owners) == index)

    @staticmethod
    def nothing(like: Place) -> Place:
        """An empty place of the same job."""
        return Place(np.zeros_like(like.owned), np.zeros_like(like.dense_owned))

    def same_as(self, other: Place) -> bool:
        return np.array_equal(self.owned, other.owned) and np.array_equal(self.dense_owned, other.dense_owned)

    def without(self, other: Place) -> Place:
        """The buckets of this place that are not in the other one."""
        return Place(self.owned & ~other.owned, self.dense_owned & ~other.dense_owned)

    @property
    def is_empty(self) -> bool:
        return not (self.owned.any() or self.dense_owned.any())


def marks_within(marks: Iterable[BucketMarks], place: Place) -> list[BucketMarks]:
    """Marks of the buckets of a place, without those of others."""
    found = [
        BucketMarks(
            [bucket for bucket in each.buckets if place.owned[bucket]],
            [bucket for bucket in each.dense_buckets if place.dense_owned[bucket]],
            each.streams,
        )
        for each in marks
    ]
    return [each for each in found if each.buckets or each.dense_buckets]


@dataclass(frozen=True)
class Left:
    """Contents that a server has given away and keeps until the new owners have fetched them. They do not change.

    Attributes:
        place: the buckets; their rows are still in the stores.
        layout: of all dense parameters; empty: there are none yet.
        record: URI of the record with the dense values, if no worker has sent those of its network; otherwise empty.
        attendance: at the time of the hand-over.
        order_id: of the change of servers; epoch: of the routing table with the new owners.
    """

    order_id: str
    epoch: int
    place: Place
    attendance: Attendance
    marks: list[BucketMarks]
    layout: list[Parameter]
    dense: list[DenseBucket]
    record: str


@dataclass(frozen=True)
class Frozen:
    """A snapshot of a server's model.

    Attributes:
        owned: the server's buckets; stores: with the frozen buckets of each.
        marks: of the pushes in the model; every owned bucket, virtual or dense, is in exactly one of them.
    """

    owned: list[int]
    stores: list[tuple[RowStore, list[int]]]
    dense: DenseStore | None
    generation: int
    marks: list[BucketMarks]

    def thaw(self) -> None:
        """Ends the snapshot without copying the rest; may be called at any time and repeatedly."""
        for store, buckets in self.stores:
            store.cuts.thaw(buckets)
