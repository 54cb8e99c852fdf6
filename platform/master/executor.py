"""Carries effects out: pods through the cluster, records through their lane; tells what became of them."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import structlog

from elastrec.platform.clusters.protocol import Cluster, EndReason, PodPhase, PodSize, PodSpec, PodStatus
from elastrec.platform.data.manifest import read_manifest
from elastrec.platform.master import events
from elastrec.platform.master.effects import CommitRecord, CreatePod, DeletePod, DiscardRecord, Effect, ResizePod
from elastrec.platform.master.launch import LaunchRequest, parameter_server_pod, worker_pod
from elastrec.platform.master.membership import Member
from elastrec.platform.master.record_lane import RecordLane
from elastrec.platform.master.term_watch import TermWatch
from elastrec.platform.specs.errors import ClusterError, ElastrecError
from elastrec.platform.specs.metrics import Role
from elastrec.platform.transport.security import TlsConfig

log = structlog.get_logger(__name__)
Submit = Callable[[Callable[[float], events.Event]], object]
_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 5.0
_WATCH_SECONDS = 10.0
_LOG_LINES = 30


class Executor:
    """Effects run side by side; each one is repeated while the cluster is out of reach.

    Args:
        submit: takes the event that tells how an effect ended.
        member: the place that a pod has in the job now; None: none (any more).
        in_progress, term: see RecordLane.
    """

    def __init__(
        self,
        request: LaunchRequest,
        cluster: Cluster,
        submit: Submit,
        token: str,
        tls: TlsConfig | None,
        member: Callable[[str], Member | None],
        in_progress: Callable[[], list[str]],
        term: TermWatch,
    ) -> None:
        self._request = request
        self._cluster = cluster
        self._submit = submit
        self._token = token
        self._tls = tls
        self._member = member
        self._records = RecordLane(request, submit, in_progress, term)
        self._address = ""
        self._statuses: dict[str, PodStatus] = {}
        self._creating: defaultdict[str, list[tuple[PodStatus, str]]] = defaultdict(list)
        self._lock = threading.Lock()
        self._resizing: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._stopping = threading.Event()
        self._pool = ThreadPoolExecutor(max_workers=8, thread_name_prefix="effects")
        self._watcher = threading.Thread(target=self._watch, name="watcher", daemon=True)
        self.failure_notes = ""

    def start(self, master_address: str) -> None:
        self._address = master_address
        self._watcher.start()

    def close(self) -> None:
        self._stopping.set()
        self._records.close()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def submit(self, effect: Effect) -> None:
        """Carries an effect out soon."""
        if self._stopping.is_set():
            return
        if isinstance(effect, CommitRecord | DiscardRecord):
            self._records.submit(effect)
        else:
            self._pool.submit(self._run, effect)

    def name_files(self, kind: str, start: int, length: int) -> None:
        """Looks up which files hold a shard's rows and adds them to `failure_notes`, soon."""
        self._pool.submit(self._name_files, kind, start, length)

    def _name_files(self, kind: str, start: int, length: int) -> None:
        uri = self._request.training_manifest if kind == "train" else self._request.evaluation_manifest
        try:
            places = read_manifest(uri).locate_rows(start, length)
        except ElastrecError as error:
            log.warning("files_of_poison_not_found", manifest=uri, reason=str(error))
            return
        lines = [f"  {file.uri} rows {first} to {first + rows - 1}" for file, first, rows in places]
        self.failure_notes = "The shard's rows lie in\n" + "\n".join(lines)

    def statuses(self) -> dict[str, PodStatus]:
        """What the cluster said last, by pod name."""
        with self._lock:
            return dict(self._statuses)

    def _is_wanted(self, name: str) -> bool:
        return self._member(name) is not None

    def running(self) -> set[str]:
        """Pods that run, as the cluster said last."""
        with self._lock:
            return {name for name, status in self._statuses.items() if status.phase is PodPhase.RUNNING}

    def delete_all(self, kept: Iterable[str]) -> None:
        """Deletes the job's workers and servers but those in `kept`, side by side. Errors are logged."""
        spared = set(kept)
        try:
            pods = [
                pod.name
                for pod in self._cluster.list(self._request.job_id)
                if pod.role in (Role.WORKER, Role.PARAMETER_SERVER) and pod.name not in spared
            ]
        except ClusterError as error:
            log.error("pods_not_listed", job=self._request.job_id, reason=str(error))
            return
        with ThreadPoolExecutor(max_workers=16, thread_name_prefix="delete") as pool:
            for name, problem in zip(pods, pool.map(self._delete_once, pods), strict=True):
                if problem:
                    log.error("pod_not_deleted", pod=name, reason=problem)

    def _delete_once(self, name: str) -> str:
        try:
            self._cluster.delete(name)
        except ClusterError as error:
            return str(error)
        return ""

    def _run(self, effect: Effect) -> None:
        try:
            if isinstance(effect, CreatePod):
                self._create(effect)
            elif isinstance(effect, DeletePod):
                self._delete(effect)
            elif isinstance(effect, ResizePod):
                self._resize(effect)
        except Exception:
            # A pool would swallow it; the state machine goes on and its deadlines find what is missing.
            log.exception("effect_failed", effect=type(effect).__name__)

    def pod_spec(self, effect: CreatePod) -> PodSpec:
        """The pod that an effect asks for."""
        build = worker_pod if effect.role is Role.WORKER else parameter_server_pod
        return build(
            self._request,
            self._address,
            effect.index,
            self._token,
            self._tls,
            restart=effect.restart,
            size=PodSize(effect.cores, effect.memory_bytes),
        )

    def _patiently(self, call: Callable[[], object], while_true: Callable[[], bool]) -> str:
        """Repeats a call while the cluster is out of reach; returns the reason when the cluster refuses, else ''."""
        pause = _FIRST_PAUSE_SECONDS
        while while_true() and not self._stopping.is_set():
            try:
                call()
                return ""
            except ClusterError as error:
                if not error.retryable:
                    return str(error)
                log.warning("cluster_out_of_reach", reason=str(error), next_try_seconds=pause)
            self._stopping.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        return ""

    def _create(self, effect: CreatePod) -> None:
        spec = self.pod_spec(effect)
        created: list[PodStatus] = []
        with self._lock:
            self._creating[effect.name] = []
        refused = self._patiently(
            # One that an earlier master has made may know another address; it looks the new one up.
            lambda: created.append(self._cluster.get(effect.name) or self._cluster.create(spec)),
            lambda: self._is_wanted(effect.name),
        )
        if refused:
            self._submit(lambda now: events.PodRefused(time=now, pod=effect.name, reason=refused))
        elif not self._is_wanted(effect.name):
            # Given up while it was being created.
            self._delete(DeletePod(name=effect.name, grace_seconds=0.0))
        elif created:
            self._submit(lambda now: events.PodSeen(time=now, pod=effect.name, uid=created[0].uid))
            self._seen(created[0], "MODIFIED", is_answer=True)
        with self._lock:
            early = self._creating.pop(effect.name)
        for status, kind in early:
            self._seen(status, kind)

    def _delete(self, effect: DeletePod) -> None:
        problem = self._patiently(
            lambda: self._cluster.delete(effect.name, grace_seconds=effect.grace_seconds), lambda: True
        )
        if problem:
            log.error("pod_not_deleted", pod=effect.name, reason=problem)
        with self._lock:
            self._statuses.pop(effect.name, None)
            self._resizing.pop(effect.name, None)
        if not self._stopping.is_set():
            self._submit(lambda now: events.PodDeleted(time=now, pod=effect.name))

    def _resize(self, effect: ResizePod) -> None:
        with self._lock:
            one_at_a_time = self._resizing[effect.name]

        # Effects run side by side, in no order: what the pod is to have now is what counts.
        def resize() -> None:
            with one_at_a_time:
                member = self._member(effect.name)
                if member is not None:
                    self._cluster.resize(effect.name, PodSize(member.cores, member.memory_bytes))

        problem = self._patiently(resize, lambda: self._is_wanted(effect.name))
        if problem:
            log.error("pod_not_resized", pod=effect.name, cores=effect.cores, reason=problem)

    def _watch(self) -> None:
        version = 0
        while not self._stopping.is_set():
            try:
                for event in self._cluster.watch(self._request.job_id, version, _WATCH_SECONDS):
                    version = max(version, event.version)
                    self._seen(event.pod, event.kind)
                    if self._stopping.is_set():
                        return
            except ClusterError as error:
                log.warning("cluster_not_watched", reason=str(error))
                self._stopping.wait(1.0)
            except Exception:
                if self._stopping.is_set():
                    return
                log.exception("watch_failed")
                self._stopping.wait(1.0)

    def _seen(self, status: PodStatus, kind: str, *, is_answer: bool = False) -> None:
        member = self._member(status.name)
        with self._lock:
            if status.name in self._creating and not is_answer:
                # Until the cluster has answered, it may be about an earlier pod of that name.
                self._creating[status.name].append((status, kind))
                return
            if member is not None and member.uid not in ("", status.uid):
                return
            if kind == "DELETED":
                self._statuses.pop(status.name, None)
            else:
                self._statuses[status.name] = status
        if member is None:
            return
        if not member.uid:
            self._submit(lambda now: events.PodSeen(time=now, pod=status.name, uid=status.uid))
        if kind != "DELETED" and not status.phase.is_final:
            return
        ended = status.phase.is_final and status.end is not None
        end = status.end if ended and status.end is not None else EndReason.DELETED
        message = self._last_lines(status) if status.phase is PodPhase.FAILED and kind != "DELETED" else ""
        self._submit(
            lambda now: events.PodGone(
                time=now, pod=status.name, uid=status.uid, end=end, exit_code=status.exit_code, message=message
            )
        )

    def _last_lines(self, status: PodStatus) -> str:
        try:
            return "\n".join(self._cluster.logs(status.name, tail_lines=_LOG_LINES))
        except ClusterError as error:
            log.warning("log_not_read", pod=status.name, reason=str(error))
            return status.message
