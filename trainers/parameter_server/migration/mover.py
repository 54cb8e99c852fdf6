"""Executes orders to take over buckets in a thread of its own, so that a server serves while it copies for minutes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from elastrec.platform.specs.errors import AuthenticationError, ElastrecError, IncompatibleError, TransportError
from elastrec.platform.transport.messages.directive import RoutingTable, TakeOrder
from elastrec.platform.transport.messages.job import CopyProgress
from elastrec.trainers.parameter_server.migration.taking import Requests, Taker
from elastrec.trainers.parameter_server.serving.server import ParameterServer

_SMALL_BYTES = 2**22
"""A rest of at most this size is handed over in some milliseconds."""
_SHORT_SECONDS = 0.5
"""A rest that does not become smaller is handed over if a round copied it in at most this time. The hand-over copies it
in less, because fewer requests are served beside it.
"""
_SHRINKS = 0.7
"""If a round copies more than this share of the previous one, rows change as fast as they are copied."""
_ROUND_SECONDS, _LONGEST_ROUND_SECONDS = 0.2, 5.0
"""Pauses between two rounds. The longer one is used after the order is copied, if rounds take long: each copies the
changes since the last one, which are all rows if these are hot, and takes this time from requests until the hand-over.
"""
_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 0.5, 5.0
"""Pauses after a failure; in a hand-over that must copy everything again, each is twice the one before it."""
_PERMANENT = (IncompatibleError, AuthenticationError)
"""Permanent errors of two incompatible processes. Others are temporary or end with another order: a server that
restarts is unreachable, and one that restores has another generation."""

log = structlog.get_logger(__name__)


@dataclass
class _Tries:
    """The results of the attempts to execute one order.

    Attributes:
        most_advance: the largest one of earlier takers.
        problem: why the last attempt failed; `problem_advance`: the progress at that time.
    """

    most_advance: int = 0
    problem: str = ""
    problem_advance: int = 0
    is_permanent: bool = False


class Mover:
    """One order at a time.

    Args:
        connect: opens a stream to another server.
        report: called when `copied` or `taken` has changed, or copying has met a problem.

    Attributes:
        copied, taken: the order of which little is left to copy; the order whose buckets were taken over. Empty: none.
    """

    def __init__(self, server: ParameterServer, connect: Callable[[str], Requests], report: Callable[[], None]) -> None:
        self._server, self._connect, self._report = server, connect, report
        self.copied = self.taken = ""
        self._order: TakeOrder | None = None
        self._changed = threading.Condition()
        self._working = threading.Lock()  # held while the taker works
        self._taker: Taker | None = None
        self._tries = _Tries()

    def progress(self) -> CopyProgress | None:
        """Progress of the current order; None: there is none, or it was executed."""
        order, taker, tries = self._order, self._taker, self._tries
        if order is None or self.taken == order.order_id:
            return None
        advance = max(tries.most_advance, taker.advance if taker is not None else 0)
        has_problem = tries.is_permanent or advance == tries.problem_advance
        return CopyProgress(
            order_id=order.order_id,
            advance=advance,
            copied_bytes=taker.copied_bytes if taker is not None else 0,
            buckets_left=taker.buckets_left if taker is not None else _buckets(order),
            problem=tries.problem if has_problem else "",
            is_permanent=tries.is_permanent,
        )

    def follow(self, order: TakeOrder, generation: int) -> None:
        """Begins to copy for an order; has no effect if the order is already being executed."""
        with self._changed:
            if self._order is not None and self._order.order_id == order.order_id:
                return
        self.cancel()
        with self._changed:
            self._order, self._tries = order, _Tries()
        threading.Thread(target=self._run, args=(order, generation), name="mover", daemon=True).start()

    def cancel(self) -> None:
        """Ends the current order and drops the copied buckets."""
        with self._changed:
            self._order = None
            self._changed.notify_all()
        if (at_work := self._taker) is not None:
            at_work.cut()
        with self._working:
            self._drop_taker()

    def take_over(
        self, order: TakeOrder, generation: int, routing: RoutingTable, is_wanted: Callable[[], bool]
    ) -> bool:
        """Takes over the buckets of an order, however often this fails; false when the order was cancelled.

        Nobody serves the buckets until then, and no other directive comes before the master gives the hand-over up.
        """
        self.follow(order, generation)
        if (at_work := self._taker) is not None:
            at_work.hurry()
        pause = _RETRY_SECONDS
        while self.taken != order.order_id and is_wanted() and self._is_in_force(order):
            with self._working:
                try:
                    self._taker_of(order, generation).take_over(routing)
                except TransportError as error:
                    log.warning("take_over_failed", order=order.order_id, reason=str(error))
                    self._note_problem(error)
                    again = _RETRY_SECONDS
                except ElastrecError as error:
                    log.warning("not_taken_over", order=order.order_id, reason=str(error), next_try_seconds=pause)
                    self._note_problem(error)
                    self._drop_taker()
                    again, pause = pause, min(2 * pause, _LONGEST_RETRY_SECONDS)
                else:
                    self._taker, self.taken = None, order.order_id
                    self._report()
                    break
            self._wait(order, again)
        return self.taken == order.order_id

    def _taker_of(self, order: TakeOrder, generation: int) -> Taker:
        if self._taker is None:
            self._taker = Taker(self._server, order, generation, self._connect, lambda: self._is_in_force(order))
        return self._taker

    def _is_in_force(self, order: TakeOrder) -> bool:
        return self._order is not None and self._order.order_id == order.order_id

    def _wait(self, order: TakeOrder, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._is_in_force(order), seconds)

    def _run(self, order: TakeOrder, generation: int) -> None:
        before = None
        while self._is_in_force(order) and self.taken != order.order_id:
            pause = _RETRY_SECONDS
            with self._working:
                if not self._is_in_force(order) or self.taken == order.order_id:
                    return
                began = time.monotonic()
                try:
                    taker = self._taker_of(order, generation)
                    copied_bytes = taker.copy_round()
                except Exception as error:
                    is_expected = isinstance(error, ElastrecError)
                    if not is_expected or isinstance(error, _PERMANENT):
                        # An unexpected error would end this thread, and the order would never be executed.
                        log.error("copying_ended", order=order.order_id, reason=_words(error), exc_info=not is_expected)
                        self._note_problem(error, is_permanent=True)
                        self._drop_taker()
                        return
                    log.warning("not_copied", order=order.order_id, reason=str(error), next_try_seconds=pause)
                    self._note_problem(error)
                    if not isinstance(error, TransportError):
                        self._drop_taker()
                        before = None
                else:
                    shrinks = before is None or copied_bytes < _SHRINKS * before
                    # Rows that change faster than they are copied are first copied faster, because a hand-over of half
                    # of the table would be a pause of seconds.
                    is_long = taker.copying_seconds > _SHORT_SECONDS
                    is_small = copied_bytes <= _SMALL_BYTES or not (shrinks or (is_long and taker.hasten()))
                    before, pause = copied_bytes, _ROUND_SECONDS
                    if is_small and self.copied != order.order_id:
                        self.copied = order.order_id
                        log.info(
                            "buckets_copied", order=order.order_id, copied_bytes=taker.copied_bytes,
                            rest_bytes=copied_bytes, rest_seconds=round(taker.copying_seconds, 3),
                        )  # fmt: skip
                        self._report()
                    if self.copied == order.order_id:
                        rest = (time.monotonic() - began) * (1 / order.copy_share - 1)
                        pause = min(max(pause, rest), _LONGEST_ROUND_SECONDS)
            self._wait(order, pause)

    def _note_problem(self, error: Exception, *, is_permanent: bool = False) -> None:
        """Reports a problem with heartbeats until there is progress; the first problem is reported immediately."""
        tries, taker = self._tries, self._taker
        advance = max(tries.most_advance, taker.advance if taker is not None else 0)
        is_new = is_permanent or not tries.problem or advance != tries.problem_advance
        self._tries = _Tries(tries.most_advance, _words(error), advance, is_permanent)
        if is_new:
            self._report()

    def _drop_taker(self) -> None:
        taker, self._taker = self._taker, None
        if taker is not None:
            self._tries.most_advance = max(self._tries.most_advance, taker.advance)
            taker.give_up()


def _buckets(order: TakeOrder) -> int:
    return sum(len(source.buckets) for source in order.sources)


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, ElastrecError) else f"{type(error).__name__}: {error}"
