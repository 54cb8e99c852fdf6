"""The one protocol of every cluster, and the words that cross it: identity, size, phase, reason, exit code.

Names that only one cluster knows stay in its backend. A `PodSpec` is a plain value; `dry_run` shows what a
backend would send for it. Kubernetes is declarative with watch streams, YARN grants containers one by one and
tells their end by polling, the local agent runs process groups: all three answer in these words.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Any, Protocol

import msgspec

from elastrec.platform.specs.errors import ClusterError
from elastrec.platform.specs.metrics import Role
from elastrec.platform.specs.shape import PodSize as PodSize


class PodPhase(StrEnum):
    """Kubernetes' words."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    @property
    def is_final(self) -> bool:
        return self in (PodPhase.SUCCEEDED, PodPhase.FAILED)


BAD_INPUT_EXIT_CODE = 2
"""A process that ends with it would fail again in the same way."""


class EndCause(StrEnum):
    """Whose doing an end was."""

    PROGRAM = "program"
    CLUSTER = "cluster"
    USER = "user"


class EndReason(StrEnum):
    """Why a pod's process ended. Backends translate what their cluster says; decisions are taken from these alone.

    Attributes:
        KILLED: by SIGKILL or SIGTERM, which a process does not send to itself; by whom is not known.
        NOT_STARTED: the node could make no process, or set no limits.
        DELETED: a person or another program deleted the pod while it ran or waited.
        VANISHED: the cluster does not know the pod any more and has not said why.
    """

    COMPLETED = "Completed"
    ERROR = "Error"
    BAD_INPUT = "BadInput"
    OUT_OF_MEMORY = "OutOfMemory"
    KILLED = "Killed"
    NOT_STARTED = "NotStarted"
    NODE_LOST = "NodeLost"
    EVICTED = "Evicted"
    PREEMPTED = "Preempted"
    VANISHED = "Vanished"
    DELETED = "Deleted"

    @property
    def cause(self) -> EndCause:
        """Whose doing it was; a kill for the pod's own memory limit is its program's."""
        return _CAUSES[self]


_CAUSES = {
    EndReason.COMPLETED: EndCause.PROGRAM,
    EndReason.ERROR: EndCause.PROGRAM,
    EndReason.BAD_INPUT: EndCause.PROGRAM,
    EndReason.OUT_OF_MEMORY: EndCause.PROGRAM,
    EndReason.KILLED: EndCause.CLUSTER,
    EndReason.NOT_STARTED: EndCause.CLUSTER,
    EndReason.NODE_LOST: EndCause.CLUSTER,
    EndReason.EVICTED: EndCause.CLUSTER,
    EndReason.PREEMPTED: EndCause.CLUSTER,
    EndReason.VANISHED: EndCause.CLUSTER,
    EndReason.DELETED: EndCause.USER,
}


class RestartPolicy(StrEnum):
    """Who restarts a pod's process: nobody, or its node, in place, keeping its work folder and its address.

    Under `OnFailure` a pod fails for good when its process ends with `BAD_INPUT_EXIT_CODE`, or crashes again and again
    without having run for a while in between.
    """

    NEVER = "Never"
    ON_FAILURE = "OnFailure"


class PodSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One pod to create.

    Attributes:
        name: unique in the cluster; `[a-z0-9-]`, at most 63 characters.
        job: owner; `list` and `watch` select by it.
        command: argument vector; the first element `python` stands for the pod's own interpreter.
        environment: plain variables. Never a secret.
        files: text by file name, put with the owner's rights alone into the folder that the variable
            `ELASTREC_FILES` names (a ConfigMap mount, a YARN local resource).
        secrets: like `files`, and beside them, for tokens and keys (a Secret mount): masked in dry runs, read back
            by `Cluster.secrets` alone.
        serves: the pod listens on one port; the backend chooses or fixes it, puts it into `ELASTREC_PORT`
            and shows `PodStatus.address`.
        grace_seconds: between SIGTERM and SIGKILL.
        startup_cores: what the pod may use of cores that are idle while it starts, where that is more than its size:
            an attempt begins with this limit and keeps it until its process says that it is ready, or for a minute at
            most. Nothing is reserved by it. A backend that cannot ignores it.
    """

    name: str
    job: str
    role: Role
    command: tuple[str, ...]
    size: PodSize
    environment: dict[str, str] = {}
    files: dict[str, str] = {}
    secrets: dict[str, str] = {}
    serves: bool = False
    restart_policy: RestartPolicy = RestartPolicy.NEVER
    grace_seconds: float = 10.0
    labels: dict[str, str] = {}
    startup_cores: float = 0.0


class ResizeState(StrEnum):
    """What became of the size that was asked for last; DEFERRED: its node has not got the room now."""

    DONE = "Done"
    IN_PROGRESS = "InProgress"
    DEFERRED = "Deferred"
    INFEASIBLE = "Infeasible"


class PodStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One pod as the cluster sees it.

    Attributes:
        uid: differs between two pods of the same name.
        reason: the cluster's own word, for people: `Unschedulable`, `ContainerCreating`, `Error`, `OOMKilled`; empty
            while running. Nothing is decided by it.
        size: what it has.
        asked: the size that it shall have, where it is another one; `resize` and its message say what became of that.
        is_ending: the cluster was told to delete it.
        end: how the last attempt ended; None while none has.
        waits_for_room: pending because no node has the room for it.
        message: for people, for example `insufficient memory: asked 2147483648, free 1073741824`.
        address: `host:port` when the pod serves, else empty.
        restarts: how often the node restarted the process in place.
    """

    name: str
    uid: str
    job: str
    role: Role
    phase: PodPhase
    size: PodSize
    asked: PodSize | None = None
    resize: ResizeState = ResizeState.DONE
    resize_message: str = ""
    is_ending: bool = False
    node: str = ""
    address: str = ""
    reason: str = ""
    end: EndReason | None = None
    waits_for_room: bool = False
    message: str = ""
    exit_code: int | None = None
    restarts: int = 0
    created_unix_seconds: float = 0.0
    started_unix_seconds: float | None = None
    finished_unix_seconds: float | None = None
    cpu_seconds: float = 0.0
    memory_bytes: int = 0
    labels: dict[str, str] = {}

    @property
    def asked_size(self) -> PodSize:
        """What it was asked to have last."""
        return self.asked or self.size


class PodEventKind(StrEnum):
    """What a watch tells. SEEN: of a snapshot; SYNCED: the snapshot is complete, and names no pod."""

    SEEN = "SEEN"
    SYNCED = "SYNCED"
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


class PodEvent(msgspec.Struct, frozen=True):
    """One event of a watch. `resume` is opaque: a later watch with it goes on after this event; empty: none does."""

    kind: PodEventKind
    pod: PodStatus | None = None
    resume: str = ""


class Capacity(msgspec.Struct, frozen=True):
    """Of the whole cluster; `free` is what a new pod could still get."""

    total: PodSize
    free: PodSize
    limits_enforced: bool = True


class Cluster(Protocol):
    """What a job needs of a cluster. Every method raises ClusterError with the reason in the cluster's words."""

    def create(self, pod: PodSpec) -> PodStatus:
        """Creates a pod; where its job has one of that name and role, that one is returned as it is.

        Raises:
            ClusterError: another job or role has the name, or the pod is larger than the whole cluster.
        """
        ...

    def delete(self, name: str, *, grace_seconds: float | None = None) -> None:
        """Stops and forgets a pod; no error when it does not exist. Returns when the process group is gone."""
        ...

    def get(self, name: str) -> PodStatus | None: ...

    def secrets(self, name: str, uid: str) -> dict[str, str] | None:
        """The pod's `PodSpec.secrets`, for callers who may create pods; None when there is no such pod any more."""
        ...

    def list(self, job: str | None = None) -> list[PodStatus]: ...

    def capacity(self) -> Capacity: ...

    def logs(self, name: str, *, tail_lines: int | None = None, follow: bool = False) -> Iterator[str]:
        """Lines of standard output and error, oldest first; kept after the pod's end until it is deleted."""
        ...

    def dry_run(self, pod: PodSpec) -> dict[str, Any]:
        """Exactly the request that `create` would send, secrets masked."""
        ...


class Fleet(Protocol):
    """The pods of one job, for its master. Every method raises ClusterError, whose `retryable` says whether the same
    call may succeed later: out of reach, a conflict, a quota. Everything else is a refusal.
    """

    def create(self, pod: PodSpec) -> PodStatus:
        """Creates a pod; answers when it is accepted. Where the job has one of that name, that one is returned."""
        ...

    def delete(self, name: str, uid: str, *, grace_seconds: float | None = None) -> None:
        """Orders the end of a pod and returns at once; the watch tells when it is gone.

        No error when there is no such pod, or another one of that name.
        """
        ...

    def resize(self, name: str, uid: str, size: PodSize) -> None:
        """Asks for other limits of a running pod, in place; `PodStatus.resize` tells what becomes of it."""
        ...

    def watch(self, resume: str, timeout_seconds: float) -> Iterator[PodEvent]:
        """Events after a `PodEvent.resume`, oldest first; ends after the time.

        Without a resume token, or with one that the cluster does not know any more, it begins with a snapshot: one SEEN
        per pod, then SYNCED.
        """
        ...

    def logs(self, name: str, *, tail_lines: int | None = None) -> Iterator[str]:
        """Lines of standard output and error, oldest first; kept after the pod's end until it is deleted."""
        ...


def snapshot(fleet: Fleet) -> list[PodStatus]:
    """The pods of a job now.

    Raises:
        ClusterError: the cluster does not answer.
    """
    pods: list[PodStatus] = []
    for event in fleet.watch("", 0.0):
        if event.kind is PodEventKind.SYNCED:
            return pods
        if event.pod is not None:
            pods.append(event.pod)
    raise ClusterError("the cluster ended a watch before its snapshot was complete", retryable=True)


__all__ = [
    "BAD_INPUT_EXIT_CODE",
    "Capacity",
    "Cluster",
    "EndCause",
    "EndReason",
    "Fleet",
    "PodEvent",
    "PodEventKind",
    "PodPhase",
    "PodSize",
    "PodSpec",
    "PodStatus",
    "ResizeState",
    "RestartPolicy",
    "snapshot",
]
