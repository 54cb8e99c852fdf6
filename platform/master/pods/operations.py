"""Executes the actions from a comparison of wanted and observed pods; refusals become events of the job."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import structlog

from elastrec.platform.clusters.pods import PodPhase, PodSize, PodSpec, PodStatus, ResizeState
from elastrec.platform.clusters.protocol import Fleet
from elastrec.platform.master.machine import events
from elastrec.platform.master.machine.events import Submit
from elastrec.platform.master.pods.observed import Observed
from elastrec.platform.master.pods.wanted import (
    GRACE_SECONDS,
    Action,
    Create,
    Delete,
    Forgotten,
    Found,
    Granted,
    Infeasible,
    Lost,
    Resize,
    WantedPod,
)
from elastrec.platform.specs.errors import ClusterError

log = structlog.get_logger(__name__)
_LOG_LINES = 30


class PodOperations:
    """The operations of one job; may be called by several threads, for different pods.

    Args:
        spec: returns the pod to create for a wanted pod.
        submit: takes events about pods.
        observed: is informed of accepted changes, under `lock`.
    """

    def __init__(
        self,
        fleet: Fleet,
        spec: Callable[[WantedPod], PodSpec],
        submit: Submit,
        observed: Observed,
        lock: AbstractContextManager[Any],
    ) -> None:
        self._fleet, self._spec, self._submit = fleet, spec, submit
        self._observed, self._lock = observed, lock

    def perform(self, action: Action) -> None:
        """Executes one action.

        Raises:
            ClusterError: it failed, and may succeed later.
        """
        match action:
            case Create(name, pod):
                self._create(name, pod)
            case Delete(name, uid):
                before = self._known(uid)
                self._fleet.delete(name, uid, grace_seconds=GRACE_SECONDS)
                with self._lock:
                    self._observed.changed(before, is_ending=True)
            case Resize(name, uid, size):
                self._resize(name, uid, size)
            case Found(name, uid):
                self._submit(lambda now: events.PodSeen(time=now, pod=name, uid=uid))
            case Lost():
                self._report_end(action)
            case Forgotten(name):
                self._submit(lambda now: events.PodDeleted(time=now, pod=name))
            case Granted(name, uid, size, outcome_of):
                self._submit(
                    lambda now: events.PodResized(
                        time=now,
                        pod=name,
                        uid=uid,
                        cores=size.cores,
                        memory_bytes=size.memory_bytes,
                        outcome_of=outcome_of,
                    )
                )
            case Infeasible(name, uid, size, reason):
                self._refuse_resize(name, uid, size, reason)

    def _create(self, name: str, pod: WantedPod) -> None:
        try:
            created = self._fleet.create(self._spec(pod))
        except ClusterError as error:
            if error.retryable:
                raise
            reason = str(error)
            self._submit(lambda now: events.PodRefused(time=now, pod=name, reason=reason, size=pod.size))
            return
        with self._lock:
            self._observed.created(created)
        self._submit(lambda now: events.PodSeen(time=now, pod=name, uid=created.uid))

    def _resize(self, name: str, uid: str, size: PodSize) -> None:
        before = self._known(uid)
        try:
            self._fleet.resize(name, uid, size)
        except ClusterError as error:
            if error.retryable:
                raise
            if before is not None and size == before.size:
                # An earlier request is taken back, so there is no other size for the pod: as an event, the refusal
                # would lead to the same request again, immediately.
                raise ClusterError(str(error), retryable=True) from error
            self._refuse_resize(name, uid, size, str(error))
            return
        with self._lock:
            self._observed.changed(before, asked=size, resize=ResizeState.IN_PROGRESS)

    def _known(self, uid: str) -> PodStatus | None:
        with self._lock:
            return self._observed.pods.get(uid)

    def _refuse_resize(self, name: str, uid: str, size: PodSize, reason: str) -> None:
        self._submit(
            lambda now: events.ResizeRefused(
                time=now, pod=name, uid=uid, cores=size.cores, memory_bytes=size.memory_bytes, reason=reason
            )
        )

    def _report_end(self, lost: Lost) -> None:
        pod = lost.pod
        code = pod.exit_code if pod is not None else None
        message = self._last_lines(pod) if pod is not None and pod.phase is PodPhase.FAILED else ""
        self._submit(
            lambda now: events.PodGone(
                time=now, pod=lost.name, uid=lost.uid, end=lost.end, exit_code=code, message=message
            )
        )

    def _last_lines(self, pod: PodStatus) -> str:
        try:
            return "\n".join(self._fleet.logs(pod.name, tail_lines=_LOG_LINES))
        except ClusterError as error:
            log.warning("log_not_read", pod=pod.name, reason=str(error))
            return pod.message
