"""The new owner's side: it copies buckets round by round, then takes them over."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import structlog

from elastrec.platform.specs.errors import ElastrecError, IncompatibleError, TransportError
from elastrec.platform.transport.messages.directive import RoutingTable, TakeFrom, TakeOrder
from elastrec.platform.transport.messages.job import Message
from elastrec.trainers.parameter_server.dense.store import DenseBucket
from elastrec.trainers.parameter_server.messages import Parameter
from elastrec.trainers.parameter_server.migration.messages import Copied, CopyBuckets, HandedOver, HandOver
from elastrec.trainers.parameter_server.records.share import DenseOfRecord
from elastrec.trainers.parameter_server.serving.attendance import Attendance
from elastrec.trainers.parameter_server.serving.marks import BucketMarks
from elastrec.trainers.parameter_server.serving.server import ParameterServer
from elastrec.trainers.parameter_server.storage import Changes

Array = np.ndarray[Any, Any]
Answer = TypeVar("Answer", Copied, HandedOver)

_MOST_BUCKETS = 256
"""Maximum of buckets in a request; the answer may contain fewer."""
_LONGEST_PAUSE_SECONDS = 1.0
"""Longest pause before the next request, however long the last answer took."""
_SHORT_ROUND_BYTES = 2**25
"""After a round with so few bytes, the next ones do not pause, because the hand-over must fetch later changes."""
_PAUSE_SECONDS = 0.05
"""Pause before a bucket that is being saved is requested again."""

log = structlog.get_logger(__name__)


class Requests(Protocol):
    """A stream to another server; `ArrayStream` is one."""

    def request(self, message: Message) -> tuple[Any, list[Array]]: ...

    def cut(self) -> None: ...

    def close(self) -> None: ...


@dataclass
class _Source:
    """An old owner of buckets.

    Attributes:
        versions: by table group and bucket, the copied version; -1: none.
        left: by table group and bucket, the rest after the last answer.
        stream: None: not opened yet, or lost.
    """

    place: TakeFrom
    versions: list[dict[int, int]]
    left: list[dict[int, tuple[int, int]]]
    stream: Requests | None = None

    def close(self) -> None:
        """Closes the stream; the next request opens another one."""
        stream, self.stream = self.stream, None
        if stream is not None:
            stream.close()


class GivenUpError(ElastrecError):
    """The order is no longer valid, or its buckets have other owners."""


class Taker:
    """One order, executed by one thread. Copied buckets are stored beside the server's own ones and are not served.

    Args:
        connect: opens a stream to an address, for `migration.messages.ANSWERS`.
        is_wanted: called before each request.

    Attributes:
        advance, copied_bytes: see CopyProgress.
        copying_seconds: time of the last round without its pauses.

    Raises:
        ElastrecError: this server already holds one of the buckets.
    """

    def __init__(
        self,
        server: ParameterServer,
        order: TakeOrder,
        generation: int,
        connect: Callable[[str], Requests],
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        self._server, self._generation, self._connect, self._is_wanted = server, generation, connect, is_wanted
        self._order_id = order.order_id
        self._due, self._is_short = threading.Event(), False
        self._copy_share, self._pause_seconds = order.copy_share, 0.0
        self.advance = self.copied_bytes = 0
        self.copying_seconds = 0.0
        # Complete buckets of this attempt of the round, and of the best attempt.
        self._passed = self._most_passed = 0
        buckets = [bucket for source in order.sources for bucket in source.buckets]
        self._stores = server.stage(np.array(buckets, np.int64))
        self._sources = [
            _Source(
                place,
                [dict.fromkeys(place.buckets, -1) for _ in self._stores],
                [dict.fromkeys(place.buckets, (0, 0)) for _ in self._stores],
            )
            for place in order.sources
        ]

    def hurry(self) -> None:
        """Ends all pauses, because the buckets are being taken over. For any thread."""
        self._due.set()

    def hasten(self) -> bool:
        """Doubles the share of time for copying in the next rounds; false: it is already 1."""
        if self._copy_share >= 1 or self._is_short:
            return False
        self._copy_share = min(1.0, 2 * self._copy_share)
        return True

    @property
    def buckets_left(self) -> int:
        """See CopyProgress; for any thread."""
        return len(
            {
                bucket
                for source in self._sources
                for versions, left in zip(source.versions, source.left, strict=True)
                for bucket in source.place.buckets
                if versions[bucket] < 0 or left[bucket] != (0, 0)
            }
        )

    def copy_round(self) -> int:
        """Copies missing and changed cells; returns the number of bytes.

        Pauses in between, so that the servers have time for requests.

        Raises:
            GivenUpError: the order is no longer valid.
            TransportError: a server is unreachable; the next round continues from here.
        """
        self._passed, self.copying_seconds = 0, 0.0
        copied = [self._copy_group(source, group) for source in self._sources for group in range(len(self._stores))]
        self._most_passed = 0
        self._is_short = sum(copied) <= _SHORT_ROUND_BYTES
        return sum(copied)

    def _copy_group(self, source: _Source, group: int) -> int:
        store, versions, parts_left, copied_bytes = self._stores[group], source.versions[group], source.left[group], 0
        wanted = list(source.place.buckets)
        while wanted:
            if not self._is_short:
                # Not after the answer, because the last answer of a round is followed by the next stage.
                self._due.wait(min(self._pause_seconds, _LONGEST_PAUSE_SECONDS))
            began, asked = time.monotonic(), wanted[:_MOST_BUCKETS]
            request = CopyBuckets(
                generation=self._generation,
                group=group,
                buckets=asked,
                since=[versions[bucket] for bucket in asked],
                left=[parts_left[bucket] for bucket in asked],
            )
            answer, arrays = self._ask(source, request, Copied)
            _check_copied(source.place.server, asked, answer, arrays)
            at = [0, 0, 0]
            for part in answer.parts:
                end = [
                    first + count for first, count in zip(at, (part.rows, part.candidates, part.deleted), strict=True)
                ]
                rows, candidates, deleted = (
                    array[first:last] for array, first, last in zip(arrays, at, end, strict=True)
                )
                changes = Changes(part.is_whole, part.version, rows, candidates, deleted, part.left)
                store.bucket(part.bucket).take_in(changes)
                versions[part.bucket], parts_left[part.bucket] = part.version, part.left
                copied_bytes += changes.size_bytes
                self.copied_bytes += changes.size_bytes
                at = end
            self._server.transfers += 1
            whole = sum(part.left == (0, 0) for part in answer.parts)
            self._count(whole, has_part=whole < len(answer.parts))
            wanted = wanted[whole:]
            if not answer.parts:
                time.sleep(_PAUSE_SECONDS)
            seconds = time.monotonic() - began
            self.copying_seconds += seconds
            self._pause_seconds = seconds * (1 / self._copy_share - 1) if answer.parts else 0.0
        return copied_bytes

    def _count(self, whole: int, *, has_part: bool) -> None:
        """Records an answer with a number of complete buckets, and perhaps a part of the next one.

        A round that fails at one server begins again with the others, whose rows have changed meanwhile, so that bytes
        alone do not show progress.
        """
        self._passed += whole
        if self._passed > self._most_passed or (has_part and self._passed == self._most_passed):
            self.advance += 1
        self._most_passed = max(self._most_passed, self._passed)

    def _ask(self, source: _Source, request: Message, answer: type[Answer]) -> tuple[Answer, list[Array]]:
        """Opens another stream if the previous one was lost; copied buckets are kept."""
        if not self._is_wanted():
            raise GivenUpError("the order to take buckets over is not in force any more")
        if source.stream is None:
            source.stream = self._connect(source.place.address)
        try:
            found, arrays = source.stream.request(request)
        except TransportError:
            source.close()
            raise
        if not isinstance(found, answer):
            raise GivenUpError(f"server {source.place.server} has gone on: {found}")
        return found, arrays

    def take_over(self, routing: RoutingTable) -> None:
        """Takes over the buckets under a routing table that assigns them to this server.

        Raises:
            GivenUpError, TransportError: as of `copy_round`; after the latter it may be called again.
        """
        began = time.monotonic()
        self.hurry()
        attendances: list[Attendance] = []
        marks: list[BucketMarks] = []
        layouts: list[list[Parameter]] = []
        dense: list[DenseBucket] = []
        record = ""
        for source in self._sources:
            request = HandOver(
                server=self._server.name, order_id=self._order_id, generation=self._generation, routing=routing
            )
            answer, arrays = self._ask(source, request, HandedOver)
            attendances.append(answer.attendance)
            marks += answer.marks
            layouts.append(answer.layout)
            dense += _dense_of(source.place, answer, arrays)
            record = record or answer.record
        rest_bytes = self.copy_round()
        self._check(marks)
        layout = layouts[0] if all(each == layouts[0] for each in layouts) else None
        self._server.take_over(
            routing, self._order_id, self._generation, attendances, marks, layout, dense,
            DenseOfRecord(self._server, record) if record else None,
        )  # fmt: skip
        log.info(
            "taken_over", servers=[source.place.server for source in self._sources], epoch=routing.epoch,
            buckets=sum(len(source.place.buckets) for source in self._sources), dense_buckets=len(dense),
            rest_bytes=rest_bytes, seconds=round(time.monotonic() - began, 4),
        )  # fmt: skip
        self._close()

    def _check(self, marks: Sequence[BucketMarks]) -> None:
        """Checks that every bucket of the order was received exactly once."""
        wanted = sorted(bucket for source in self._sources for bucket in source.place.buckets)
        wanted_dense = sorted(bucket for source in self._sources for bucket in source.place.dense_buckets)
        came = sorted(bucket for each in marks for bucket in each.buckets)
        came_dense = sorted(bucket for each in marks for bucket in each.dense_buckets)
        if came != wanted or came_dense != wanted_dense:
            raise TransportError(
                f"server {self._server.name} was handed over buckets {came} and dense buckets {came_dense}, not those "
                f"that it was to take: {wanted} and {wanted_dense}"
            )

    def cut(self) -> None:
        """Makes the request under way fail; for any thread."""
        for stream in [source.stream for source in self._sources]:
            if stream is not None:
                stream.cut()

    def give_up(self) -> None:
        """Drops the copied buckets; the old owners continue to serve them."""
        self._close()
        self._server.unstage()

    def _close(self) -> None:
        for source in self._sources:
            source.close()


def _check_copied(server: str, asked: Sequence[int], answer: Copied, arrays: Sequence[Array]) -> None:
    """Checks that an answer contains the requested buckets and the cells that it names.

    Raises:
        IncompatibleError: it is not, or has others.
    """
    buckets = [part.bucket for part in answer.parts]
    if buckets != list(asked[: len(buckets)]):
        raise IncompatibleError(
            f"server {server} answers with buckets {buckets}; allowed: {list(asked)} in this order, or the first ones "
            f"of them; {IncompatibleError.remedy}"
        )
    counts = [(part.rows, part.candidates, part.deleted, *part.left) for part in answer.parts]
    named = [sum(each) for each in zip(*counts, strict=True)][:3] or [0, 0, 0]
    if any(count < 0 for each in counts for count in each) or named != [len(array) for array in arrays]:
        raise IncompatibleError(
            f"server {server} answers with rows, candidates and deleted ids {[list(array.shape) for array in arrays]}; "
            f"allowed: {named}, as its parts {counts} say; {IncompatibleError.remedy}"
        )


def _dense_of(place: TakeFrom, answer: HandedOver, arrays: Sequence[Array]) -> list[DenseBucket]:
    """Raises IncompatibleError when the arrays do not match their description, and TransportError when they are not
    those of the order."""
    server, numbers = place.server, sorted(bucket.bucket for bucket in answer.dense)
    if answer.layout and numbers != sorted(place.dense_buckets):
        raise TransportError(
            f"server {server} hands over the values of the dense buckets {numbers}, not those that it was to give: "
            f"{sorted(place.dense_buckets)}"
        )
    elements = sum(bucket.elements for bucket in answer.dense)
    came = [f"{array.dtype} {list(array.shape)}" for array in arrays]
    shapes = [array.shape for array in arrays]
    is_named = len(arrays) == 2 and shapes[0] == (elements,) and shapes[1][1:] == (elements,)
    is_float = all(array.dtype == np.float32 for array in arrays)
    if not (is_named and is_float) or any(min(bucket.elements, bucket.steps) < 0 for bucket in answer.dense):
        raise IncompatibleError(
            f"server {server} hands over {answer.dense} with the arrays {came}; allowed: values float32 [{elements}] "
            f"and state float32 [n, {elements}], elements and steps that are not negative; {IncompatibleError.remedy}"
        )
    values, state = arrays
    found, at = [], 0
    for bucket in answer.dense:
        end = at + bucket.elements
        found.append(DenseBucket(bucket.bucket, values[at:end], state[:, at:end], bucket.steps))
        at = end
    return found
