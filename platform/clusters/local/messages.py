"""Messages between clients and the node agent. Units: seconds, bytes, cores."""

from __future__ import annotations

import msgspec

from elastrec.platform.clusters.nodes import Node
from elastrec.platform.clusters.pods import PodEvent, PodSize, PodSpec, PodStatus


class CreatePod(msgspec.Struct, frozen=True, kw_only=True):
    """Answered by the PodStatus; if the job has a pod with this name and role, by that pod's status.

    Attributes:
        replaces_ended: whether a pod that has ended is deleted and created again.
    """

    pod: PodSpec
    replaces_ended: bool = False


class DeletePod(msgspec.Struct, frozen=True, kw_only=True):
    """Answered by Done; with `wait`, when no process of the pod is left.

    Attributes:
        uid: of the pod; another pod with the name is not deleted. Empty: any pod with the name.
        grace_seconds: None: as in the pod's spec.
    """

    name: str
    uid: str = ""
    wait: bool = True
    grace_seconds: float | None = None


class GetGrace(msgspec.Struct, frozen=True, kw_only=True):
    """Answered by Grace: the longest of the named pod, or of all pods."""

    name: str | None = None


class Grace(msgspec.Struct, frozen=True, kw_only=True):
    grace_seconds: float


class ResizePod(msgspec.Struct, frozen=True, kw_only=True):
    """Answered by the PodStatus. `uid`: another pod with the name is not resized; empty: any pod with the name."""

    name: str
    size: PodSize
    uid: str = ""


class ListPods(msgspec.Struct, frozen=True, kw_only=True):
    """Answered by PodList; `name` and `job` narrow it down."""

    name: str | None = None
    job: str | None = None


class PodList(msgspec.Struct, frozen=True, kw_only=True):
    pods: list[PodStatus]


class GetSecrets(msgspec.Struct, frozen=True, kw_only=True):
    """Answered by Secrets."""

    name: str
    uid: str


class Secrets(msgspec.Struct, frozen=True, kw_only=True):
    """Text by file name; None if there is no such pod."""

    files: dict[str, str] | None


class WatchPods(msgspec.Struct, frozen=True, kw_only=True):
    """Long poll, answered by PodEvents at the first event after `resume` or after `wait_seconds`.

    Without `resume`, or with one that is not known any more, the answer is a snapshot that ends with SYNCED.
    """

    job: str | None = None
    resume: str = ""
    wait_seconds: float = 0.0


class PodEvents(msgspec.Struct, frozen=True, kw_only=True):
    """`resume` is where the next call continues; it may be after the last event, if a filter left events out."""

    events: list[PodEvent]
    resume: str


class GetNodes(msgspec.Struct, frozen=True, kw_only=True):
    """Answered by Nodes."""


class Nodes(msgspec.Struct, frozen=True, kw_only=True):
    nodes: list[Node]


class ReadLog(msgspec.Struct, frozen=True, kw_only=True):
    """Long poll, answered by LogChunk.

    Attributes:
        uid: of the pod whose log is being read, empty on the first call; another pod of that name ends the reading.
        position: first byte to return; None on the first call.
        tail_lines: on the first call: number of lines from the end.
        wait_seconds: maximum wait for more output while the pod still runs.
    """

    name: str
    uid: str = ""
    position: int | None = None
    tail_lines: int | None = None
    wait_seconds: float = 0.0


class LogChunk(msgspec.Struct, frozen=True, kw_only=True):
    """`position` is the byte after `data`; `more` is false at the end of the log."""

    uid: str
    data: bytes
    position: int
    more: bool


class GetAgent(msgspec.Struct, frozen=True, kw_only=True):
    """Answered by AgentInfo."""


class StopAgent(msgspec.Struct, frozen=True, kw_only=True):
    """Delete every pod, answer AgentInfo, then end the agent."""


class AgentInfo(msgspec.Struct, frozen=True, kw_only=True):
    """`limits` is `cgroup v1`, `cgroup v2` or `threads`; `tls`: whether the agent's port uses TLS."""

    agent_id: str
    pid: int
    node: str
    address: str
    total: PodSize
    limits: str
    tls: bool = False


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """Plain answer."""
