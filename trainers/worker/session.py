"""The worker's side of the talk with its master: registration, heartbeats, the directive, leases, progress.

One background thread beats; it never blocks the training loop, and a master that is away for a while costs nothing
but the reports: progress and metrics wait here until they were delivered.
"""

from __future__ import annotations

import resource
import threading
import time
import uuid
from collections.abc import Callable

import msgspec
import structlog

from elastrec.platform.specs.errors import AuthenticationError, TransportError
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.metrics import Role
from elastrec.platform.transport.messages.directive import Directive, Mode, PodOrders
from elastrec.platform.transport.messages.job import (
    Answer,
    Done,
    Failed,
    Heartbeat,
    Leased,
    LeaseShards,
    LeaseState,
    Register,
    Registered,
    ShardProgress,
)
from elastrec.platform.transport.readiness import announce_ready
from elastrec.trainers.master_client import MasterClient, MasterGoneError
from elastrec.trainers.worker.identity import Identity
from elastrec.trainers.worker.window import Window

log = structlog.get_logger(__name__)

_ATTEMPT_SECONDS = 2.0


class Session:
    """One worker's standing with its master. Thread-safe.

    Args:
        identity: of this pod.
        memory_bytes: measures the process's resident memory.
    """

    def __init__(self, identity: Identity, memory_bytes: Callable[[], int] = lambda: 0) -> None:
        self.identity = identity
        self.window = Window()
        self._client = MasterClient(identity.master_address, identity.token, identity.tls, identity.terms)
        self._memory_bytes = memory_bytes
        self._changed = threading.Condition()
        self._directive: Directive | None = None
        self._orders: PodOrders | None = None
        # The orders to be idle under which all shards were let go, and those for which the master knows it.
        self._let_go_version = self._let_go_heard = 0
        self._reached_version = 0
        self._progress: dict[tuple[int, str, int], ShardProgress] = {}
        self._stopped = False
        self._closed = False
        self._failure: Exception | None = None
        self._beat_now = threading.Event()
        self._beat_seconds = 0.0
        self._thread: threading.Thread | None = None

    @property
    def beat_seconds(self) -> float:
        """How often the master wants to hear from this worker; 0 before it has registered."""
        return self._beat_seconds

    # Directive

    @property
    def directive(self) -> Directive:
        """The newest directive; EXIT once `stop` was called.

        Raises:
            AuthenticationError: the master refuses this pod's token.
            DataError: predictions of a trained minibatch are not allowed for their head.
            Exception: another error that has ended the heartbeats.
        """
        with self._changed:
            return self._current()

    @property
    def orders(self) -> PodOrders | None:
        """What the master wants of this pod alone; None: nothing."""
        return self._orders

    @property
    def is_idle(self) -> bool:
        """Whether this worker takes no minibatch: as ordered, or as its master has to hear first what it has let go of.

        Otherwise shards that it leases then would be mistaken for those that it had before.
        """
        with self._changed:
            ordered = self._orders is not None and self._orders.is_idle
            return ordered or self._let_go_version > self._let_go_heard

    def let_go(self, orders: PodOrders) -> None:
        """All shards are let go of, as these orders say; the master learns it at once."""
        with self._changed:
            if orders.version <= self._let_go_version:
                return
            self._let_go_version = orders.version
        self._beat_now.set()

    def _current(self) -> Directive:
        if self._failure is not None:
            raise self._failure
        assert self._directive is not None, "register first"
        if self._stopped:
            return Directive(
                term=self._directive.term,
                version=self._directive.version,
                mode=Mode.EXIT,
                generation=self._directive.generation,
                routing=self._directive.routing,
            )
        return self._directive

    def wait_for_change(self, seen: Directive, timeout_seconds: float, *, is_idle: bool | None = None) -> Directive:
        """Returns as soon as the directive differs from `seen`, or after the timeout.

        Args:
            is_idle: the last known value of `is_idle`; if given, a change of it ends the wait, too.
        """
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            while (current := self._current()) == seen and is_idle in (None, self.is_idle):
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(min(left, 60.0))
            return current

    @property
    def is_stopped(self) -> bool:
        """Whether this pod was ordered to stop by a signal rather than by the master."""
        return self._stopped

    def stop(self) -> None:
        """From now on the directive is EXIT, whatever the master says. Only sets a flag: safe in a signal's thread."""
        self._stopped = True
        threading.Thread(target=self._wake, daemon=True).start()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def reached(self, version: int) -> None:
        """The pod does what the directive of this version says; the master learns it at once."""
        with self._changed:
            if version <= self._reached_version:
                return
            self._reached_version = version
        self._beat_now.set()

    # Progress and leases

    def report(self, generation: int, progress: ShardProgress) -> None:
        """Notes the newest progress of a shard for the next request for shards or heartbeat."""
        with self._changed:
            self._progress[(generation, progress.stream, progress.number)] = progress

    def report_now(self) -> None:
        """Sends the next heartbeat without waiting for its time."""
        self._beat_now.set()

    def lease(self, generation: int, kind: str, count: int, cancelled: Callable[[], bool]) -> Leased | None:
        """Asks for shards until the master answers; None once `cancelled` says so.

        A lost answer costs nothing: the same request gets the same shards. The request carries all unsent progress, so
        that a finished shard is reported before the next one is leased, however rare the heartbeats are.
        """
        with self._changed:
            sent = {key: value for key, value in self._progress.items() if key[0] == generation}
        request = LeaseShards(
            pod=self.identity.pod,
            incarnation=self.identity.incarnation,
            generation=generation,
            request_id=uuid.uuid4().hex,
            count=count,
            kind=kind,
            progress=list(sent.values()),
        )
        quiet = False
        while not cancelled():
            try:
                leased = self._client.call(request, Leased, timeout_seconds=2.0, attempt_seconds=_ATTEMPT_SECONDS)
            except (AuthenticationError, MasterGoneError):
                raise
            except TransportError as error:
                if not quiet:
                    log.warning("lease_delayed", kind=kind, reason=str(error))
                quiet = True
                time.sleep(0.1)
                continue
            self._take_orders(leased.orders)
            if leased.directive is not None:
                self._take(leased.directive)
            if leased.state is LeaseState.STALE:
                self._beat_now.set()
            else:
                self._delivered(sent)
            return leased
        return None

    # Heartbeats

    def register(self) -> Registered:
        """Registers, however long the master takes to answer, and starts the heartbeats.

        Raises:
            AuthenticationError: the master refuses this pod's token.
            TransportError: the master refuses this pod, or `stop` was called meanwhile.
        """
        announce_ready()
        registered = self._register()
        self._beat_seconds = registered.heartbeat_seconds or _heartbeat_interval(registered)
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()
        return registered

    def _register(self) -> Registered:
        identity = self.identity
        message = Register(pod=identity.pod, role=Role.WORKER, incarnation=identity.incarnation, node=identity.node)
        quiet = False
        while not self._stopped:
            try:
                registered = self._client.call(
                    message, Registered, timeout_seconds=_ATTEMPT_SECONDS, attempt_seconds=_ATTEMPT_SECONDS
                )
            except TransportError as error:
                if not error.retryable:
                    raise
                if not quiet:
                    log.warning("master_unreachable", master=self._client.address, reason=str(error))
                quiet = True
                continue
            with self._changed:
                # Another master may count its orders anew, and knows of no shard in these hands.
                self._let_go_version = self._let_go_heard = 0
                self._orders = None
                self._take_orders(registered.orders)
            self._take(registered.directive)
            log.info("registered", pod=identity.pod, rank=registered.rank, generation=registered.directive.generation)
            return registered
        raise TransportError("stopped before the master answered", retryable=True)

    def _beat(self) -> None:
        quiet = False
        while not self._closed:
            self._beat_now.wait(self._beat_seconds)
            self._beat_now.clear()
            try:
                self._heartbeat(timeout_seconds=max(_ATTEMPT_SECONDS, self._beat_seconds))
                if quiet:
                    log.info("master_reached_again", master=self._client.address)
                quiet = False
            except (AuthenticationError, MasterGoneError) as error:
                self._fail(error)
                return
            except TransportError as error:
                if not quiet:
                    log.warning("master_unreachable", master=self._client.address, reason=str(error))
                quiet = True
                time.sleep(min(0.2, self._beat_seconds))
            except Exception as error:  # the master would replace a worker without heartbeats, and not know why
                self._fail(error)
                return

    def _fail(self, error: Exception) -> None:
        """Passes an error of the heartbeats to the loop, which asks for the directive."""
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def _heartbeat(self, timeout_seconds: float) -> None:
        with self._changed:
            assert self._directive is not None
            directive, reached, orders = self._directive, self._reached_version, self._orders
            let_go = self._let_go_version
            sent = {key: value for key, value in self._progress.items() if key[0] == directive.generation}
            self._progress = sent.copy()  # of an older generation: void
        metrics = self.window.take()
        usage = resource.getrusage(resource.RUSAGE_SELF)
        message = Heartbeat(
            pod=self.identity.pod,
            incarnation=self.identity.incarnation,
            generation=directive.generation,
            reached_version=reached,
            progress=list(sent.values()),
            metrics=metrics,
            memory_bytes=self._memory_bytes(),
            cpu_seconds=usage.ru_utime + usage.ru_stime,
            orders_version=orders.version if orders is not None else 0,
            let_go_version=let_go,
        )
        answer = self._client.call(message, Answer, timeout_seconds=timeout_seconds)
        if not answer.known:
            self._register()
            return
        self.window.delivered(metrics)
        self._beat_seconds = answer.heartbeat_seconds or self._beat_seconds
        self._delivered(sent)
        with self._changed:
            self._let_go_heard = max(self._let_go_heard, let_go)
            self._changed.notify_all()
        self._take_orders(answer.orders)
        if answer.directive is not None:
            self._take(answer.directive)

    def _take_orders(self, orders: PodOrders | None) -> None:
        """Newer orders hold at once: before the directive or the shards that came with them.

        A step that begins after the end of a pause then follows what was ordered in the pause.
        """
        with self._changed:
            # Answers of two threads may overtake each other.
            if orders is None or (self._orders is not None and orders.version <= self._orders.version):
                return
            self._orders = orders
            self._changed.notify_all()
        # The master waits to hear that they have arrived.
        self._beat_now.set()
        log.info("orders", orders=msgspec.structs.asdict(orders))

    def _delivered(self, sent: dict[tuple[int, str, int], ShardProgress]) -> None:
        with self._changed:
            for key, value in sent.items():
                if self._progress.get(key) is value:
                    del self._progress[key]

    def _take(self, directive: Directive) -> None:
        with self._changed:
            current = self._directive
            # Answers of two threads may overtake each other.
            if current is not None and directive.order < current.order:
                return
            if directive == current:
                return
            self._directive = directive
            self._changed.notify_all()
        log.info(
            "directive", version=directive.version, mode=str(directive.mode), generation=directive.generation,
            routing_epoch=directive.routing.epoch, members=len(directive.members),
        )  # fmt: skip

    def flush(self, timeout_seconds: float) -> bool:
        """Delivers all progress and metrics; False when the master could not be reached in time."""
        try:
            self._heartbeat(timeout_seconds)
            if not self.window.is_empty:  # an older window had to go first
                self._heartbeat(timeout_seconds)
        except TransportError as error:
            log.warning("last_report_lost", reason=str(error))
            return False
        return True

    def close(self) -> None:
        """Ends the heartbeats."""
        self._closed = True
        self._beat_now.set()
        if self._thread is not None:
            self._thread.join(2 * _ATTEMPT_SECONDS)
        self._client.close()

    def failed(self, *, retryable: bool, reason: str, traceback: str = "", shard: ShardProgress | None = None) -> None:
        """Reports to the master why this pod is about to exit; gives up silently if the master does not answer."""
        message = Failed(
            pod=self.identity.pod,
            incarnation=self.identity.incarnation,
            retryable=retryable,
            reason=reason,
            traceback=traceback,
            shard=shard,
        )
        try:
            self._client.call(message, Done, timeout_seconds=10.0, attempt_seconds=_ATTEMPT_SECONDS, remember=True)
        except TransportError as error:
            log.warning("failure_not_reported", reason=str(error))


def _heartbeat_interval(registered: Registered) -> float:
    return TrainingJob.model_validate_json(registered.job_json).spec.faults.heartbeat_interval
