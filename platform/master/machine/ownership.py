"""The owners of buckets and the epochs of their changes, which determine the routing table. Pure.

A new server owns nothing until buckets are assigned to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from elastrec.platform.specs.buckets import balanced_owners, dense_buckets_for
from elastrec.platform.specs.errors import ElastrecError
from elastrec.platform.transport.messages.directive import RoutingTable


class Ownership(msgspec.Struct, kw_only=True):
    """Owners of all buckets of a job.

    Attributes:
        servers: names of the owners, in the order of the routing table.
        owners: for each virtual bucket, an index into `servers`; empty if nothing was assigned yet.
        dense_owners: for each dense bucket, likewise.
        epochs, dense_epochs: for each of these buckets; increases only when its owner changes.
        epoch: the highest of them, which is that of the routing table.
    """

    servers: list[str] = []
    owners: list[int] = []
    epochs: list[int] = []
    dense_owners: list[int] = []
    dense_epochs: list[int] = []
    epoch: int = 1

    def begin(self, epoch: int) -> None:
        """Sets the first epoch of a journal that begins in a term, above the epochs of all earlier terms."""
        self.epoch = epoch

    def assign(self, servers: Sequence[str], buckets: int) -> None:
        """Assigns virtual bucket b to server b mod S; as few dense buckets as possible change owners.

        Args:
            buckets: virtual buckets of the job; the number of its dense buckets follows.

        Raises:
            ElastrecError: there is no server.
        """
        if not servers:
            raise ElastrecError("buckets cannot be assigned: there is no parameter server")
        places = {server: place for place, server in enumerate(servers)}
        before = [places.get(self.servers[owner]) for owner in self.dense_owners]
        self._set(
            list(servers),
            [bucket % len(servers) for bucket in range(buckets)],
            balanced_owners(dense_buckets_for(buckets), len(servers), before),
        )

    def move(self, servers: Sequence[str], owners: Sequence[int], dense_owners: Sequence[int]) -> None:
        """Assigns buckets to these servers, after a migration has copied the buckets whose owners change."""
        self._set(list(servers), list(owners), list(dense_owners))

    def take_over(self, before: str, after: str) -> None:
        """A server takes over all buckets of another server, and its place in the routing table."""
        if before in self.servers:
            servers = [after if server == before else server for server in self.servers]
            self._set(servers, self.owners, self.dense_owners)

    def _set(self, servers: list[str], owners: list[int], dense_owners: list[int]) -> None:
        changed = self._changed(self.owners, servers, owners)
        dense_changed = self._changed(self.dense_owners, servers, dense_owners)
        if not self.owners:
            self.epochs, self.dense_epochs = [self.epoch] * len(owners), [self.epoch] * len(dense_owners)
        elif changed or dense_changed:
            self.epoch += 1
            for epochs, buckets in ((self.epochs, changed), (self.dense_epochs, dense_changed)):
                for bucket in buckets:
                    epochs[bucket] = self.epoch
        self.servers, self.owners, self.dense_owners = servers, owners, dense_owners

    def _changed(self, before: list[int], servers: list[str], after: list[int]) -> list[int]:
        """Buckets whose owner changes."""
        pairs = enumerate(zip(before, after, strict=False))
        return [bucket for bucket, (old, new) in pairs if self.servers[old] != servers[new]]

    def table(self, addresses: Mapping[str, str]) -> RoutingTable:
        """The routing table; the address of a server is empty until it has registered."""
        return RoutingTable(
            epoch=self.epoch,
            owners=self.owners,
            servers=self.servers,
            addresses=[addresses.get(server, "") for server in self.servers],
            dense_owners=self.dense_owners,
        )
