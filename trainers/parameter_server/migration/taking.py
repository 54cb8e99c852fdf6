"""The side of the server that will own buckets: it copies them round by round, and then takes them over."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import structlog

from elastrec.platform.specs.errors import ElastrecError, TransportError
from elastrec.platform.transport.messages.job import Message, RoutingTable, TakeOrder
from elastrec.trainers.parameter_server.dense.store import DenseBucket
from elastrec.trainers.parameter_server.messages import Parameter
from elastrec.trainers.parameter_server.migration.messages import Copied, CopyBuckets, HandedOver, HandOver
from elastrec.trainers.parameter_server.serving.marks import BucketMarks
from elastrec.trainers.parameter_server.serving.server import ParameterServer
from elastrec.trainers.parameter_server.storage import Changes, RowStore

Array = np.ndarray[Any, Any]

_MOST_BUCKETS = 256
"""Asked for at once; the answer may hold fewer."""
_PAUSE_SECONDS = 0.05
"""Before a bucket is asked for again that is being saved."""

log = structlog.get_logger(__name__)


class Requests(Protocol):
    """A stream to another server; `ArrayStream` is one."""

    def request(self, message: Message) -> tuple[Any, list[Array]]: ...

    def cut(self) -> None: ...

    def close(self) -> None: ...


@dataclass
class _Source:
    """A server that buckets are taken from.

    Attributes:
        versions: by table group, of each bucket, up to which it is copied; -1: not yet.
    """

    server: str
    stream: Requests
    buckets: list[int]
    dense_buckets: list[int]
    versions: list[dict[int, int]] = field(default_factory=list)


class GivenUpError(ElastrecError):
    """The order is not in force any more, or its buckets have gone another way."""


class Taker:
    """One order, carried out by one thread. What was copied lies beside the server's own buckets and serves nobody.

    Args:
        connect: opens a stream to an address, for `migration.messages.ANSWERS`.
        is_wanted: asked before each request.

    Raises:
        TransportError: a server that owns the buckets is out of reach.
        ElastrecError: this server holds one of the buckets already.
    """

    def __init__(
        self,
        server: ParameterServer,
        order: TakeOrder,
        generation: int,
        connect: Callable[[str], Requests],
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        self._server, self._generation, self._is_wanted = server, generation, is_wanted
        self._sources: list[_Source] = []
        buckets = [bucket for source in order.sources for bucket in source.buckets]
        self._stores: list[RowStore] = server.stage(np.array(buckets, np.int64))
        try:
            for source in order.sources:
                versions = [dict.fromkeys(source.buckets, -1) for _ in self._stores]
                stream = connect(source.address)
                self._sources.append(_Source(source.server, stream, source.buckets, source.dense_buckets, versions))
        except BaseException:
            self.give_up()
            raise

    def copy_round(self) -> int:
        """Copies what is not copied, or has changed since; returns how many bytes that were.

        Raises:
            GivenUpError: the order is not in force any more.
            TransportError: a server is out of reach.
        """
        return sum(self._copy_group(source, group) for source in self._sources for group in range(len(self._stores)))

    def _copy_group(self, source: _Source, group: int) -> int:
        store, versions, copied_bytes = self._stores[group], source.versions[group], 0
        left = list(source.buckets)
        while left:
            asked = left[:_MOST_BUCKETS]
            since = [versions[bucket] for bucket in asked]
            request = CopyBuckets(generation=self._generation, group=group, buckets=asked, since=since)
            answer, arrays = self._ask(source, request)
            if not isinstance(answer, Copied):
                raise GivenUpError(f"server {source.server} has gone on: {answer}")
            at = [0, 0, 0]
            for part in answer.parts:
                end = [
                    first + count for first, count in zip(at, (part.rows, part.candidates, part.deleted), strict=True)
                ]
                rows, candidates, deleted = (
                    array[first:last] for array, first, last in zip(arrays, at, end, strict=True)
                )
                changes = Changes(part.is_whole, part.version, rows, candidates, deleted)
                store.bucket(part.bucket).take_in(changes)
                versions[part.bucket] = part.version
                copied_bytes += rows.nbytes + candidates.nbytes + deleted.nbytes
                at = end
            self._server.transfers += 1
            left = left[len(answer.parts) :]
            if not answer.parts:
                time.sleep(_PAUSE_SECONDS)
        return copied_bytes

    def _ask(self, source: _Source, request: Message) -> tuple[Any, list[Array]]:
        if not self._is_wanted():
            raise GivenUpError("the order to take buckets over is not in force any more")
        return source.stream.request(request)

    def take_over(self, routing: RoutingTable) -> None:
        """Owns the buckets from now on, under a routing table that says so; the servers before it do not any more.

        Raises:
            GivenUpError, TransportError: as of `copy_round`; it may be called again, or `give_up`.
        """
        began = time.monotonic()
        marks: list[BucketMarks] = []
        layout: list[Parameter] = []
        dense: list[DenseBucket] = []
        for source in self._sources:
            request = HandOver(server=self._server.name, generation=self._generation, routing=routing)
            answer, arrays = self._ask(source, request)
            if not isinstance(answer, HandedOver):
                raise GivenUpError(f"server {source.server} has gone on: {answer}")
            marks += answer.marks
            layout = answer.layout or layout
            dense += _dense_of(answer, arrays)
        rest_bytes = self.copy_round()
        self._check(marks, dense, bool(layout))
        self._server.take_over(routing, self._generation, marks, layout, dense)
        log.info(
            "taken_over", servers=[source.server for source in self._sources], epoch=routing.epoch,
            buckets=sum(len(source.buckets) for source in self._sources), dense_buckets=len(dense),
            rest_bytes=rest_bytes, seconds=round(time.monotonic() - began, 4),
        )  # fmt: skip
        self._close()

    def _check(self, marks: Sequence[BucketMarks], dense: Sequence[DenseBucket], has_dense: bool) -> None:
        """Every bucket of the order came exactly once."""
        wanted = sorted(bucket for source in self._sources for bucket in source.buckets)
        wanted_dense = sorted(bucket for source in self._sources for bucket in source.dense_buckets)
        came = sorted(bucket for each in marks for bucket in each.buckets)
        came_dense = sorted(bucket for each in marks for bucket in each.dense_buckets)
        values = sorted(bucket.number for bucket in dense)
        if came != wanted or came_dense != wanted_dense or (has_dense and values != wanted_dense):
            raise TransportError(
                f"server {self._server.name} was handed over buckets {came} and dense buckets {came_dense}, not those "
                f"that it was to take: {wanted} and {wanted_dense}"
            )

    def cut(self) -> None:
        """Makes the request under way fail; for any thread."""
        for source in self._sources:
            source.stream.cut()

    def give_up(self) -> None:
        """Drops what was copied; their owners serve on."""
        self._close()
        self._server.unstage()

    def _close(self) -> None:
        for source in self._sources:
            source.stream.close()


def _dense_of(answer: HandedOver, arrays: Sequence[Array]) -> list[DenseBucket]:
    values, state = arrays
    found, at = [], 0
    for bucket in answer.dense:
        end = at + bucket.elements
        found.append(DenseBucket(bucket.bucket, values[at:end], state[:, at:end], bucket.steps))
        at = end
    return found
