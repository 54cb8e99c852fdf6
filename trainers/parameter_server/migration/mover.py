"""Carries out orders to take buckets over, on a thread of its own: a server that copies for minutes serves on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from elastrec.platform.specs.errors import AuthenticationError, ElastrecError, IncompatibleError, TransportError
from elastrec.platform.transport.messages.job import CopyProgress, RoutingTable, TakeOrder
from elastrec.trainers.parameter_server.migration.taking import COPY_SHARE, Requests, Taker
from elastrec.trainers.parameter_server.serving.server import ParameterServer

_SMALL_BYTES = 2**22
"""What is left to copy is small: handing it over takes some milliseconds."""
_SHRINKS = 0.7
"""A round that brings more than this share of the one before it: rows change as fast as they are copied."""
_ROUND_SECONDS, _LONGEST_ROUND_SECONDS = 0.2, 5.0
"""Between two rounds. The longer one once the order is copied, where rounds take long: each copies what has changed
since the last one, which is all of the rows where they are hot, and takes that time from requests until the hand-over.
"""
_RETRY_SECONDS = 0.5
_PERMANENT = (IncompatibleError, AuthenticationError)
"""Errors of two processes that will never understand each other. Others pass by themselves or with another order: a
server that restarts is out of reach, and one that restores has gone on."""

log = structlog.get_logger(__name__)


@dataclass
class _Tries:
    """What became of the tries to carry out one order.

    Attributes:
        most_advance: of takers that were given up.
        problem: why the last try failed; `problem_advance`: how far the order was then.
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
        copied, taken: the order of which little is left to copy; whose buckets are taken over. Empty: none.
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
        """How far the order in force is; None: there is none, or it is carried out."""
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
        """Copies from now on; an order that is carried out already goes on."""
        with self._changed:
            if self._order is not None and self._order.order_id == order.order_id:
                return
        self.cancel()
        with self._changed:
            self._order, self._tries = order, _Tries()
        threading.Thread(target=self._run, args=(order, generation), name="mover", daemon=True).start()

    def cancel(self) -> None:
        """No order is in force any more; what was copied is dropped."""
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
        """Takes the buckets of an order over, however often a server is out of reach; false when it is given up."""
        self.follow(order, generation)
        if (at_work := self._taker) is not None:
            at_work.hurry()
        while self.taken != order.order_id and is_wanted() and self._is_in_force(order):
            with self._working:
                try:
                    self._taker_of(order, generation).take_over(routing)
                except TransportError as error:
                    log.warning("take_over_failed", order=order.order_id, reason=str(error))
                    self._note_problem(error)
                except ElastrecError as error:
                    log.warning("not_taken_over", order=order.order_id, reason=str(error))
                    self._note_problem(error)
                    return False
                else:
                    self._taker, self.taken = None, order.order_id
                    self._report()
                    break
            self._wait(order, _RETRY_SECONDS)
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
                        # One that nobody thought of would leave this thread, and an order that nobody carries out.
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
                    # No more can have changed than there is. Rows that change faster than they are copied are copied
                    # faster before the rest counts as small: a hand-over of half of the table would be a pause of
                    # seconds.
                    is_small = taker.copied_bytes <= _SMALL_BYTES or (
                        before is not None and (copied_bytes <= _SMALL_BYTES or not (shrinks or taker.hasten()))
                    )
                    before, pause = copied_bytes, _ROUND_SECONDS
                    if is_small and self.copied != order.order_id:
                        self.copied = order.order_id
                        log.info("buckets_copied", order=order.order_id, rest_bytes=copied_bytes)
                        self._report()
                    if self.copied == order.order_id:
                        rest = (time.monotonic() - began) * (1 / COPY_SHARE - 1)
                        pause = min(max(pause, rest), _LONGEST_ROUND_SECONDS)
            self._wait(order, pause)

    def _note_problem(self, error: Exception, *, is_permanent: bool = False) -> None:
        """For heartbeats, until the order gets further; the first problem is reported at once."""
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
