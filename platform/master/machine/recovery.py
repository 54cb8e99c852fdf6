"""The record to which a job rolls back, and the servers that must still restore it. Pure.

Each server has its own restore order. A rollback gives an order to all servers. A server that replaces another one
while others restore gets an order, too, and the other orders stay valid.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from elastrec.platform.specs.splits import Positions
from elastrec.platform.transport.messages.directive import RestoreOrder


class CompleteRecord(msgspec.Struct, frozen=True):
    """A record of this job that a rollback can return to.

    Attributes:
        base: URI of the record on which it builds; empty: none.
    """

    uri: str
    positions: Positions
    is_final: bool
    step: int
    base: str = ""


class Restore(msgspec.Struct, kw_only=True):
    """The order of one server. `since` is the start of its timeout."""

    order: RestoreOrder
    since: float
    is_done: bool = False


class Recovery(msgspec.Struct, kw_only=True):
    """Records to go back to, and restore orders in force.

    Attributes:
        start_records: records from which the job may start, the first choice first; empty text: without a record.
        begins_at_positions: whether it begins at the positions of its start record; otherwise it only uses the weights.
        number: of the rollback whose orders are valid; part of their ids.
        uri: of the record in the orders; empty: without a record.
        with_marks: whether shards are at the positions of that record.
        records: the newest complete records of this job that are not known to be damaged, and those on which they
            build, oldest first.
        damaged: URIs of damaged records.
        saved_rows: the largest number of trained rows in a record, all epochs.
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
        """The record to which a rollback returns."""
        return self.records[-1] if self.records else None

    @property
    def start_record(self) -> str | None:
        """The start record for a rollback without own records: a URI, or '' for none; None if all of them are
        damaged."""
        return next((uri for uri in self.start_records if uri not in self.damaged), None)

    def add_record(self, record: CompleteRecord, keep: int) -> None:
        """Adds a complete record. The newest `keep` ones stay, and those on which they build, as in the store."""
        records = [*self.records, record]
        self.records, bases = records[-keep:], {each.base for each in records[-keep:]}
        for older in reversed(records[:-keep]):
            if older.uri in bases:
                self.records.insert(0, older)
                bases.add(older.base)

    def give_up_record(self, uri: str) -> None:
        """A record is damaged: no rollback returns to it, nor to one that builds on it."""
        lost = [uri]
        for record in self.records:
            if record.base in lost and record.uri not in lost:
                lost.append(record.uri)
        self.damaged += [each for each in lost if each not in self.damaged]
        self.records = [record for record in self.records if record.uri not in lost]

    def resume_from(self, number: int, records: Sequence[CompleteRecord]) -> None:
        """Gives the first orders in a journal that continues from records of an earlier one."""
        self.number, self.records = number, list(records)
        self._choose()

    def roll_back(self, number: int) -> None:
        """Invalidates all orders; new ones name the newest record."""
        self.number = number
        self.rollbacks += 1
        self.servers = {}
        self._choose()

    def _choose(self) -> None:
        record = self.record
        self.uri = record.uri if record else self.start_record or ""
        self.with_marks = record is not None or (self.begins_at_positions and bool(self.uri))

    def order(self, pod: str, time: float) -> None:
        """Orders this server to restore the record of the rollback."""
        order = RestoreOrder(f"restore-{self.number}/{pod}", self.uri, self.with_marks)
        self.servers[pod] = Restore(order=order, since=time)

    def forget(self, pod: str) -> None:
        """Removes a server that does not belong to the job any more."""
        self.servers.pop(pod, None)

    def is_in_force(self, pod: str, order_id: str) -> bool:
        """Whether this is the order of that server."""
        restore = self.servers.get(pod)
        return restore is not None and restore.order.order_id == order_id

    def would_restore(self, pod: str, order_id: str) -> bool:
        """Whether a report has new information."""
        return self.is_in_force(pod, order_id) and not self.servers[pod].is_done

    def restored(self, pod: str, order_id: str) -> None:
        """Takes a server's report of its last executed order; empty: its process has no rows."""
        if (restore := self.servers.get(pod)) is not None:
            restore.is_done = restore.order.order_id == order_id

    def awaited(self) -> list[str]:
        """Servers that have not restored yet."""
        return [pod for pod, restore in self.servers.items() if not restore.is_done]

    def keep_time(self, time: float) -> None:
        """Restarts the time of all orders."""
        for restore in self.servers.values():
            restore.since = time
