"""Supervision of the pods of a node: starts, exits, restarts, deletions, measurements.

Every change is journalled before it is executed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import structlog

from elastrec.platform.clusters.local.agent import pod_life as life
from elastrec.platform.clusters.local.agent.admission import admission
from elastrec.platform.clusters.local.agent.journal import Journal, KeptEvent
from elastrec.platform.clusters.local.agent.pod_life import PodRecord, Stage
from elastrec.platform.clusters.local.agent.reactor import Reactor
from elastrec.platform.clusters.local.agent.volumes import MemoryVolumes
from elastrec.platform.clusters.local.processes.limits import Limits, Usage
from elastrec.platform.clusters.local.processes.pod_environment import pod_command, pod_environment
from elastrec.platform.clusters.local.processes.pod_runner import PodRunner, ProcessExit, RunningPod, StillDyingError
from elastrec.platform.clusters.pods import EndReason, PodEventKind, PodSize, PodStatus
from elastrec.platform.specs.errors import ClusterError

log = structlog.get_logger(__name__)
_SAMPLE_SECONDS = 1.0
_DYING_SECONDS = 0.5
_SWEEP_SECONDS = 1.0
_OBEY_SECONDS = 3.0
_SETTLE_AGAIN_SECONDS = 10.0
_READY_SECONDS = 0.05


class Supervision:
    """The pods of a node and their processes.

    Args:
        folder: the agent's state.
        journal: of the same folder.
        limits: see `probe_limits`.
        total: size of the cluster.
        node: name of this machine.
        inherited: environment from which pods get the allowed part.

    Attributes:
        _lock: held by everything that reads or changes pods.
        _changed: notified after every change.
    """

    def __init__(
        self, folder: Path, journal: Journal, limits: Limits, total: PodSize, node: str, inherited: Mapping[str, str]
    ) -> None:
        self._journal, self._limits, self._total, self._node = journal, limits, total, node
        self._inherited = dict(inherited)
        self._runner = PodRunner(folder / "pods", limits)
        self._volumes = MemoryVolumes(folder)
        self._reactor = Reactor()
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._pods: dict[str, PodRecord] = {}  # by uid, oldest first
        self._running: dict[str, RunningPod] = {}
        self._usage: dict[str, Usage] = {}
        self._sampling = False
        self._dying: set[str] = set()
        self._sweeping = self._keeping_volumes = False
        self._closed = False

    def start(self) -> None:
        """Adopts the pods of the journal and begins to supervise."""
        self._runner.empty_trash()
        with self._lock:
            for record in self._journal.records():
                self._pods[record.uid] = record
            for uid in self._runner.unknown(set(self._pods)):
                if self._runner.end_unknown(uid):
                    self._runner.remove(uid)
                else:
                    log.warning("unknown_pod_still_dying", uid=uid, consequence="the next agent tries again")
            self._runner.forget_groups(set(self._pods))
            for record in list(self._pods.values()):
                self._resume(record)
            self._keep_volumes()
            self._admit()
            self._sweep()
        self._runner.empty_trash()
        self._reactor.start()

    def release_waiting_calls(self) -> None:
        """Lets waiting long polls and deletions return; call `close` afterwards, when there are no more calls."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()

    def close(self) -> None:
        """Ends supervision; pods continue to run."""
        self._reactor.stop()
        with self._lock:
            self._journal.close()

    def kill_all(self) -> None:
        """After `close`: kills every pod without journalling it, for an agent whose folder was deleted."""
        for running in self._running.values():
            self._runner.destroy(running)
        self._volumes.keep((), time.monotonic())
        deadline = time.monotonic() + _OBEY_SECONDS
        while not all(self._limits.remove(uid) for uid in self._limits.uids()) and time.monotonic() < deadline:
            time.sleep(_DYING_SECONDS / 10)

    def _find(self, name: str) -> PodRecord | None:
        return next((record for record in self._pods.values() if record.spec.name == name), None)

    def _status(self, record: PodRecord) -> PodStatus:
        return life.status_of(record, self._usage.get(record.uid))

    def _keep(self, record: PodRecord, kind: PodEventKind = PodEventKind.MODIFIED) -> PodRecord:
        """Journals a changed record, then stores it and wakes the watchers."""
        record = msgspec.structs.replace(record, version=self._journal.version + 1)
        self._journal.write(record, KeptEvent(kind, self._status(record), record.version))
        self._pods[record.uid] = record
        self._changed.notify_all()
        return record

    def _admit(self) -> None:
        """Starts the waiting pods that may start now."""
        while (decided := admission(list(self._pods.values()), self._total, self._volumes.sizes)).start:
            for record in decided.start:
                self._launch(record)
        for uid, reason in decided.why.items():
            if reason != self._pods[uid].message:
                self._keep(life.unschedulable(self._pods[uid], reason))

    def _keep_volumes(self) -> None:
        """Frees the memory volumes that are not needed any more, now and when the next one is not."""
        if not self._volumes.sizes:
            return
        due = self._volumes.keep(
            (pod.spec for pod in self._pods.values() if pod.stage is not Stage.ENDED), time.monotonic()
        )
        if due is None or self._keeping_volumes:
            return

        def again() -> None:
            with self._lock:
                self._keeping_volumes = False
                if not self._closed:
                    self._keep_volumes()
                    self._admit()

        self._keeping_volumes = True
        self._reactor.call_later(due - time.monotonic(), again)

    def _launch(self, record: PodRecord) -> None:
        record = self._keep(life.starting(record))
        spec = record.spec
        try:
            variables = pod_environment(
                spec,
                size=record.size,
                node=self._node,
                port=record.port,
                files=self._runner.files_folder(record.uid),
                work=self._runner.work_folder(record.uid),
                ready=self._runner.ready_file(record.uid) if record.is_starting else None,
                memory=self._volumes.make(spec),
                inherited=self._inherited,
            )
            running = self._runner.start(
                record.uid, record.attempt, pod_command(spec), variables, record.size, record.startup_cores
            )
        except (OSError, ClusterError) as error:
            end = ProcessExit(
                exit_code=life.COULD_NOT_START_EXIT_CODE, finished_unix_seconds=time.time(), message=str(error)
            )
            self._end(record, end)
            return
        self._supervise(running, self._keep(life.started(record, time.time())))

    def _supervise(self, running: RunningPod, record: PodRecord) -> None:
        self._running[running.uid] = running
        if record.is_starting:
            self._await_ready(running, time.monotonic() + life.settle_pause_seconds(record, time.time()))
        self._reactor.watch(running.fileno(), lambda: self._on_exit(running))
        if not self._sampling:
            self._sampling = True
            self._reactor.call_later(0.0, self._sample)

    def _await_ready(self, running: RunningPod, deadline: float) -> None:
        """Limits a pod to its size when it reports that it has started, or after a minute."""

        def look(running: RunningPod) -> None:
            if self._runner.ready_file(running.uid).exists() or time.monotonic() >= deadline:
                self._settle(running)
            else:
                self._await_ready(running, deadline)

        self._reactor.call_later(_READY_SECONDS, self._if_running(running, look))

    def _settle(self, running: RunningPod) -> None:
        record = self._pods[running.uid]
        try:
            self._limits.resize(record.uid, record.size)
        except (OSError, ClusterError) as error:
            log.warning("pod_not_settled", pod=record.spec.name, reason=str(error))
            self._reactor.call_later(_SETTLE_AGAIN_SECONDS, self._if_running(running, self._settle))
            return
        log.info("pod_settled", pod=record.spec.name, size=record.size, startup_cores=record.startup_cores)
        self._keep(life.settled(record))
        self._runner.ready_file(record.uid).unlink(missing_ok=True)

    def _on_exit(self, running: RunningPod) -> None:
        with self._lock:
            try:
                end = self._runner.collect(running.uid, running.attempt)
            except StillDyingError as error:
                self._wait_for_death(running.uid, error, lambda: self._on_exit(running))
                return
            self._dying.discard(running.uid)
            running.release()
            del self._running[running.uid]
            self._end(self._pods[running.uid], end)
            self._admit()

    def _wait_for_death(self, uid: str, error: StillDyingError, callback: Callable[[], None]) -> None:
        """The pod keeps its resources until the last of its processes has ended."""
        if uid not in self._dying:
            self._dying.add(uid)
            log.warning("pod_still_dying", pod=self._pods[uid].spec.name, reason=str(error))
        self._reactor.call_later(_DYING_SECONDS, callback)

    def _sweep(self) -> None:
        """Removes the control groups of ended pods, now or as soon as the kernel allows it."""
        if self._runner.sweep() or self._sweeping:
            return

        def again() -> None:
            with self._lock:
                self._sweeping = False
                if not self._closed:
                    self._sweep()

        self._sweeping = True
        self._reactor.call_later(_SWEEP_SECONDS, again)

    def _end(self, record: PodRecord, end: ProcessExit) -> None:
        """Handles the end of an attempt: final state, pause before the next attempt, or end of a deletion."""
        counted = self._limits.usage(record.uid)
        if counted is not None:
            # The group's counter includes all attempts, so the supervisor's sum would be counted twice.
            end = msgspec.structs.replace(end, cpu_seconds=max(0.0, counted.cpu_seconds - record.earlier_cpu_seconds))
        self._usage.pop(record.uid, None)
        record = life.exited(record, end, time.time())
        log.info(
            "pod_ended",
            pod=record.spec.name,
            reason=record.reason,
            exit_code=record.exit_code,
            attempt=record.attempt,
            stage=record.stage,
            message=record.message,
        )
        if record.is_deleting:
            self._forget(msgspec.structs.replace(record, end=EndReason.DELETED))
            return
        self._keep(record)
        self._keep_volumes()
        if record.stage is Stage.BACK_OFF:
            self._retry_later(record)
        else:
            self._runner.release(record.uid)
            self._sweep()

    def _retry_later(self, record: PodRecord) -> None:
        self._reactor.call_later(life.start_pause_seconds(record, time.time()), lambda: self._retry(record.uid))

    def _retry(self, uid: str) -> None:
        with self._lock:
            record = self._pods.get(uid)
            if record is not None and record.stage is Stage.BACK_OFF and not self._closed:
                self._launch(record)

    def _begin_delete(self, record: PodRecord, grace_seconds: float) -> None:
        # Only the first request sends SIGTERM, because many programs exit immediately at a second one.
        first = not record.is_deleting
        record = self._keep(life.deleting(record, grace_seconds, time.time()))
        log.info("pod_deleted", pod=record.spec.name, phase=record.phase, grace_seconds=grace_seconds)
        self._pursue_delete(record, first=first)

    def _pursue_delete(self, record: PodRecord, *, first: bool = True) -> None:
        running = self._running.get(record.uid)
        if running is None:
            self._forget(record)
            self._admit()
            return
        if first:
            self._runner.terminate(running)
        pause = life.kill_pause_seconds(record, time.time())
        self._reactor.call_later(pause, self._if_running(running, self._runner.kill))
        # A supervisor that is stopped or hangs cannot kill.
        destroy = self._if_running(running, self._runner.destroy)
        self._reactor.call_later(pause + _OBEY_SECONDS, destroy)

    def _if_running(self, running: RunningPod, action: Callable[[RunningPod], None]) -> Callable[[], None]:
        def act() -> None:
            with self._lock:
                if self._running.get(running.uid) is running:
                    action(running)

        return act

    def _forget(self, record: PodRecord) -> None:
        end = record.end if record.phase.is_final else EndReason.DELETED
        gone = msgspec.structs.replace(record, reason="Deleted", end=end, version=self._journal.version + 1)
        # First: the next agent removes a folder without a record, but cannot adopt a pod without a folder.
        self._journal.write(None, KeptEvent(PodEventKind.DELETED, self._status(gone), gone.version))
        del self._pods[record.uid]
        self._runner.remove(record.uid)
        self._sweep()
        self._keep_volumes()
        self._usage.pop(record.uid, None)
        self._changed.notify_all()
        self._reactor.call_later(0.0, self._runner.empty_trash)

    def _resume(self, record: PodRecord) -> None:
        """Takes a pod over from an earlier agent."""
        if record.stage is Stage.LIVE:
            try:
                adopted = self._runner.adopt(record.uid, record.attempt)
            except StillDyingError as error:
                self._wait_for_death(record.uid, error, lambda: self._resume_later(record.uid))
                return
            self._dying.discard(record.uid)
            log.info("pod_adopted", pod=record.spec.name, attempt=record.attempt, adopted=type(adopted).__name__)
            if isinstance(adopted, RunningPod):
                if record.reason == "ContainerCreating":
                    record = self._keep(life.started(record, time.time()))
                self._supervise(adopted, record)
            elif adopted is not None:
                self._end(record, adopted)
                return
            elif not record.is_deleting:
                # Journalled but never begun: it is started again, under a new number.
                self._launch(record)
                return
        if record.is_deleting:
            self._pursue_delete(record)
        elif record.stage is Stage.BACK_OFF:
            self._retry_later(record)

    def _resume_later(self, uid: str) -> None:
        with self._lock:
            record = self._pods.get(uid)
            if record is not None and not self._closed:
                self._resume(record)
                self._admit()

    def _sample(self) -> None:
        with self._lock:
            running = [(pod, self._pods[pod.uid].earlier_cpu_seconds) for pod in self._running.values()]
            self._sampling = bool(running) and not self._closed
            for pod, earlier in running:
                self._usage[pod.uid] = self._runner.usage(pod, earlier)
        if self._sampling:
            self._reactor.call_later(_SAMPLE_SECONDS, self._sample)
