"""The pods of one job as known to its ApplicationMaster, and their events, for watches."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from elastrec.platform.clusters.pods import PodEvent, PodEventKind, PodStatus

_KEPT = 10_000


class EventLog:
    """Events are numbered. A token contains the id of this log and a number, so the log of a later attempt does not
    accept it.

    Attributes:
        changed: condition to hold while reading or changing `pods`; notified after each event.
        pods: pods by uid.
    """

    def __init__(self, name: str) -> None:
        self.changed = threading.Condition()
        self.pods: dict[str, PodStatus] = {}
        self._name = name
        self._events: list[PodEvent] = []
        self._forgotten = 0

    def add(self, kind: PodEventKind, pod: PodStatus) -> None:
        """Something happened to a pod; to be called under `changed`."""
        if kind is PodEventKind.DELETED:
            self.pods.pop(pod.uid, None)
        else:
            self.pods[pod.uid] = pod
        number = self._forgotten + len(self._events) + 1
        self._events.append(PodEvent(kind, pod, f"{self._name}.{number}"))
        if len(self._events) > _KEPT:
            self._forgotten += _KEPT // 2
            del self._events[: _KEPT // 2]
        self.changed.notify_all()

    def watch(self, resume: str, timeout_seconds: float) -> Iterator[PodEvent]:
        """See `Fleet.watch`."""
        deadline = time.monotonic() + timeout_seconds
        with self.changed:
            number = self._number(resume)
            events: list[PodEvent] = []
            if number is None:
                number = self._forgotten + len(self._events)
                events = [PodEvent(PodEventKind.SEEN, pod) for pod in self.pods.values()]
                events.append(PodEvent(PodEventKind.SYNCED, resume=f"{self._name}.{number}"))
        while True:
            yield from events
            with self.changed:
                if number < self._forgotten:
                    return  # a watch with the last token begins with a snapshot
                events = self._events[number - self._forgotten :]
                number += len(events)
                left = deadline - time.monotonic()
                if not events:
                    if left <= 0.0:
                        return
                    self.changed.wait(left)

    def _number(self, resume: str) -> int | None:
        name, _, number = resume.rpartition(".")
        return int(number) if name == self._name and int(number) >= self._forgotten else None
