"""What clients and the node agent say to each other. Units: seconds, bytes, cores."""

from __future__ import annotations

import msgspec

from elastrec.platform.clusters.protocol import PodEvent, PodSize, PodSpec, PodStatus


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """Base of requests and answers."""


class CreatePod(Request):
    """Answered by the PodStatus."""

    pod: PodSpec


class DeletePod(Request):
    """Answered by Done once no process of the pod is left. `grace_seconds` None: as the pod's spec says."""

    name: str
    grace_seconds: float | None = None


class GetGrace(Request):
    """Answered by Grace: the longest of the named pod, or of all pods."""

    name: str | None = None


class Grace(Request):
    grace_seconds: float


class ResizePod(Request):
    """Answered by the PodStatus."""

    name: str
    size: PodSize


class ListPods(Request):
    """Answered by PodList; `name` and `job` narrow it down."""

    name: str | None = None
    job: str | None = None


class PodList(Request):
    pods: list[PodStatus]


class WatchPods(Request):
    """Long poll, answered by PodEvents at the first event after `since_version` or after `wait_seconds`."""

    job: str | None = None
    since_version: int = 0
    wait_seconds: float = 0.0


class PodEvents(Request):
    """`version` is where the next call goes on; it can be above the last event's when a filter left some out."""

    events: list[PodEvent]
    version: int


class GetCapacity(Request):
    """Answered by Capacity."""


class ReadLog(Request):
    """Long poll, answered by LogChunk.

    Attributes:
        uid: of the pod whose log is being read, empty on the first call; another pod of that name ends the reading.
        position: first byte wanted; None on the first call.
        tail_lines: on the first call: only so many lines from the end.
        wait_seconds: how long to wait for more output while the pod still runs.
    """

    name: str
    uid: str = ""
    position: int | None = None
    tail_lines: int | None = None
    wait_seconds: float = 0.0


class LogChunk(Request):
    """`position` is the byte after `data`; `more` is false when nothing can follow."""

    uid: str
    data: bytes
    position: int
    more: bool


class GetAgent(Request):
    """Answered by AgentInfo."""


class StopAgent(Request):
    """Delete every pod, answer AgentInfo, then end the agent."""


class AgentInfo(Request):
    """`limits` is `cgroup v1`, `cgroup v2` or `threads`."""

    agent_id: str
    pid: int
    node: str
    address: str
    total: PodSize
    limits: str


class Done(Request):
    """Plain answer."""
