"""The values that cross the protocol of every cluster: a pod's identity, size, phase, end, and what it asks for.

Names that only one cluster knows stay in its backend. Kubernetes is declarative with watch streams, YARN grants
containers one by one and learns of their end by polling, the local agent runs process groups: all answer in these
words.
A backend honours every field of a `PodSpec`, or refuses the pod with the field's name; it ignores none.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from elastrec.platform.specs.metrics import Role
from elastrec.platform.specs.shape import PodSize


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


class PodGroup(msgspec.Struct, frozen=True):
    """Pods of one job that start together (gang scheduling).

    Attributes:
        name: unique in the job.
        least: no pod of the group starts before so many of them exist and have room at the same time. Once they have
            started, further pods of the group start one by one; the same number in all pods of a group.
    """

    name: str
    least: int


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Where a pod shall run. Nodes are chosen by their labels, pods by theirs, among those of the same job.

    An empty mapping chooses nothing; otherwise all of its labels must match.

    Attributes:
        near_nodes, avoid_nodes: on such nodes; on others.
        near_pods, avoid_pods: on the node of such a pod; on a node without one.
        avoid_node_names: not on the nodes with these names (`PodStatus.node`).
        is_required: a pod that cannot be placed so waits or is refused; otherwise it is placed so where possible.
    """

    near_nodes: dict[str, str] = {}
    avoid_nodes: dict[str, str] = {}
    near_pods: dict[str, str] = {}
    avoid_pods: dict[str, str] = {}
    avoid_node_names: tuple[str, ...] = ()
    is_required: bool = False


class BackendOptions(msgspec.Struct, frozen=True, kw_only=True, tag_field="backend"):
    """Base of what only one backend understands of a pod.

    A backend declares a subclass with its name as tag: `class Options(BackendOptions, tag="kubernetes")`.
    """


class MemoryVolume(msgspec.Struct, frozen=True):
    """Memory of a node that pods of one job map, one after the other. It is charged to none of them.

    Attributes:
        name: unique in the job: a pod that names it gets what an earlier pod on that node has left in it.
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
        files: text by file name, put with the owner's rights alone into the folder that the variable
            `ELASTREC_FILES` names (a ConfigMap mount, a YARN local resource).
        secrets: like `files`, and beside them, for tokens and keys (a Secret mount): masked in dry runs, read back
            by `Launcher.secrets` alone.
        serves: the pod listens on one port; the backend chooses or fixes it, puts it into `ELASTREC_PORT`
            and shows `PodStatus.address`.
        grace_seconds: between SIGTERM and SIGKILL.
        startup_cores: what the pod may use of cores that are idle while it starts, where that is more than its size:
            an attempt begins with this limit and keeps it until its process says that it is ready, or for a minute at
            most. Nothing is reserved by it: a backend without such cores gives it its size.
        memory_volume: memory that outlives the pod, as the file that `ELASTREC_MEMORY` names: until the job has no pod
            on the node that runs or waits. The node must have room for it beside the pod's size. None: it needs none. A
            backend without `has_memory_volumes` never gets a pod with one.
        group: with which pods it starts together; None: by itself.
        placement: None: anywhere.
        priority: of pods that wait for room, those of a higher priority start first. Whether running pods of a lower
            one are ended for it is the cluster's own policy.
        queue: in which the pod is accounted (a queue of YARN, of Kueue); empty: the cluster's default.
        image: container image, or URI of an archive, with interpreter and packages; empty: the cluster's default.
        options: what only this cluster's backend understands; another backend's options are refused.
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
    """What became of the size that was asked for last; DEFERRED: its node has not got the room now.

    A backend says DONE only when the size will not change any more because of what was asked for.
    """

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
            With `DONE`, `size` is what came of it: a cluster may round up.
        is_ending: its deletion was requested.
        ending_until_unix_seconds: notice that the pod will be ended, because it is deleted or its node is drained: its
            process is killed at this moment at the latest. None: no notice.
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
        """What it was asked to have last."""
        return self.asked or self.size


class PodEventKind(StrEnum):
    """What a watch reports. SEEN: of a snapshot; SYNCED: the snapshot is complete, and names no pod."""

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
