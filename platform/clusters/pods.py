"""The values of the protocol of every cluster: a pod's identity, specification, size, phase and end.

Names of a single kind of cluster belong to its backend. Kubernetes is declarative with watch streams, YARN grants
containers one by one and reports their end by polling, the local agent runs process groups; all use these values.
A backend honours every field of a `PodSpec`, or refuses the pod with the field's name; it ignores none.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from elastrec.platform.specs.metrics import Role
from elastrec.platform.specs.shape import PodSize


class PodPhase(StrEnum):
    """The phases of pods, as in Kubernetes."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    @property
    def is_final(self) -> bool:
        return self in (PodPhase.SUCCEEDED, PodPhase.FAILED)


BAD_INPUT_EXIT_CODE = 2
"""Exit code of a process that would fail again in the same way."""


class EndCause(StrEnum):
    """The cause of an end."""

    PROGRAM = "program"
    CLUSTER = "cluster"
    USER = "user"


class EndReason(StrEnum):
    """Why a pod's process ended. Backends convert the reports of their cluster; decisions depend only on these values.

    Attributes:
        KILLED: by SIGKILL or SIGTERM from another, unknown process.
        NOT_STARTED: the node could not create the process, or not set limits.
        DELETED: a user or another program deleted the pod while it ran or waited.
        VANISHED: the cluster does not know the pod any more, without a known reason.
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
        """The cause; a kill at the pod's own memory limit is caused by its program."""
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
    """Whether a pod's node restarts its process, in place, with the same work folder and address.

    Under `OnFailure` a pod fails for good when its process ends with `BAD_INPUT_EXIT_CODE`, or crashes again and again
    without having run for a while in between.
    """

    NEVER = "Never"
    ON_FAILURE = "OnFailure"


class PodGroup(msgspec.Struct, frozen=True):
    """Pods of one job that start together (gang scheduling).

    Attributes:
        name: unique in the job.
        least: no pod of the group starts before this number of pods exist and have room at the same time. After that,
        further pods of the group start one by one; the same number in all pods of a group.
    """

    name: str
    least: int


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Where a pod should run. Nodes are chosen by their labels, pods of the same job by theirs.

    An empty mapping matches nothing; otherwise all of its labels must match.

    Attributes:
        near_nodes, avoid_nodes: on such nodes; on others.
        near_pods, avoid_pods: on the node of such a pod; on a node without one.
        avoid_node_names: not on the nodes with these names (`PodStatus.node`).
        is_required: whether a pod that cannot be placed so waits or is refused; otherwise the placement is a
        preference.
    """

    near_nodes: dict[str, str] = {}
    avoid_nodes: dict[str, str] = {}
    near_pods: dict[str, str] = {}
    avoid_pods: dict[str, str] = {}
    avoid_node_names: tuple[str, ...] = ()
    is_required: bool = False


class BackendOptions(msgspec.Struct, frozen=True, kw_only=True, tag_field="backend"):
    """Base of options of a pod for a single backend.

    A backend declares a subclass with its name as tag: `class Options(BackendOptions, tag="kubernetes")`.
    """


class MemoryVolume(msgspec.Struct, frozen=True):
    """Memory of a node that pods of one job map, one after the other. It does not count for their limits.

    Attributes:
        name: unique in the job; a pod gets the contents that an earlier pod on that node wrote to the same name.
    """

    name: str
    size_bytes: int


class PodSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One pod to create.

    Attributes:
        name: unique in the cluster; `[a-z0-9-]`, at most 63 characters.
        job: owner; a fleet has the pods of one job.
        command: argument vector; the first element `python` stands for the pod's own interpreter.
        environment: plain variables. Never a secret.
        files: text by file name, written to the folder in the variable `ELASTREC_FILES`, readable only by the owner (a
            ConfigMap mount, a YARN local resource).
        secrets: like `files` and in the same folder, for tokens and keys (a Secret mount); masked in dry runs, and only
            readable by `Launcher.secrets`.
        serves: whether the pod listens on one port; the backend chooses or fixes it, sets `ELASTREC_PORT` and shows
            `PodStatus.address`.
        grace_seconds: between SIGTERM and SIGKILL.
        startup_cores: idle cores that the pod may use while it starts, if that is more than its size. An attempt begins
            with this limit and keeps it until its process reports that it is ready, for a minute at most. The cores are
            not reserved: a backend without support gives the pod its size.
        memory_volume: memory that is kept after the pod, as the file in `ELASTREC_MEMORY`, until the job has no running
            or waiting pod on the node. The node must have room for it in addition to the pod's size. None: none. A
            backend without `has_memory_volumes` never gets a pod with one.
        group: pods that start together; None: it starts by itself.
        placement: None: anywhere.
        priority: of pods that wait for room, those with a higher priority start first. Whether running pods with a
            lower priority are ended is the cluster's own policy.
        queue: in which the pod is accounted (a queue of YARN or Kueue); empty: the cluster's default.
        image: container image, or URI of an archive, with interpreter and packages; empty: the cluster's default.
        options: for this cluster's backend only; another backend's options are refused.
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
    memory_volume: MemoryVolume | None = None
    group: PodGroup | None = None
    placement: Placement | None = None
    priority: int = 0
    queue: str = ""
    image: str = ""
    options: BackendOptions | None = None


class ResizeState(StrEnum):
    """The result of the last resize; DEFERRED: its node has no room at present.

    A backend reports DONE only when the size will not change any more because of the request.
    """

    DONE = "Done"
    IN_PROGRESS = "InProgress"
    DEFERRED = "Deferred"
    INFEASIBLE = "Infeasible"


class PodStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a pod in the cluster.

    Attributes:
        uid: differs between two pods of the same name.
        reason: the cluster's own word, for people: `Unschedulable`, `ContainerCreating`, `Error`, `OOMKilled`; empty
            while running. Decisions do not depend on it.
        size: the present size.
        asked: the requested size, if it differs; `resize` and its message are the result of the request. With `DONE`,
            `size` is the final size, because a cluster may round up.
        is_ending: its deletion was requested.
        ending_until_unix_seconds: notice that the pod will be ended, because it is deleted or its node is drained: its
            process is killed at this moment at the latest. None: no notice.
        end: how the last attempt ended; None if none has ended.
        waits_for_room: whether it is pending because no node has room for it.
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
    ending_until_unix_seconds: float | None = None
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
        """The last requested size."""
        return self.asked or self.size


class PodEventKind(StrEnum):
    """The kind of an event. SEEN: a pod of a snapshot; SYNCED: the snapshot is complete (without a pod)."""

    SEEN = "SEEN"
    SYNCED = "SYNCED"
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


class PodEvent(msgspec.Struct, frozen=True):
    """One event of a watch. `resume` is an opaque token with which a later watch continues after this event, or
    empty."""

    kind: PodEventKind
    pod: PodStatus | None = None
    resume: str = ""


__all__ = [
    "BAD_INPUT_EXIT_CODE",
    "BackendOptions",
    "EndCause",
    "EndReason",
    "MemoryVolume",
    "Placement",
    "PodEvent",
    "PodEventKind",
    "PodGroup",
    "PodPhase",
    "PodSize",
    "PodSpec",
    "PodStatus",
    "ResizeState",
    "RestartPolicy",
]
