"""What one server is responsible for, and a copy of its model of one moment."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from elastrec.platform.specs.errors import ElastrecError
from elastrec.platform.transport.messages.job import RoutingTable
from elastrec.trainers.parameter_server.dense.store import DenseBucket, DenseStore
from elastrec.trainers.parameter_server.messages import Parameter
from elastrec.trainers.parameter_server.serving.attendance import Attendance
from elastrec.trainers.parameter_server.serving.marks import BucketMarks
from elastrec.trainers.parameter_server.storage import RowStore

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Place:
    """What one server is responsible for under a routing table.

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
        """No bucket, of a job with so many as this one."""
        return Place(np.zeros_like(like.owned), np.zeros_like(like.dense_owned))

    def same_as(self, other: Place) -> bool:
        return np.array_equal(self.owned, other.owned) and np.array_equal(self.dense_owned, other.dense_owned)

    def without(self, other: Place) -> Place:
        """What is in this place and not in the other one."""
        return Place(self.owned & ~other.owned, self.dense_owned & ~other.dense_owned)

    @property
    def is_empty(self) -> bool:
        return not (self.owned.any() or self.dense_owned.any())


def marks_within(marks: Iterable[BucketMarks], place: Place) -> list[BucketMarks]:
    """Marks of the buckets of a place; those of others are left out."""
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
    """What a server has given away and still holds, so that its new owners can fetch it. Nothing of it changes.

    Attributes:
        place: the buckets; their rows are still in the stores.
        layout: of all dense parameters; empty: there are none yet.
        attendance: of the moment in which it was given away.
        order_id: of the change of servers in which it was; epoch: of the routing table that gives it to others.
    """

    order_id: str
    epoch: int
    place: Place
    attendance: Attendance
    marks: list[BucketMarks]
    layout: list[Parameter]
    dense: list[DenseBucket]


@dataclass(frozen=True)
class Frozen:
    """A server's model of one moment.

    Attributes:
        owned: buckets that the server answers for; stores: with those of their buckets that are frozen.
        marks: which pushes are in the model; every owned bucket, of rows and dense, is in exactly one of them.
    """

    owned: list[int]
    stores: list[tuple[RowStore, list[int]]]
    dense: DenseStore | None
    generation: int
    marks: list[BucketMarks]

    def thaw(self) -> None:
        """Gives up what was not copied; may be called at any time, and again."""
        for store, buckets in self.stores:
            store.cuts.thaw(buckets)
