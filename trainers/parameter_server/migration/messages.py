"""Requests of a parameter server to another one whose buckets it takes over.

    CopyBuckets → no arrays
    Copied      ← rows [n, W] uint32, candidates [c, 5] uint32, deleted [d, 4] uint32: cells, bucket after bucket
    HandOver    → no arrays
    HandedOver  ← dense values [E] float32, dense state [s, E] float32, bucket after bucket

Every answer may be lost and every request repeated: copying changes nothing at the old owner, and cells that are
received twice are stored once. After HandOver, the old owner no longer changes these buckets.
"""

from __future__ import annotations

import msgspec

from elastrec.platform.transport.messages.directive import RoutingTable
from elastrec.platform.transport.messages.job import Message
from elastrec.trainers.parameter_server.messages import Parameter, Stale
from elastrec.trainers.parameter_server.serving.attendance import Attendance
from elastrec.trainers.parameter_server.serving.marks import BucketMarks


class CopyBuckets(Message, frozen=True):
    """Asks for cells of buckets of one table group.

    Attributes:
        since: for each bucket, the version in an earlier answer; only later changes are requested. -1: all.
        left: for each bucket, the rest that this answer has left to copy; (0, 0): nothing.
    """

    generation: int
    group: int
    buckets: list[int]
    since: list[int]
    left: list[tuple[int, int]]


class BucketCells(msgspec.Struct, frozen=True, array_like=True):
    """The number of an answer's cells of one bucket; see `storage.Changes`. One with cells left is the last."""

    bucket: int
    version: int
    is_whole: bool
    rows: int
    candidates: int
    deleted: int
    left: tuple[int, int]


class Copied(Message, frozen=True):
    """Answer to CopyBuckets.

    Attributes:
        parts: of the first requested buckets, as many as fit into an answer. None: the first one is being saved; ask
            again.
    """

    parts: list[BucketCells]


class HandOver(Message, frozen=True):
    """Requests the buckets that `server` owns under a routing table and that the old owner still holds.

    Attributes:
        order_id: of the change of servers.
        routing: newer than the old owner's, or the one that it has already adopted.
    """

    server: str
    order_id: str
    generation: int
    routing: RoutingTable


class DenseCells(msgspec.Struct, frozen=True, array_like=True):
    """One dense bucket: its number of elements and of their steps."""

    bucket: int
    elements: int
    steps: int


class HandedOver(Message, frozen=True):
    """Answer to HandOver: the old owner no longer changes these contents.

    Attributes:
        attendance: the workers whose pushes the old owner has included.
        marks: of applied pushes; each of these buckets is in exactly one of them.
        layout: of all dense parameters; empty: there are none yet.
        record: URI of the record with their values, if no worker has sent those of its network; otherwise empty.
    """

    attendance: Attendance
    marks: list[BucketMarks]
    layout: list[Parameter]
    dense: list[DenseCells]
    record: str = ""


REQUESTS: tuple[type[Message], ...] = (CopyBuckets, HandOver)
"""The requests of other servers to a server's stream."""
ANSWERS: tuple[type[Message], ...] = (Copied, HandedOver, Stale)
