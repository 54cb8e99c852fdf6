"""Reporter: a job's series on their way to MLflow, in the background. Training never waits for the server."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from itertools import islice

import structlog

from elastrec.platform.history.delivery.sink import POINTS_PER_CALL, RefusedError, RunGoneError, Sink, open_sink
from elastrec.platform.history.delivery.spool import Spool
from elastrec.platform.history.points import Point
from elastrec.platform.specs.errors import CollisionError, HistoryError

_log = structlog.get_logger(__name__)

_CALL_TIMEOUT_SECONDS = 10.0
_LONGEST_PAUSE_SECONDS = 30.0
_COLLISION_TRIES = 8
"""Some two minutes. A database that still refuses the points will never take them."""


class Reporter:
    """Sends points in batches, and tags, from a thread of its own, at most one call per interval.

    While the server is away points wait in a bounded buffer; when it is full the oldest go first, and their number is
    logged. Order is kept; a batch that may have arrived is sent again, which MLflow stores once. Points also wait while
    the run is deleted, until it is restored or another one is named, which may have happened before the server refused
    the first points. Of each tag only the newest value is kept, in memory; it goes with the next call.

    Args:
        tracking_uri: MLflow's; ignored when `sink` is given.
        run_id: empty: there is no run yet, and everything waits until `name_run`. The run that an earlier process has
            noted in the spool takes precedence, because it was named later.
        capacity: points that may wait; 50,000 take about 10 MB.
        interval_seconds: least time between two calls.
        spool: keeps what waits beyond the end of the process; what an earlier process has left in it goes first.
    """

    def __init__(
        self,
        tracking_uri: str,
        run_id: str,
        *,
        capacity: int = 50_000,
        interval_seconds: float = 1.0,
        sink: Sink | None = None,
        spool: Spool | None = None,
    ) -> None:
        if capacity < 1:
            raise HistoryError(f"capacity: {capacity} is not allowed; allowed: 1 and above")
        self._sink = sink or open_sink(tracking_uri)
        self._run_id = (spool.run_id if spool else "") or run_id
        self._next_run_id = spool.next_run_id if spool else ""  # for when this run turns out to be deleted
        self._capacity = capacity
        self._interval = interval_seconds
        self._spool = spool
        self._points: deque[Point] = deque(spool.points if spool else ())
        self._tags: dict[str, str] = {}  # the newest values, for another run that may be named
        self._unsent_tags: dict[str, str] = {}
        self._takes_tags = True
        self._taken = 0  # points of the batch that is under way; they still lie at the buffer's left end
        self._dropped = 0
        self._gone_run = ""  # a run that somebody has deleted
        self._collisions = 0  # tries of the batch at the left end that the server's database has refused
        self._changed = threading.Condition()
        self._deadline: float | None = None
        self._thread = threading.Thread(target=self._run, name="history-reporter", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Points lost so far: pushed out of the full buffer, or refused by the server."""
        return self._dropped

    @property
    def waiting(self) -> int:
        return len(self._points)

    @property
    def run_id(self) -> str:
        """The run that points go to; empty while there is none."""
        return self._run_id

    def name_run(self, run_id: str) -> None:
        """Says which run the points belong to; the first one stays until the server says that it is deleted."""
        with self._changed:
            if self._run_id and self._run_id != self._gone_run:
                if run_id not in (self._run_id, self._next_run_id):
                    self._next_run_id = run_id
                    if self._spool is not None:
                        self._spool.name_next_run(run_id, self._points)
                return
            self._turn_to(run_id)

    def _turn_to(self, run_id: str) -> None:
        self._run_id, self._next_run_id = run_id, ""
        self._unsent_tags = dict(self._tags)
        if self._spool is not None:
            self._spool.name_run(run_id, self._points)
        self._changed.notify()

    def undelivered(self) -> list[Point]:
        """What waits, oldest first."""
        with self._changed:
            return list(self._points)

    def log(self, points: Iterable[Point]) -> None:
        """Takes points; returns at once whatever the server does. After `close` they are dropped."""
        with self._changed:
            before = self._dropped
            new = list(points)
            if self._deadline is not None:
                self._dropped += len(new)
                new = []
            self._points.extend(new)
            if self._spool is not None and new:
                self._spool.add(new, self._points)
            too_many = max(0, len(self._points) - self._capacity)
            for _ in range(too_many):
                self._points.popleft()
            if too_many:
                self._taken = max(0, self._taken - too_many)
                self._dropped += too_many
                self._note_gone(too_many)
            first_loss = before == 0 and self._dropped > 0
            self._changed.notify()
        if first_loss:
            _log.warning("history points dropped", run_id=self._run_id, capacity=self._capacity)

    def set_tag(self, name: str, value: str) -> None:
        """Takes the value of a tag of the run; returns at once. After `close` it is dropped.

        A value that replaces it before the server has taken it is sent in its place.
        """
        with self._changed:
            if self._deadline is None and self._takes_tags:
                self._tags[name] = self._unsent_tags[name] = value
                self._changed.notify()

    def forget_tags(self) -> None:
        """Drops the tags that wait and those that follow, because somebody else writes them from now on."""
        with self._changed:
            self._takes_tags = False
            self._tags.clear()
            self._unsent_tags.clear()

    def close(self, deadline_seconds: float = 5.0) -> bool:
        """Sends what waits, then ends the thread; True when no point was lost. May be called twice."""
        with self._changed:
            if self._deadline is None:
                self._deadline = time.monotonic() + deadline_seconds
            self._changed.notify()
        self._thread.join(deadline_seconds)
        lost = len(self._points) + self._dropped
        if lost:
            _log.warning("history is incomplete", run_id=self._run_id, unsent=len(self._points), dropped=self._dropped)
        return not lost

    def _run(self) -> None:
        pause, down = self._interval, False
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._has_work() or self._deadline is not None)
                if not self._has_work():
                    return
            timeout = self._time_left()
            if timeout <= 0:
                return
            run_id = self._run_id
            try:
                self._send(run_id, timeout)
                if down:
                    _log.info("history server is back", run_id=self._run_id, waiting=self.waiting)
                pause, down, self._gone_run = self._interval, False, ""
            except HistoryError as error:
                if isinstance(error, RunGoneError):
                    self._note_deleted_run(run_id, str(error))
                elif not down:
                    _log.warning("history server is away", run_id=self._run_id, reason=str(error))
                pause, down = min(max(2 * pause, 0.1), _LONGEST_PAUSE_SECONDS), True
            with self._changed:
                # Closing ends the pause between calls, but after a failure only shortens it.
                self._changed.wait_for(lambda: self._deadline is not None, timeout=pause)
            if self._deadline is not None and down:
                time.sleep(min(0.2, max(0.0, self._time_left())))

    def _has_work(self) -> bool:
        return bool(self._run_id and (self._points or self._unsent_tags))

    def _time_left(self) -> float:
        if self._deadline is None:
            return _CALL_TIMEOUT_SECONDS
        return min(_CALL_TIMEOUT_SECONDS, self._deadline - time.monotonic())

    def _send(self, run_id: str, timeout_seconds: float) -> None:
        with self._changed:
            tags = dict(self._unsent_tags)
            batch = list(islice(self._points, POINTS_PER_CALL - len(tags)))
            self._taken = len(batch)
        refused = False
        try:
            self._sink.send(run_id, batch, timeout_seconds, tags)
        except (RefusedError, CollisionError) as error:
            if isinstance(error, CollisionError):
                self._collisions += 1
                if self._collisions < _COLLISION_TRIES:
                    raise
            refused = True
            _log.warning(
                "history points refused", run_id=self._run_id, points=len(batch), tags=sorted(tags), reason=str(error)
            )
        self._collisions = 0
        with self._changed:
            for _ in range(self._taken):
                self._points.popleft()
            self._note_gone(self._taken)
            self._dropped += len(batch) if refused else 0
            self._taken = 0
            if self._run_id == run_id:  # otherwise the tags wait for the run that was named meanwhile
                for name, value in tags.items():
                    if self._unsent_tags.get(name) == value:
                        del self._unsent_tags[name]

    def _note_deleted_run(self, run_id: str, reason: str) -> None:
        with self._changed:
            is_known, self._gone_run = run_id == self._gone_run, run_id
            if self._next_run_id and self._run_id == run_id:
                self._turn_to(self._next_run_id)
                _log.info("history run is replaced", run_id=self._run_id, deleted_run_id=run_id)
                return
        if not is_known:
            _log.warning(
                "history run is deleted", run_id=run_id, reason=reason,
                consequence="figures wait; restore the run (mlflow runs restore), or they go to the run that the model "
                "gets when it is published",
            )  # fmt: skip

    def _note_gone(self, count: int) -> None:
        if self._spool is not None and count:
            self._spool.remove(count, self._points)
