"""Which server owns which bucket, and since which epoch; the routing table follows from it. Pure.

A server that is added owns nothing until buckets are assigned to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from elastrec.platform.specs.errors import ElastrecError
from elastrec.platform.transport.job_messages import RoutingTable


class Ownership(msgspec.Struct, kw_only=True):
    """Owners of all buckets of a job.

    Attributes:
        servers: names of the servers that own something, in the order of the routing table.
        owners: for each bucket, an index into `servers`; empty: nothing was assigned yet.
        epochs: for each bucket; rises when another server owns it, and at no other time.
        epoch: the highest of them: that of the routing table.
    """

    servers: list[str] = []
    owners: list[int] = []
    epochs: list[int] = []
    epoch: int = 1

    def begin(self, epoch: int) -> None:
        """The epochs of a journal that begins in some term are above those of all terms before."""
        self.epoch = epoch

    def assign(self, servers: Sequence[str], buckets: int) -> None:
        """Bucket b belongs to server b mod S from now on.

        Raises:
            ElastrecError: there is no server.
        """
        if not servers:
            raise ElastrecError("buckets cannot be assigned: there is no parameter server")
        self._set(list(servers), [bucket % len(servers) for bucket in range(buckets)])

    def take_over(self, before: str, after: str) -> None:
        """A server owns what another one owned; it stands in its place in the routing table."""
        if before in self.servers:
            self._set([after if server == before else server for server in self.servers], self.owners)

    def _set(self, servers: list[str], owners: list[int]) -> None:
        old = [self.servers[owner] for owner in self.owners]
        new = [servers[owner] for owner in owners]
        if not old:
            self.epochs = [self.epoch] * len(new)
        elif changed := [bucket for bucket, owner in enumerate(new) if owner != old[bucket]]:
            self.epoch += 1
            for bucket in changed:
                self.epochs[bucket] = self.epoch
        self.servers, self.owners = servers, owners

    def table(self, addresses: Mapping[str, str]) -> RoutingTable:
        """The routing table; the address of a server is empty until it has registered."""
        return RoutingTable(
            epoch=self.epoch,
            owners=self.owners,
            servers=self.servers,
            addresses=[addresses.get(server, "") for server in self.servers],
        )
