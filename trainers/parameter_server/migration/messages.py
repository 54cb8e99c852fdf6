"""What one parameter server asks another one for whose buckets it takes over.

    CopyBuckets → no arrays
    Copied      ← rows [n, W] uint32, candidates [c, 5] uint32, deleted [d, 4] uint32: cells, bucket after bucket
    HandOver    → no arrays
    HandedOver  ← dense values [E] float32, dense state [s, E] float32, bucket after bucket

Every answer may be lost and every request sent again: copying changes nothing at the owner, and what is taken in twice
is there once. After HandOver the owner changes these buckets no more.
"""

from __future__ import annotations

import msgspec

from elastrec.platform.transport.messages.job import Message, RoutingTable
from elastrec.trainers.parameter_server.messages import Parameter, Stale
from elastrec.trainers.parameter_server.serving.attendance import Attendance
from elastrec.trainers.parameter_server.serving.marks import BucketMarks


class CopyBuckets(Message, frozen=True):
    """Asks for cells of buckets of one table group.

    Attributes:
        since: for each bucket the version that an answer named; only what has changed after it is wanted. -1: all.
        left: for each bucket what that answer left to be copied; (0, 0): it left nothing.
    """

    generation: int
    group: int
    buckets: list[int]
    since: list[int]
    left: list[tuple[int, int]]


class BucketCells(msgspec.Struct, frozen=True, array_like=True):
    """How many of an answer's cells are of one bucket; see `storage.Changes`. One with something left is the last."""

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
        parts: of the first so many of the buckets that were asked for, as many as fit into an answer. None: the first
            one is being saved; ask again.
    """

    parts: list[BucketCells]


class HandOver(Message, frozen=True):
    """Asks for what `server` owns under a routing table, and the owner before it still holds.

    Attributes:
        order_id: of the change of servers.
        routing: newer than the owner's, or the one that it has adopted already.
    """

    server: str
    order_id: str
    generation: int
    routing: RoutingTable


class DenseCells(msgspec.Struct, frozen=True, array_like=True):
    """One dense bucket: how many elements it has, and the steps that they have taken."""

    bucket: int
    elements: int
    steps: int


class HandedOver(Message, frozen=True):
    """Answer to HandOver: from now on nothing of this changes here.

    Attributes:
        attendance: the workers whose pushes the owner has counted in.
        marks: which pushes are in these buckets; each of them is in exactly one of these.
        layout: of all dense parameters; empty: there are none yet.
    """

    attendance: Attendance
    marks: list[BucketMarks]
    layout: list[Parameter]
    dense: list[DenseCells]


REQUESTS: tuple[type[Message], ...] = (CopyBuckets, HandOver)
"""What a server's stream takes from other servers."""
ANSWERS: tuple[type[Message], ...] = (Copied, HandedOver, Stale)
