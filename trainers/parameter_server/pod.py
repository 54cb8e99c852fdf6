"""A parameter server as a pod: it registers with the master, sends heartbeats, and follows its directive.

Three threads: one sends heartbeats and never does anything long, so that a server that saves or restores for minutes
does not count as lost; the caller's thread restores; one writes parts of records (`saver.py`). A master that restarts
(`known` false) finds the server's state unchanged: it learns which order was restored, and orders no other restore.
"""

from __future__ import annotations

import os
import resource
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from elastrec.checkpoints import DamagedRecordError, StoreError
from elastrec.platform.specs.errors import AuthenticationError, ElastrecError, TransportError
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.metrics import Role
from elastrec.platform.transport import ArrayStream, RpcClient, RpcServer, TlsConfig, connections_for
from elastrec.platform.transport.messages.directive import Directive, Mode, RestoreOrder
from elastrec.platform.transport.messages.job import (
    Answer,
    Done,
    Failed,
    Heartbeat,
    Message,
    Register,
    Registered,
    RestoreProblem,
)
from elastrec.platform.transport.readiness import announce_ready
from elastrec.trainers.master_client import MasterClient, MasterGoneError, TermPlace
from elastrec.trainers.memory import resident_bytes
from elastrec.trainers.parameter_server.clock import JobClock
from elastrec.trainers.parameter_server.messages import REQUESTS, GetStats, Stale, Stats
from elastrec.trainers.parameter_server.migration import messages as moves
from elastrec.trainers.parameter_server.migration.giving import Giver
from elastrec.trainers.parameter_server.migration.mover import Mover
from elastrec.trainers.parameter_server.notice import Notice
from elastrec.trainers.parameter_server.orders import Orders
from elastrec.trainers.parameter_server.records.memory import RecordMemory
from elastrec.trainers.parameter_server.records.pages import PageMaker
from elastrec.trainers.parameter_server.records.saver import Saver
from elastrec.trainers.parameter_server.records.share import restore
from elastrec.trainers.parameter_server.serving.load import LoadMeter
from elastrec.trainers.parameter_server.serving.server import ParameterServer
from elastrec.trainers.parameter_server.warm_up import warm_kernels
from elastrec.trainers.threads import granted_threads, threads_of

log = structlog.get_logger(__name__)

_ATTEMPT_SECONDS = 5.0
_EVICTION_SECONDS = 30.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.2, 5.0
"""Pause between two attempts to restore while the store is unreachable."""


@dataclass(frozen=True)
class PodSettings:
    """The settings of a server's pod.

    Attributes:
        host: name by which others reach the pod; port 0: chosen by the system.
        memory: of the node, for the newest parts of records; None: none.
        grace_seconds: between SIGTERM and SIGKILL.
    """

    pod: str
    node: str
    master_address: str
    host: str
    port: int
    token: str = field(repr=False)
    tls: TlsConfig | None = None
    listen: str = "0.0.0.0"
    local_streams: bool = True
    memory: Path | None = None
    grace_seconds: float = 0.0
    terms: TermPlace = field(default_factory=TermPlace)


class _LateHandlers:
    """Handlers of a server that does not exist yet; until then the answer is Stale."""

    def __init__(self) -> None:
        self._server: ParameterServer | None = None
        self._handlers: dict[type[Any], Any] = {}

    def begin(self, server: ParameterServer) -> None:
        self._handlers = {**server.array_handlers(), **Giver(server).array_handlers()}
        self._server = server

    def answer(self, request: Any, arrays: list[Any]) -> tuple[Message, list[Any]]:
        if self._server is None:
            return Stale(epoch=-1, generation=-1, ready=False), []
        answer: tuple[Message, list[Any]] = self._handlers[type(request)](request, arrays)
        return answer

    def stats(self, request: GetStats) -> Stats:
        if self._server is None:
            raise TransportError("the server has not registered with its master yet", retryable=True)
        return self._server.stats(request)


class ServerPod:
    """One run of the process.

    Args:
        memory_bytes: measures the process's resident memory.
    """

    def __init__(self, settings: PodSettings, memory_bytes: Callable[[], int] = resident_bytes) -> None:
        self._settings = settings
        self._memory_bytes = memory_bytes
        self._master = MasterClient(settings.master_address, settings.token, settings.tls, settings.terms)
        self.incarnation = uuid.uuid4().hex
        self._stopped = threading.Event()
        self._beat_now = threading.Event()
        self._orders = Orders(self._beat_now.set)
        self._server: ParameterServer | None = None
        self._saver: Saver | None = None
        self._memory = RecordMemory(settings.memory)
        self._pages = PageMaker(self._memory)
        self._mover: Mover | None = None
        self._load = LoadMeter()
        self._clock = JobClock()
        self._notice = Notice(settings.grace_seconds)
        self._address, self._beat_seconds = "", 0.0

    def stop(self) -> None:
        """Ends `run` soon; only sets flags, so that a signal handler may call it."""
        self._stopped.set()
        self._beat_now.set()

    def give_notice(self) -> None:
        """Notice of the end: the server serves until others have its buckets; a second call, or one without buckets,
        ends it soon.

        Only sets flags, so that a signal handler may call it.
        """
        directive = self._orders.directive
        owns = directive is not None and (self._settings.pod in directive.routing.servers or bool(directive.moving))
        if not owns or self._notice.is_given:
            self.stop()
            return
        self._notice.give()
        self._beat_now.set()

    def run(self) -> None:
        """Serves until the directive is EXIT, `stop` was called, or the time after a notice is over.

        Raises:
            AuthenticationError: the master refuses the token.
            CheckpointError: a record that must be restored has another format; the master knows of it.
        """
        # Registration needs the address and returns the job file, which serving needs.
        handlers = _LateHandlers()
        rpc = RpcServer(
            {GetStats: handlers.stats},
            token=self._settings.token,
            array_handlers=dict.fromkeys((*REQUESTS, *moves.REQUESTS), handlers.answer),
            host=self._settings.listen,
            port=self._settings.port,
            tls=self._settings.tls,
            advertised_host=self._settings.host,
            local_streams=self._settings.local_streams,
            maximum_connections=lambda: connections_for(
                len(self._orders.directive.members) if self._orders.directive else 0
            ),
        )
        self._address = rpc.address
        self._pages.start()
        warm_kernels()
        rpc.serve_in_background()
        try:
            announce_ready()
            registered = self._register()
            if registered is None:
                return
            job = TrainingJob.model_validate_json(registered.job_json)
            self._server = ParameterServer(
                self._settings.pod, job.spec, clock=self._clock, granted_cores=granted_threads(os.environ)
            )
            orders = self._orders
            self._server.broke = orders.failed
            self._saver = Saver(self._server, orders.froze, orders.saved, orders.failed, orders.copied, self._memory)
            self._mover = Mover(self._server, self._open, self._beat_now.set)
            handlers.begin(self._server)
            self._beat_seconds = registered.heartbeat_seconds or job.spec.faults.heartbeat_interval
            beating = threading.Thread(target=self._beat, daemon=True)
            beating.start()
            self._follow()
            beating.join(_ATTEMPT_SECONDS)
        finally:
            rpc.shutdown()
            self._pages.take().clear()
            self._memory.close()
            self._master.close()

    # The caller's thread: orders

    def _follow(self) -> None:
        assert self._server is not None
        done: Directive | None = None
        next_eviction = _EVICTION_SECONDS

        def may_evict() -> bool:
            return not (self._stopped.is_set() or self._orders.has_news(done))

        while not self._stopped.is_set():
            directive, failure, waited = self._orders.wait(done, 1.0)
            next_eviction -= 1.0 if waited else 0.0
            if failure is not None:
                if self._server.is_broken:
                    self._report_failure(f"a push was applied in part: {failure}", retryable=True)
                raise failure
            assert directive is not None
            if directive is done:
                # It stops for another directive, because the job may be waiting until that one is reached.
                if next_eviction <= 0 and self._server.evict(may_evict):
                    next_eviction = _EVICTION_SECONDS
                continue
            if directive.mode is Mode.EXIT:
                log.info("exit", version=directive.version)
                self._orders.reached(directive)
                break
            self._obey(directive)
            self._orders.reached(directive)
            done = directive
        self._stopped.set()
        self._beat_now.set()

    def _obey(self, directive: Directive) -> None:
        assert self._server is not None and self._saver is not None
        save = directive.save
        if save is None or save.order_id != self._saver.order_id:
            self._saver.cancel()
        if not self._move(directive):
            return
        if self._settings.pod not in directive.routing.servers:
            # Not yet, or no longer: only a later routing table assigns buckets to this server.
            if not directive.moving:
                self._server.suspend()
            return
        order = directive.restore
        if order is not None and not self._orders.is_restored(order) and not self._restore(order, directive):
            return
        self._server.adopt(
            directive.routing, directive.generation, directive.members, directive.version, moves=bool(directive.moving)
        )
        if save is None:
            self._orders.saved_is_known()
        elif save.order_id != self._saver.order_id and not self._orders.has_saved(save):
            self._saver.begin(save)

    def _move(self, directive: Directive) -> bool:
        """Executes orders of a change of servers; false when buckets could not be taken over under this directive."""
        assert self._server is not None and self._mover is not None
        self._server.drop_left_before(directive.routing.epoch, directive.moving)
        order = directive.take
        if order is None:
            self._mover.cancel()
            return True
        # It restores nothing, because its buckets come from other servers.
        self._pages.take().clear()
        if not order.is_due(directive.routing, self._settings.pod):
            self._mover.follow(order, directive.generation)
            return True
        return self._mover.take_over(
            order,
            directive.generation,
            directive.routing,
            lambda: self._orders.directive is directive and not self._stopped.is_set(),
        )

    def _open(self, address: str) -> ArrayStream:
        return RpcClient(address, self._settings.token, self._settings.tls).open_stream(moves.ANSWERS)

    def _restore(self, order: RestoreOrder, directive: Directive) -> bool:
        """Restores, however long the store is unreachable; false when the record is damaged or there is another
        directive.

        The master learns of damage from heartbeats, because damage is permanent, and orders another record.
        """
        assert self._server is not None
        pause = _FIRST_PAUSE_SECONDS
        while not self._stopped.is_set():
            try:
                restore(
                    self._server,
                    order.uri,
                    directive.routing,
                    directive.generation,
                    threads=threads_of(self._orders.pod, os.environ),
                    with_marks=order.with_marks,
                    memory=self._memory.opened(),
                    pages=self._pages.take(),
                )
                self._orders.restored(order)
                return True
            except DamagedRecordError as error:
                log.error("record_damaged", record=order.uri, reason=str(error))
                problem = RestoreProblem(
                    order_id=order.order_id, reason=str(error), is_damaged=True, record=error.record
                )
            except (StoreError, OSError) as error:
                log.warning("store_away", record=order.uri, reason=str(error), next_try_seconds=pause)
                problem = RestoreProblem(order_id=order.order_id, reason=str(error), is_damaged=False)
                self._server.transfers += 1
            except ElastrecError as error:
                self._report_failure(f"the record {order.uri} could not be restored: {error}", retryable=True)
                raise
            if not self._orders.not_restored(problem, directive, pause):
                return False
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        return False

    def _report_failure(self, reason: str, *, retryable: bool) -> None:
        message = Failed(pod=self._settings.pod, incarnation=self.incarnation, retryable=retryable, reason=reason)
        try:
            self._master.call(message, Done, timeout_seconds=10.0, attempt_seconds=_ATTEMPT_SECONDS, remember=True)
        except TransportError as error:
            log.warning("failure_not_reported", reason=str(error))

    # The beating thread

    def _register(self) -> Registered | None:
        """Registers, however long the master takes to answer; None if the process is stopped during that time."""
        message = Register(
            pod=self._settings.pod,
            role=Role.PARAMETER_SERVER,
            incarnation=self.incarnation,
            address=self._address,
            node=self._settings.node,
            restored_order_id=self._orders.restored_order_id,
            started_cores=granted_threads(os.environ),
        )
        quiet = False
        while not self._stopped.is_set():
            try:
                registered = self._master.call(message, Registered, timeout_seconds=_ATTEMPT_SECONDS)
            except TransportError as error:
                if not error.retryable:
                    raise
                if not quiet:
                    log.warning("master_unreachable", master=self._master.address, reason=str(error))
                quiet = True
                self._stopped.wait(0.2)
                continue
            if registered.wall_seconds is not None:
                self._clock.follow(registered.wall_seconds)
            self._orders.pod = registered.orders
            self._orders.take(registered.directive)
            restored = self._orders.restored_order_id
            log.info("registered", rank=registered.rank, address=self._address, restored=restored)
            return registered
        return None

    def _beat(self) -> None:
        quiet = False
        try:
            while True:
                self._beat_now.wait(self._beat_seconds)
                self._beat_now.clear()
                stopping = self._stopped.is_set()
                try:
                    answer = self._master.call(
                        self._heartbeat(), Answer, timeout_seconds=1.0 if stopping else _ATTEMPT_SECONDS
                    )
                    quiet = False
                    self._notice.answered()
                except (AuthenticationError, MasterGoneError):
                    raise
                except TransportError as error:
                    if not quiet:
                        log.warning("master_unreachable", master=self._master.address, reason=str(error))
                    quiet = True
                    self._stopped.wait(self._beat_seconds)
                else:
                    self._beat_seconds = answer.heartbeat_seconds or self._beat_seconds
                    if not answer.known:
                        self._register()
                    elif answer.directive is not None:
                        self._orders.pod = answer.orders
                        self._orders.take(answer.directive)
                if stopping:
                    return
                if self._notice.is_over:
                    log.warning("ended_after_notice", grace_seconds=self._settings.grace_seconds)
                    self.stop()
        except Exception as error:  # a server without heartbeats would serve on until the master ends it
            self._orders.failed(error)

    def _heartbeat(self) -> Heartbeat:
        assert self._server is not None
        used = resource.getrusage(resource.RUSAGE_SELF)
        dense = self._server.dense  # once: a restore may drop it meanwhile
        with self._orders.reports() as reports:
            return Heartbeat(
                pod=self._settings.pod,
                incarnation=self.incarnation,
                generation=self._server.generation,
                tables=self._server.usage(),
                writing=self._saver.writing if self._saver else "",
                transfers=self._server.transfers,
                copied_order_id=self._mover.copied if self._mover else "",
                taken_order_id=self._mover.taken if self._mover else "",
                copying=self._mover.progress() if self._mover else None,
                ends_in_seconds=self._notice.left_seconds,
                load=self._load.measure(self._server.stores, self._owned(), self._server.served, time.monotonic()),
                memory_bytes=max(0, self._memory_bytes() - self._memory.mapped_bytes),
                cpu_seconds=used.ru_utime + used.ru_stime,
                dense_bytes=0 if dense is None else dense.values.nbytes,
                **reports,
            )

    def _owned(self) -> Any:
        place = None if self._server is None else self._server.place
        return None if place is None else place.owned
