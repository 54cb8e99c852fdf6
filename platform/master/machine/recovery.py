"""What a job goes back to, and which of its servers still has to restore that. Pure.

A restore is ordered per server, by an order of its own that no other server carries out. A rollback orders all of
them. A server that takes a place over while others restore gets an order, too, and theirs stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from elastrec.platform.specs.splits import Positions
from elastrec.platform.transport.messages.job import RestoreOrder


class CompleteRecord(msgspec.Struct, frozen=True):
    """A record of this job that a rollback can return to."""

    uri: str
    positions: Positions
    is_final: bool
    step: int


class Restore(msgspec.Struct, kw_only=True):
    """The order of one server. `since` is when its time began."""

    order: RestoreOrder
    since: float
    is_done: bool = False


class Recovery(msgspec.Struct, kw_only=True):
    """Records to go back to, and restore orders in force.

    Attributes:
        start_records: what the job may start from, the first choice first; an empty one is nothing at all.
        begins_at_positions: of its start record; else it takes the weights of one alone.
        number: of the rollback whose orders are in force; part of their ids.
        uri: of the record that they name; empty: from nothing.
        with_marks: shards stand at the positions of that record.
        records: the newest complete ones of this job that are not known to be damaged, oldest first.
        damaged: URIs of records that a server could not restore because of their bytes.
        saved_rows: trained rows of the record that holds most of them, all epochs.
        servers: orders by pod name.
    """

    start_records: list[str]
    number: int = 1
    uri: str = ""
    with_marks: bool = False
    begins_at_positions: bool = False
    records: list[CompleteRecord] = []
    damaged: list[str] = []
    saved_rows: int = 0
    rollbacks: int = 0
    servers: dict[str, Restore] = {}

    @property
    def record(self) -> CompleteRecord | None:
        """The one that a rollback returns to."""
        return self.records[-1] if self.records else None

    @property
    def start_record(self) -> str | None:
        """What is gone back to where there is no record: a URI, '' for nothing; None: all of them are damaged."""
        return next((uri for uri in self.start_records if uri not in self.damaged), None)

    def add_record(self, record: CompleteRecord, keep: int) -> None:
        """A record is complete; so many are kept to go back to."""
        self.records = [*self.records, record][-keep:]

    def give_up_record(self, uri: str) -> None:
        """A record is damaged: no rollback returns to it."""
        self.damaged.append(uri)
        self.records = [record for record in self.records if record.uri != uri]

    def resume_from(self, number: int, records: Sequence[CompleteRecord]) -> None:
        """The first orders, of a journal that begins with what an earlier one has left."""
        self.number, self.records = number, list(records)
        self._choose()

    def roll_back(self, number: int) -> None:
        """No order is in force any more; those that follow name the newest record."""
        self.number = number
        self.rollbacks += 1
        self.servers = {}
        self._choose()

    def _choose(self) -> None:
        record = self.record
        self.uri = record.uri if record else self.start_record or ""
        self.with_marks = record is not None or (self.begins_at_positions and bool(self.uri))

    def order(self, pod: str, time: float) -> None:
        """This server has to restore what the job goes back to."""
        order = RestoreOrder(f"restore-{self.number}/{pod}", self.uri, self.with_marks)
        self.servers[pod] = Restore(order=order, since=time)

    def forget(self, pod: str) -> None:
        """It is no server of the job any more."""
        self.servers.pop(pod, None)

    def is_in_force(self, pod: str, order_id: str) -> bool:
        """Whether this is the order of that server."""
        restore = self.servers.get(pod)
        return restore is not None and restore.order.order_id == order_id

    def would_restore(self, pod: str, order_id: str) -> bool:
        """Whether a report says something new."""
        return self.is_in_force(pod, order_id) and not self.servers[pod].is_done

    def restored(self, pod: str, order_id: str) -> None:
        """A server says which order it has carried out last; empty: its process has no rows."""
        if (restore := self.servers.get(pod)) is not None:
            restore.is_done = restore.order.order_id == order_id

    def awaited(self) -> list[str]:
        """Servers that have not restored yet."""
        return [pod for pod, restore in self.servers.items() if not restore.is_done]

    def keep_time(self, time: float) -> None:
        """Everybody has the whole time again."""
        for restore in self.servers.values():
            restore.since = time
