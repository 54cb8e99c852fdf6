"""The state of a job's pods in the cluster, by uid, from a watch and from the answers to creations. Pure.

A snapshot is complete, so a pod that is not in it has vanished. A pod whose creation was answered while the snapshot
was in transit may be younger than the snapshot, so only the next snapshot counts. If a watch has not reported an
accepted change, another snapshot is requested.
"""

from __future__ import annotations

import msgspec

from elastrec.platform.clusters.pods import PodEvent, PodEventKind, PodStatus

_REMEMBERED = 10_000


class Observed:
    """Not thread-safe: its owner locks.

    Attributes:
        pods: existing pods by uid.
        gone: the last state of pods that do not exist any more, by uid, kept for a limited time.
        is_synced: whether a whole snapshot was read, so that pods that are not in `pods` do not exist.
        resume: where the next watch continues.
    """

    def __init__(self) -> None:
        self.pods: dict[str, PodStatus] = {}
        self.gone: dict[str, PodStatus] = {}
        self.is_synced = False
        self.resume = ""
        self._snapshot: set[str] = set()
        self._watch = 0
        self._unseen: dict[str, int] = {}

    def begin_watch(self) -> None:
        """A call of `Fleet.watch` with `resume` follows."""
        self._watch += 1
        self._snapshot = set()
        if any(watch < self._watch - 1 for watch in self._unseen.values()):
            # The watch should have reported it by now; a snapshot shows whether it exists.
            self.resume = ""

    def take(self, event: PodEvent) -> None:
        """Takes one event of the watch."""
        self.resume = event.resume or self.resume
        if event.kind is PodEventKind.SYNCED:
            self._synced()
            return
        pod = event.pod
        if pod is None or pod.uid in self.gone:
            return
        self._unseen.pop(pod.uid, None)
        if event.kind is PodEventKind.SEEN:
            self._snapshot.add(pod.uid)
        if event.kind is PodEventKind.DELETED:
            self._forget(pod)
        else:
            self.pods[pod.uid] = pod

    def created(self, pod: PodStatus) -> None:
        """A creation was answered; earlier reports of the watch about that pod are newer."""
        if pod.uid not in self.pods and pod.uid not in self.gone:
            self.pods[pod.uid] = pod
            self._unseen[pod.uid] = self._watch

    def changed(self, before: PodStatus | None, **fields: object) -> None:
        """The cluster accepted a change, which the watch will also report.

        Args:
            before: the pod in `pods` when the change was requested. Reports of the watch since then are newer.
        """
        if before is not None and self.pods.get(before.uid) is before:
            self._unseen.setdefault(before.uid, self._watch)
            self.pods[before.uid] = msgspec.structs.replace(before, **fields)

    def by_name(self) -> dict[str, PodStatus]:
        """The newest pod of each name."""
        oldest_first = sorted(self.pods.values(), key=lambda pod: pod.created_unix_seconds)
        return {pod.name: pod for pod in oldest_first}

    def _synced(self) -> None:
        self.is_synced = True
        for uid in self.pods.keys() - self._snapshot:
            if self._unseen.get(uid, -1) < self._watch:
                self._forget(self.pods[uid])
        self._snapshot = set()

    def _forget(self, pod: PodStatus) -> None:
        self.pods.pop(pod.uid, None)
        self._unseen.pop(pod.uid, None)
        self.gone[pod.uid] = pod
        while len(self.gone) > _REMEMBERED:
            del self.gone[next(iter(self.gone))]
