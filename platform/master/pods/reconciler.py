"""Makes the pods in the cluster match the pods that the job wants, and reports their state to the job.

Wanted and observed pods are compared after every event and every observation. There is at most one operation per pod
name at a time; an operation that fails temporarily is retried with increasing pauses.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import structlog

from elastrec.platform.clusters.nodes import Node
from elastrec.platform.clusters.pods import PodEventKind, PodPhase, PodSpec, PodStatus
from elastrec.platform.clusters.protocol import Fleet
from elastrec.platform.master.machine.events import Submit
from elastrec.platform.master.pods.observed import Observed
from elastrec.platform.master.pods.operations import PodOperations
from elastrec.platform.master.pods.wanted import (
    MEMBER_ROLES,
    Action,
    Create,
    Delete,
    Resize,
    Wanted,
    WantedPod,
    compare,
)
from elastrec.platform.specs.errors import ClusterError, ElastrecError

log = structlog.get_logger(__name__)
_OPERATIONS = 8
_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 10.0
_WATCH_SECONDS = 10.0
_WATCH_PAUSE_SECONDS = 1.0
_LEAST_SECONDS_BETWEEN = 0.02
_LAST_SECONDS = 60.0
_DOING = {Create: "is not created", Delete: "is not deleted", Resize: "is not resized"}


@dataclass
class _Pause:
    """The pause after an operation that failed temporarily."""

    seconds: float
    until: float
    problem: str


class Reconciler:
    """The reconciler of one job.

    Args:
        wanted: returns the wanted pods, after the events on which they depend are on disk.
        spec: returns the pod to create for a wanted pod.
        submit: takes events about pods.
        is_superseded: whether another master directs the job, so that this one must not change its pods.
    """

    def __init__(
        self,
        fleet: Fleet,
        wanted: Callable[[], Wanted],
        spec: Callable[[WantedPod], PodSpec],
        submit: Submit,
        is_superseded: Callable[[], bool],
    ) -> None:
        self._fleet, self._wanted, self._is_superseded = fleet, wanted, is_superseded
        self._observed = Observed()
        self._changed = threading.Condition()
        self._operations = PodOperations(fleet, spec, submit, self._observed, self._changed)
        self._is_due = True
        self._busy: set[str] = set()
        self._pauses: dict[str, _Pause] = {}
        self._watch_problem = ""
        self._stopping = threading.Event()
        self._pool = ThreadPoolExecutor(max_workers=_OPERATIONS, thread_name_prefix="pods")
        self._threads = [
            threading.Thread(target=run, name=name, daemon=True)
            for name, run in (("watcher", self._watch), ("reconciler", self._run))
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Ends the threads after running operations have ended; pods are not changed."""
        self._stopping.set()
        self.wake()
        if self._threads[1].is_alive():
            self._threads[1].join()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def wake(self) -> None:
        """Called when the wanted pods may have changed."""
        with self._changed:
            self._is_due = True
            self._changed.notify_all()

    def statuses(self) -> dict[str, PodStatus]:
        """The last states of pods in the cluster, by name."""
        with self._changed:
            return self._observed.by_name()

    def nodes(self) -> list[Node]:
        """The nodes of the cluster; empty if it does not answer."""
        try:
            return self._fleet.nodes()
        except ClusterError as error:
            log.warning("nodes_not_read", reason=str(error))
            return []

    def running(self) -> set[str]:
        """Names of the pods that run, by the last report of the cluster."""
        with self._changed:
            return {pod.name for pod in self._observed.pods.values() if pod.phase is PodPhase.RUNNING}

    def is_clean(self, kept: Iterable[str]) -> bool:
        """Whether the cluster has only the workers and servers in `kept`, by its last report."""
        with self._changed:
            return not _members_but(set(kept), self._observed)

    def problem(self) -> str:
        """The cluster's last reason why wanted pods are missing; empty if requests succeed."""
        with self._changed:
            pauses = [pause.problem for pause in self._pauses.values()]
            problem = self._watch_problem or (pauses[-1] if pauses else "")
        return f"{problem} (tried again)" if problem else ""

    # The comparing thread

    def _run(self) -> None:
        while not self._stopping.is_set():
            with self._changed:
                if not self._is_due:
                    self._changed.wait(self._seconds_to_next_try())
                self._is_due = False
            if self._stopping.is_set():
                return
            try:
                target = self._wanted()
            except ElastrecError as error:
                # The journal cannot be written any more, so this master ends.
                log.warning("reconciler_ends", reason=str(error))
                return
            self._act_on(target)
            # Limits the number of comparisons when a snapshot has a thousand pods.
            self._stopping.wait(_LEAST_SECONDS_BETWEEN)

    def _seconds_to_next_try(self) -> float | None:
        moments = [pause.until for name, pause in self._pauses.items() if name not in self._busy]
        return max(0.0, min(moments) - time.monotonic()) if moments else None

    def _act_on(self, target: Wanted) -> None:
        now = time.monotonic()
        with self._changed:
            actions = compare(target, self._observed)
            named = {action.name for action in actions}
            # A pause also ends if no action is needed any more.
            self._pauses = {name: pause for name, pause in self._pauses.items() if name in named | self._busy}
            due = []
            for action in actions:
                pause = self._pauses.get(action.name)
                if action.name not in self._busy and (pause is None or pause.until <= now):
                    self._busy.add(action.name)
                    due.append(action)
        if any(isinstance(action, Create | Delete | Resize) for action in due) and self._is_superseded():
            # The other master may want pods that this one does not want.
            log.warning("reconciler_ends", reason="another master directs the job")
            self._stopping.set()
            return
        for action in due:
            try:
                self._pool.submit(self._perform, action)
            except RuntimeError:  # closed meanwhile
                return

    # Operations

    def _perform(self, action: Action) -> None:
        problem = ""
        try:
            if not self._stopping.is_set():
                self._operations.perform(action)
        except ClusterError as error:
            problem = f"{action.name} {_DOING.get(type(action), 'is not looked after')}: {error}"
        except Exception as error:
            if self._stopping.is_set():
                return
            log.exception("operation_failed", pod=action.name, operation=type(action).__name__)
            problem = f"{action.name}: {error}"
        with self._changed:
            self._busy.discard(action.name)
            if problem:
                self._pause(action.name, problem)
            else:
                self._pauses.pop(action.name, None)
            self._is_due = True
            self._changed.notify_all()

    def _pause(self, name: str, problem: str) -> None:
        before = self._pauses.pop(name, None)
        seconds = min(2 * before.seconds, _LONGEST_PAUSE_SECONDS) if before else _FIRST_PAUSE_SECONDS
        self._pauses[name] = _Pause(seconds, time.monotonic() + seconds, problem)
        log.warning("tried_again_later", pod=name, reason=problem, next_try_seconds=seconds)

    # The watching thread

    def _watch(self) -> None:
        while not self._stopping.is_set():
            with self._changed:
                self._observed.begin_watch()
                resume = self._observed.resume
            problem = ""
            try:
                for event in self._fleet.watch(resume, _WATCH_SECONDS):
                    with self._changed:
                        self._observed.take(event)
                        self._watch_problem = ""
                    if event.kind is not PodEventKind.SEEN:
                        self.wake()
                    if self._stopping.is_set():
                        return
            except ClusterError as error:
                problem = f"the cluster does not answer: {error}"
                log.warning("cluster_not_watched", reason=str(error))
            except Exception as error:
                if self._stopping.is_set():
                    return
                problem = f"the cluster cannot be watched: {error}"
                log.exception("watch_failed")
            with self._changed:
                self._watch_problem = problem
            if problem:
                self._stopping.wait(_WATCH_PAUSE_SECONDS)

    # The end

    def delete_all(self, kept: Iterable[str]) -> None:
        """After `close`: deletes the job's workers and servers except those in `kept`, and waits until they are
        deleted.

        Errors are logged; pods that are left after a minute stay.
        """
        spared, ordered, observed = set(kept), set[str](), Observed()
        deadline = time.monotonic() + _LAST_SECONDS
        while (left_seconds := deadline - time.monotonic()) > 0.0:
            observed.begin_watch()
            try:
                for event in self._fleet.watch(observed.resume, min(_WATCH_SECONDS, left_seconds)):
                    observed.take(event)
                    if not observed.is_synced:
                        continue
                    left = _members_but(spared, observed)
                    if not left:
                        return
                    for pod in left:
                        if pod.uid not in ordered:
                            self._fleet.delete(pod.name, pod.uid)
                            ordered.add(pod.uid)
            except ClusterError as error:
                log.warning("pods_not_deleted", reason=str(error), next_try_seconds=_WATCH_PAUSE_SECONDS)
                time.sleep(_WATCH_PAUSE_SECONDS)
        log.error("pods_left", pods=sorted(pod.name for pod in _members_but(spared, observed)))


def _members_but(spared: Set[str], observed: Observed) -> list[PodStatus]:
    return [pod for pod in observed.pods.values() if pod.role in MEMBER_ROLES and pod.name not in spared]
