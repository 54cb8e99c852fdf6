"""What one server is responsible for, and a copy of its model of one moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from elastrec.platform.specs.errors import ElastrecError
from elastrec.platform.transport.messages.job import RoutingTable
from elastrec.trainers.parameter_server.dense.store import DenseStore
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

    def same_as(self, other: Place) -> bool:
        return np.array_equal(self.owned, other.owned) and np.array_equal(self.dense_owned, other.dense_owned)


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
