"""The requests of workers: pulls, pushes, and their waits for each other.

Rows are read and changed concurrently (`model`). All changes of the model enter the gate, and a save closes it while
all buckets are frozen. `changed` guards the state of workers and rounds (`pushes`), and is never held while rows are
accessed; gate, `changed` and stripes are locked in this order. Requests that must wait (bsp, ssp) sleep on `changed`
outside of the gate, and get the answer `Blocked` after a few seconds, so that their connection does not seem to be
lost.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import structlog

from elastrec.platform.specs.buckets import dense_buckets_for
from elastrec.platform.specs.errors import IncompatibleError
from elastrec.platform.specs.job import JobSpec
from elastrec.platform.transport.messages.directive import RoutingTable, WorkerProcess
from elastrec.platform.transport.messages.job import Message, TableUsage
from elastrec.trainers.parameter_server.dense.store import DenseStore
from elastrec.trainers.parameter_server.messages import (
    Accepted,
    Applied,
    Blocked,
    GetStats,
    InitDense,
    Join,
    Leave,
    Missing,
    Origin,
    Pull,
    Push,
    PushPull,
    Rows,
    Stale,
    Stamp,
    Stats,
)
from elastrec.trainers.parameter_server.model import Model
from elastrec.trainers.parameter_server.plan import TablePlan
from elastrec.trainers.parameter_server.serving.found_rows import FoundPull, FoundRows
from elastrec.trainers.parameter_server.serving.gate import Gate
from elastrec.trainers.parameter_server.serving.global_batch import Pushed
from elastrec.trainers.parameter_server.serving.gradients import average
from elastrec.trainers.parameter_server.serving.load import Served
from elastrec.trainers.parameter_server.serving.marks import BucketMarks, Marks
from elastrec.trainers.parameter_server.serving.place import Left, Place
from elastrec.trainers.parameter_server.serving.pushes import Pushes, Standing
from elastrec.trainers.parameter_server.serving.requests import PUSH_ARRAYS, check_ids, check_push
from elastrec.trainers.parameter_server.storage import RowStore

Array = np.ndarray[Any, Any]

log = structlog.get_logger(__name__)

_PATIENCE_SECONDS = 5.0
_JOIN_SECONDS = 1.0


def _process(stamp: Stamp) -> WorkerProcess:
    return WorkerProcess(stamp.worker, stamp.incarnation)


class RequestHandlers:
    """A server's model and pushes, and the handlers of requests; `ParameterServer` manages them. Thread-safe.

    Args:
        clock: the job's, seconds since the epoch, for eviction.

    Attributes:
        epoch, generation, ready: requests with other values, or while it is not ready, are Stale.
        routing: that names the epoch.
        model: None: there is none.
        left: contents that it has given away and still holds; None: none.
        is_broken: whether a step was applied in part; `broke` is called with its error. Another process must restore.
        served: for a `LoadMeter`.
    """

    def __init__(self, spec: JobSpec, plan: TablePlan, clock: Callable[[], float]) -> None:
        self.spec, self.plan = spec, plan
        self.now_seconds = clock
        self.gate = Gate()
        self.changed = threading.Condition(threading.RLock())
        self.epoch, self.generation, self.ready = -1, -1, False
        self.routing: RoutingTable | None = None
        self.left: Left | None = None
        self.is_broken = False
        self.broke: Callable[[Exception], None] = lambda error: None
        self._pulls = self._pushes = self._rounds = 0
        self._steps_by_rows: Counter[int] = Counter()
        self.served = Served()
        self.begin(None)

    def begin(self, model: Model | None, marks: Sequence[BucketMarks] = ()) -> None:
        """Drops all workers and the previous model. The gate is closed.

        Args:
            marks: which pushes the model holds.
        """
        buckets = self.plan.virtual_buckets
        nothing = Place(np.zeros(buckets, np.bool_), np.zeros(dense_buckets_for(buckets), np.bool_))
        place = nothing if model is None else model.place
        self.model = model
        self.pushes = Pushes(self.spec, Marks(place.owned, place.dense_owned, marks))
        self._found = FoundRows()

    def forget_found(self, worker: WorkerProcess) -> None:
        """Drops the lookups of a worker that will not push."""
        self._found.forget(worker)

    @property
    def place(self) -> Place | None:
        """The server's place; None without a model."""
        model = self.model
        return None if model is None else model.place

    @property
    def stores(self) -> list[RowStore]:
        """One for each table group; none without a model."""
        model = self.model
        return [] if model is None else model.stores

    @property
    def dense(self) -> DenseStore | None:
        """This server's dense buckets; None until a worker or a record has brought them."""
        model = self.model
        return None if model is None else model.dense

    def array_handlers(self) -> dict[type[msgspec.Struct], Any]:
        """For RpcServer."""
        return {
            Pull: self.pull,
            Push: self.push,
            PushPull: self.push_pull,
            InitDense: self.init_dense,
            Join: self.join,
            Leave: self.leave,
        }

    def _stale(self, stamp: Stamp) -> Stale | None:
        if self.ready and stamp.epoch == self.epoch and stamp.generation == self.generation:
            return None
        # One that has given buckets away and does not have its new ones yet also knows the new owners.
        knows_owners = self.ready or self.left is not None
        is_newer = knows_owners and stamp.generation == self.generation and stamp.epoch < self.epoch
        routing = self.routing if is_newer else None
        return Stale(epoch=self.epoch, generation=self.generation, ready=self.ready, routing=routing)

    def _not_named(self) -> Stale:
        # A list with the worker may arrive later.
        return Stale(epoch=self.epoch, generation=self.generation, ready=self.ready, named=False)

    def pull(self, request: Pull, arrays: list[Array]) -> tuple[Message, list[Array]]:
        """See messages."""
        return self._pull(request, arrays, time.monotonic() + _PATIENCE_SECONDS)

    def push(self, request: Push, arrays: list[Array]) -> tuple[Message, list[Array]]:
        """See messages."""
        return self._push(request, arrays, time.monotonic() + _PATIENCE_SECONDS), []

    def push_pull(self, request: PushPull, arrays: list[Array]) -> tuple[Message, list[Array]]:
        """See messages."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        answer = self._push(request.push, arrays[:PUSH_ARRAYS], deadline)
        if not isinstance(answer, Applied):
            return answer, []
        return self._pull(request.pull, arrays[PUSH_ARRAYS:], deadline, answer.offsets)

    def _pull(
        self, request: Pull, arrays: list[Array], deadline: float, offsets: Sequence[int] = ()
    ) -> tuple[Message, list[Array]]:
        counts, ids = check_ids(self.plan, arrays)
        stamp, worker = request.stamp, _process(request.stamp)
        with self.changed:
            while True:
                if stale := self._stale(stamp):
                    return stale, []
                if request.read_only:
                    break
                if not self.pushes.consistency.join(worker, stamp.version):
                    return self._not_named(), []
                # A step of bsp is read completely or not at all.
                if self.pushes.consistency.may_pull(worker) and not self.pushes.has_steps:
                    break
                if not self.changed.wait(deadline - time.monotonic()):
                    return Blocked(), []
            self._pulls += 1
            model, found = self.model, self._found
            assert model is not None
            # Under the epoch of the request, because after a move of buckets the values belong to others.
            dense = model.dense_values() if request.dense else np.empty(0, np.float32)
        began = time.perf_counter()
        try:
            values, lookups = model.pull(counts, ids, read_only=request.read_only)
        except IncompatibleError:
            with self.changed:
                if stale := self._stale(stamp):
                    return stale, []  # the rows were dropped to be restored
            raise
        seconds = time.perf_counter() - began
        with self.changed:
            self.served = self.served.and_also(len(ids), seconds)
            if found is not self._found or not self.ready:
                stale = Stale(epoch=self.epoch, generation=self.generation, ready=self.ready)
                return self._stale(stamp) or stale, []
            if not request.read_only:
                found.remember(worker, FoundPull(counts, ids, lookups))
        return Rows(offsets=list(offsets)), [values, dense]

    def _push(self, request: Push, arrays: list[Array], deadline: float) -> Message:
        gradient = check_push(self.plan, arrays, request.samples, request.rate_scale)
        stamp, origin = request.stamp, request.origin
        with self.gate.passed():
            with self.changed:
                if stale := self._stale(stamp):
                    return stale
                self.pushes.close(request)
                standing = self.pushes.standing(origin)
                push = Pushed(_process(stamp), origin, gradient, request.share)
                if standing is Standing.UNKNOWN or standing is Standing.MISSING:
                    assert self.model is not None
                    self.model.check_dense(gradient)
                    if not self.pushes.consistency.join(push.worker, stamp.version):
                        return self._not_named()
                    if standing is Standing.MISSING:
                        return Missing(offset=self.pushes.marks.offset(origin.split))
                    self.pushes.take(push, request)
                    self._pushes += 1
            if standing is Standing.UNKNOWN and not self.pushes.is_synchronous:
                self._apply_alone(push)
            else:
                self.take_steps()
        with self.changed:
            while True:
                if stale := self._stale(stamp):
                    return stale
                standing = self.pushes.standing(origin)
                if standing is Standing.APPLIED or standing is Standing.RELEASED:
                    if not self.pushes.is_synchronous:
                        self.pushes.count(push.worker, request.number)
                        self.changed.notify_all()
                    share = self.pushes.share(push.worker) if request.batch_size else None
                    return Applied(offsets=self.pushes.offsets([origin.split, *request.also]), share=share)
                if standing is not Standing.WAITING:
                    return Blocked()  # dropped: sent again, it is refused unless a newer list names the worker
                if not self.changed.wait(deadline - time.monotonic()):
                    return Blocked()

    def _apply_alone(self, push: Pushed) -> None:
        """A push of async or ssp, beside those of others."""
        try:
            self._step([push])
        except BaseException:
            with self.changed:
                self.pushes.give_up(push)
                self.changed.notify_all()
            raise
        with self.changed:
            self._rounds += 1

    def take_steps(self) -> None:
        """Applies the steps of bsp that are due, unless another thread is at it. Inside the gate."""
        with self.changed:
            if self.pushes.is_stepping or not self.pushes.has_steps:
                return
            self.pushes.is_stepping = True
        try:
            while True:
                with self.changed:
                    step = self.pushes.next_step()
                    if step is None:
                        # Before another one can be queued.
                        self.pushes.is_stepping = False
                        self.changed.notify_all()
                        return
                try:
                    self._step(step.pushes)
                except BaseException:
                    with self.changed:
                        # Their workers send them again and get the error, instead of waiting for a step that is gone.
                        for push in step.pushes:
                            self.pushes.give_up(push)
                    raise
                with self.changed:
                    for push in step.round:
                        push.is_released = True
                    self._rounds += bool(step.round)
                    self.changed.notify_all()
        except BaseException:
            with self.changed:
                self.pushes.is_stepping = False
                self.changed.notify_all()
            raise

    def _step(self, pushes: Sequence[Pushed]) -> None:
        """One step of the optimisers with the mean of these pushes; without any, none."""
        if not pushes:
            return
        model = self.model
        assert model is not None
        with self.changed:
            lacking = [self.pushes.marks.lacking(push.origin) for push in pushes]
            pulls = self._found.pulls(pushes[0].worker) if len(pushes) == 1 else []
        began = time.perf_counter()
        gradient = average(
            [
                push.gradient if places is None else model.part_of(push.gradient, places)
                for push, places in zip(pushes, lacking, strict=True)
            ]
        )
        # Without `changed`: numpy releases the GIL while it compares, so that other requests would wait for the lock.
        pull = next((each for each in pulls if each.is_of(gradient)), None)
        with self.changed:
            lookups = self._found.take(pushes[0].worker, pull) if pull is not None else None
        try:
            model.apply(gradient, lookups, self.now_seconds())
        except IncompatibleError:
            raise  # ends its worker, so the push does not come again
        except Exception as error:
            self._break(error)
            raise
        seconds = time.perf_counter() - began
        with self.changed:
            self.served = self.served.and_also(sum(len(group.ids) for group in gradient.groups), seconds)
            self.pushes.applied(pushes)
            self._steps_by_rows[gradient.samples] += 1

    def _break(self, error: Exception) -> None:
        """Answers Stale for good: a step whose first rows were changed would change them again when its pushes are
        repeated, and no record may contain it."""
        with self.changed:
            self.ready, self.is_broken = False, True
            self.changed.notify_all()
        log.error("step_applied_in_part", reason=f"{type(error).__name__}: {error}", generation=self.generation)
        self.broke(error)

    def init_dense(self, request: InitDense, arrays: list[Array]) -> tuple[Message, list[Array]]:
        """See messages."""
        with self.gate.passed(), self.changed:
            if stale := self._stale(request.stamp):
                return stale, []
            assert self.model is not None
            return self.model.init_dense(request, arrays), []

    def join(self, request: Join, arrays: list[Array]) -> tuple[Message, list[Array]]:
        """See messages."""
        deadline, worker = time.monotonic() + _JOIN_SECONDS, _process(request.stamp)
        with self.gate.passed():
            with self.changed:
                if stale := self._stale(request.stamp):
                    return stale, []
                if not self.pushes.consistency.join(worker, request.stamp.version):
                    return self._not_named(), []
                self.pushes.advance(worker, request.round, request.batch_size)
                self.changed.notify_all()
            self.take_steps()
        with self.changed:
            while True:
                if stale := self._stale(request.stamp):
                    return stale, []
                number = self.pushes.consistency.first_round(worker)
                share = self.pushes.share(worker) if request.batch_size else None
                if share is not None or not request.batch_size or not self.changed.wait(deadline - time.monotonic()):
                    return Accepted(round=number, share=share), []

    def leave(self, request: Leave, arrays: list[Array]) -> tuple[Message, list[Array]]:
        """See messages."""

        def is_dropped(origin: Origin) -> bool:
            return self.pushes.standing(origin) in (Standing.UNKNOWN, Standing.MISSING)

        with self.gate.passed():
            with self.changed:
                if stale := self._stale(request.stamp):
                    return stale, []
                if any(is_dropped(origin) for origin in request.waiting):
                    return self._not_named(), []  # with the worker
                self.pushes.leave(_process(request.stamp))
                self.changed.notify_all()
            self.take_steps()
        with self.changed:
            while self.pushes.is_stepping:
                # Another thread applies the worker's pushes.
                self.changed.wait()
            return Applied(offsets=self.pushes.offsets(origin.split for origin in request.waiting)), []

    # Accounting

    def usage(self) -> list[TableUsage]:
        """Rows and bytes per table."""
        model = self.model
        return [] if model is None else model.usage()

    def stats(self, request: GetStats) -> Stats:
        with self.changed:
            return Stats(
                epoch=self.epoch,
                generation=self.generation,
                tables=self.usage(),
                dense_parameters=0 if self.dense is None else len(self.dense.values),
                pulls=self._pulls,
                pushes=self._pushes,
                rounds=self._rounds,
                members=[worker.pod for worker in self.pushes.consistency.members],
                steps_by_rows=dict(self._steps_by_rows),
            )
