"""The old owner's side: cells of buckets for another server, with marks and dense buckets in the hand-over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from elastrec.platform.specs.errors import ElastrecError, IncompatibleError
from elastrec.platform.transport.messages.job import Message
from elastrec.trainers.parameter_server.dense.store import DenseBucket
from elastrec.trainers.parameter_server.messages import Stale
from elastrec.trainers.parameter_server.migration.messages import (
    BucketCells,
    Copied,
    CopyBuckets,
    DenseCells,
    HandedOver,
    HandOver,
)
from elastrec.trainers.parameter_server.serving.attendance import Attendance
from elastrec.trainers.parameter_server.serving.place import Place, marks_within
from elastrec.trainers.parameter_server.serving.server import ParameterServer
from elastrec.trainers.parameter_server.storage import Changes, RowStore
from elastrec.trainers.parameter_server.storage.bucket import PART_BYTES

Array = np.ndarray[Any, Any]


class Giver:
    """Answers the servers that take over buckets. Thread-safe."""

    def __init__(self, server: ParameterServer) -> None:
        self._server = server

    def array_handlers(self) -> dict[type[Message], Any]:
        """For RpcServer."""
        return {CopyBuckets: self.copy, HandOver: self.hand_over}

    def _stale(self) -> Stale:
        server = self._server
        return Stale(epoch=server.epoch, generation=server.generation, ready=server.ready)

    def copy(self, request: CopyBuckets, arrays: list[Array]) -> tuple[Message, list[Array]]:
        """See messages.

        Raises:
            IncompatibleError: a bucket is not on this server, or the request names an unknown group or bucket.
        """
        server = self._server
        found: list[tuple[int, Changes]] = []
        if server.model is not None:
            _check(request, server.model.stores)
        left_bytes = PART_BYTES  # an answer ends with the bucket that reaches it
        for bucket, since, left in zip(request.buckets, request.since, request.left, strict=True):
            # Inside the gate, because a save freezes buckets, and a hand-over gives them away, while the gate is
            # closed.
            with server.gate.passed():
                model = server.model
                if model is None or server.generation != request.generation:
                    return self._stale(), []
                store = model.stores[request.group]
                if not store.owned[bucket]:
                    raise IncompatibleError(f"server {server.name} does not hold bucket {bucket}")
                handle = store.bucket(bucket)
                if since >= 0:
                    # The taker has the earlier changes. A log that grew round by round would become full and would be
                    # dropped, and the next listing would contain all rows.
                    handle.forget_changes(since)
                try:
                    changes = handle.changes(since, left, left_bytes)
                except ElastrecError:
                    break  # a save copies it, and began before its changes were logged
            found.append((bucket, changes))
            left_bytes -= changes.size_bytes
            if left_bytes <= 0 or changes.left != (0, 0):
                break
        server.transfers += 1
        parts = [
            BucketCells(
                bucket, each.version, each.is_whole, len(each.rows), len(each.candidates), len(each.deleted), each.left
            )
            for bucket, each in found
        ]
        return Copied(parts=parts), _joined([changes for _, changes in found])

    def hand_over(self, request: HandOver, arrays: list[Array]) -> tuple[Message, list[Array]]:
        """See messages."""
        server = self._server
        with server.gate.closed(), server.changed:
            if server.model is None or server.is_broken or server.generation != request.generation:
                return self._stale(), []
            if request.routing.epoch > server.epoch:
                server.give_away(request.routing, request.order_id)
            elif request.routing.epoch < server.epoch:
                return self._stale(), []
            left, place = server.left, Place.under(request.routing, request.server)
            if left is None:
                return HandedOver(attendance=Attendance(), marks=[], layout=[], dense=[]), _dense_arrays([])
            dense = [bucket for bucket in left.dense if place.dense_owned[bucket.number]]
            answer = HandedOver(
                attendance=left.attendance,
                marks=marks_within(left.marks, place),
                layout=left.layout,
                dense=[DenseCells(each.number, len(each.values), each.steps) for each in dense],
                record=left.record,
            )
        return answer, _dense_arrays(dense)


def _check(request: CopyBuckets, stores: Sequence[RowStore]) -> None:
    """Raises IncompatibleError when a request names an unknown group or bucket of the job."""
    if not 0 <= request.group < len(stores):
        raise IncompatibleError(f"group: {request.group} is not allowed; allowed: 0 to {len(stores) - 1}")
    sizes = len(request.buckets), len(request.since), len(request.left)
    if len(set(sizes)) > 1:
        raise IncompatibleError(f"buckets, since, left: {sizes} of them are not allowed; allowed: as many of each")
    buckets = len(stores[request.group].owned)
    if wrong := [bucket for bucket in request.buckets if not 0 <= bucket < buckets]:
        raise IncompatibleError(f"buckets: {wrong} are not allowed; allowed: 0 to {buckets - 1}")
    if wrong_left := [left for left in request.left if min(left) < 0]:
        raise IncompatibleError(f"left: {wrong_left} are not allowed; allowed: pairs of numbers that are not negative")


def _joined(found: list[Changes]) -> list[Array]:
    if not found:
        return [np.empty((0, 1), np.uint32)] * 3
    if len(found) == 1:
        return [found[0].rows, found[0].candidates, found[0].deleted]
    return [
        np.concatenate([each.rows for each in found]),
        np.concatenate([each.candidates for each in found]),
        np.concatenate([each.deleted for each in found]),
    ]


def _dense_arrays(dense: list[DenseBucket]) -> list[Array]:
    if not dense:
        return [np.empty(0, np.float32), np.empty((0, 0), np.float32)]
    return [
        np.concatenate([bucket.values for bucket in dense]),
        np.ascontiguousarray(np.concatenate([bucket.state for bucket in dense], axis=1)),
    ]
