"""Effects: the outputs of a job's state machine. The service executes them after the event was journalled.

Pods are not effects: the wanted pods follow from the job's state (`wanted.py`).
"""

from __future__ import annotations

from typing import Any

import msgspec

from elastrec.platform.master.machine.shards import Ended
from elastrec.platform.specs.shape import Shape
from elastrec.platform.specs.splits import Positions
from elastrec.platform.transport.messages.directive import PodOrders
from elastrec.platform.transport.messages.job import LeaseState, SavedPart, Shard


class _Effect(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    pass


class CommitRecord(_Effect, frozen=True, kw_only=True):
    """Write the manifest of a record whose parts are complete. Records in `damaged` are deleted afterwards.

    Attributes:
        base: URI of the record on which the parts may build.
        shape: with which another master would continue the job from it; None: that of the launch.
        orders: for all workers, which hold for another master, too; None: none.
        times: seconds of the job until the cut, by part.
    """

    order_id: str
    uri: str
    is_final: bool
    step: int
    generation: int
    parts: list[SavedPart]
    positions: Positions
    damaged: list[str] = []
    base: str = ""
    shape: Shape | None = None
    orders: PodOrders | None = None
    times: dict[str, float] = {}


class DiscardRecord(_Effect, frozen=True, kw_only=True):
    """Delete the files of a record that will never be valid.

    Attributes:
        may_be_complete: whether to delete it even if its manifest exists; otherwise a complete record stays.
    """

    uri: str
    may_be_complete: bool = False


class AnswerLease(_Effect, frozen=True, kw_only=True):
    """The answer to ShardsAsked."""

    state: LeaseState
    shards: list[Shard] = []


class RecordAttempt(_Effect, frozen=True, kw_only=True):
    """One line of the ledger of what was trained. `time` is when the attempt ended, on the job's clock."""

    generation: int
    time: float = 0.0
    ended: Ended


class Decided(_Effect, frozen=True, kw_only=True):
    """A decision and its inputs, for the log."""

    decision: str
    inputs: dict[str, Any]


Effect = CommitRecord | DiscardRecord | AnswerLease | RecordAttempt | Decided
