"""Memory volumes on clusters without support for them: a process of the pod owns the memory, and starts the server.

The memory is kept when the server's process ends, but not when its pod ends. Such a pod is larger than its server by
the memory and by the memory of the owner process. Masters only request and see the sizes of servers.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from elastrec.platform.clusters.nodes import Node
from elastrec.platform.clusters.pods import PodEvent, PodEventKind, PodSize, PodSpec, PodStatus
from elastrec.platform.clusters.protocol import Fleet

BYTES_LABEL = "elastrec.io/owned-memory-bytes"
"""Label: the bytes by which a pod is larger than its server."""
OWNER_BYTES = 8 * 2**20
"""Maximum memory of the owner process itself (measured: 6 MB, Python 3.11)."""
_MODULE = "elastrec.trainers.memory_owner"


def with_owner(pod: PodSpec) -> PodSpec:
    """The pod to request from a cluster without memory volumes; pods without a volume are not changed."""
    volume = pod.memory_volume
    if volume is None:
        return pod
    interpreter, *arguments = pod.command
    more = volume.size_bytes + OWNER_BYTES
    return msgspec.structs.replace(
        pod,
        command=(interpreter, "-m", _MODULE, str(volume.size_bytes), *arguments),
        size=_larger(pod.size, more),
        labels={**pod.labels, BYTES_LABEL: str(more)},
        memory_volume=None,
    )


def without_owner(pod: PodStatus) -> PodStatus:
    """The status of a pod with the sizes of its server; pods without owned memory are not changed."""
    more = _more_bytes(pod)
    if not more:
        return pod
    return msgspec.structs.replace(
        pod,
        size=_larger(pod.size, -more),
        asked=None if pod.asked is None else _larger(pod.asked, -more),
        memory_bytes=max(0, pod.memory_bytes - more),
    )


class OwnedMemoryFleet:
    """A `Fleet` with memory volumes, on top of one without them; as thread-safe as that one.

    Args:
        fleet: of the backend.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._more_bytes: dict[str, int] = {}

    def create(self, pod: PodSpec) -> PodStatus:
        """See `Fleet.create`."""
        return self._of_server(self.fleet.create(with_owner(pod)))

    def delete(self, name: str, uid: str, *, grace_seconds: float | None = None) -> None:
        """See `Fleet.delete`."""
        self.fleet.delete(name, uid, grace_seconds=grace_seconds)

    def resize(self, name: str, uid: str, size: PodSize) -> None:
        """See `Fleet.resize`. The pod must have been reported by the watch, or returned by `create`."""
        self.fleet.resize(name, uid, _larger(size, self._more_bytes.get(uid, 0)))

    def watch(self, resume: str, timeout_seconds: float) -> Iterator[PodEvent]:
        """See `Fleet.watch`."""
        for event in self.fleet.watch(resume, timeout_seconds):
            if event.pod is None:
                yield event
                continue
            yield msgspec.structs.replace(event, pod=self._of_server(event.pod))
            if event.kind is PodEventKind.DELETED:
                self._more_bytes.pop(event.pod.uid, None)

    def nodes(self) -> list[Node]:
        """See `Fleet.nodes`."""
        return self.fleet.nodes()

    def logs(self, name: str, *, tail_lines: int | None = None) -> Iterator[str]:
        """See `Fleet.logs`."""
        return self.fleet.logs(name, tail_lines=tail_lines)

    def _of_server(self, pod: PodStatus) -> PodStatus:
        if more := _more_bytes(pod):
            self._more_bytes[pod.uid] = more
        return without_owner(pod)


def _more_bytes(pod: PodStatus) -> int:
    return int(pod.labels.get(BYTES_LABEL, "0"))


def _larger(size: PodSize, more_bytes: int) -> PodSize:
    return msgspec.structs.replace(size, memory_bytes=size.memory_bytes + more_bytes)
