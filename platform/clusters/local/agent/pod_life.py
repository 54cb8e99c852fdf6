"""The life of a pod as pure functions: record in, record out; the clock is a parameter, effects are elsewhere.

Times are stored as wall-clock times, because only these are valid after a restart of the machine. The clock may be set
meanwhile, so a wait is never longer than its original length.

WAITING ──room──► LIVE ──exit──► ENDED
                    ▲   └──failed, OnFailure──► BACK_OFF ──delay──┘ (LIVE again)

For every policy, a failure is final if the exit code of the process says so, or if it has crashed too often in a row.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from enum import StrEnum

import msgspec

from elastrec.platform.clusters.local.processes.limits import Usage
from elastrec.platform.clusters.local.processes.pod_runner import ProcessExit
from elastrec.platform.clusters.pods import (
    BAD_INPUT_EXIT_CODE,
    EndCause,
    EndReason,
    PodPhase,
    PodSize,
    PodSpec,
    PodStatus,
    RestartPolicy,
)

COULD_NOT_START_EXIT_CODE = 128
"""Exit code of an attempt for which the node could not create a process, or not set limits."""
CRASH_LIMIT = 10
"""Crashes in a row after which a pod is not restarted: about a minute, with the pauses between them."""

_FIRST_DELAY_SECONDS = 0.2
_LONGEST_DELAY_SECONDS = 10.0
_HEALTHY_SECONDS = 60.0
_STARTUP_SECONDS = 60.0
_CORES_TOLERANCE = 1e-6
_WORDS = {
    EndReason.COMPLETED: "Completed",
    EndReason.OUT_OF_MEMORY: "OOMKilled",
    EndReason.NODE_LOST: "NodeLost",
}
"""Reasons as in Kubernetes; Error for all others."""
_NO_ROOM = "Unschedulable"
_ENDS = {
    0: EndReason.COMPLETED,
    BAD_INPUT_EXIT_CODE: EndReason.BAD_INPUT,
    COULD_NOT_START_EXIT_CODE: EndReason.NOT_STARTED,
    128 + signal.SIGKILL: EndReason.KILLED,
    128 + signal.SIGTERM: EndReason.KILLED,
}


class Stage(StrEnum):
    """The stage of a pod on its node."""

    WAITING = "waiting"  # for capacity
    LIVE = "live"  # an attempt was started and has not been seen to end
    BACK_OFF = "back-off"  # between two attempts
    ENDED = "ended"


class PodRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The journal's entry of one pod.

    Attributes:
        spec: without the texts of its files and secrets, which are only in the pod's folder.
        attempt: number of the last started attempt; 0 before the first.
        failures: failed attempts in a row, which determine the back-off.
        crashes: how many of them were caused by the pod's own process.
        next_start_unix_seconds: when the next attempt begins (BACK_OFF).
        kill_unix_seconds: when a pod that is being deleted will be killed; None if it is not being deleted.
        kill_after_seconds: how long before that moment it was set.
        earlier_cpu_seconds: used by ended attempts.
        is_starting: the running attempt still has its `startup_cores`.
    """

    spec: PodSpec
    uid: str
    node: str
    size: PodSize
    stage: Stage
    phase: PodPhase
    created_unix_seconds: float
    port: int = 0
    reason: str = ""
    message: str = ""
    end: EndReason | None = None
    exit_code: int | None = None
    attempt: int = 0
    restarts: int = 0
    failures: int = 0
    crashes: int = 0
    started_unix_seconds: float | None = None
    finished_unix_seconds: float | None = None
    next_start_unix_seconds: float = 0.0
    kill_unix_seconds: float | None = None
    kill_after_seconds: float = 0.0
    earlier_cpu_seconds: float = 0.0
    is_starting: bool = False
    version: int = 0

    @property
    def holds_resources(self) -> bool:
        return self.stage in (Stage.LIVE, Stage.BACK_OFF)

    @property
    def startup_cores(self) -> float:
        """Limit of the running attempt while it starts; 0 afterwards."""
        return self.spec.startup_cores if self.is_starting else 0.0

    @property
    def is_deleting(self) -> bool:
        return self.kill_unix_seconds is not None


def new_record(spec: PodSpec, *, uid: str, node: str, port: int, now: float) -> PodRecord:
    """The record of a pod that waits for capacity."""
    return PodRecord(
        spec=msgspec.structs.replace(
            spec, files=dict.fromkeys(spec.files, ""), secrets=dict.fromkeys(spec.secrets, "")
        ),
        uid=uid,
        node=node,
        size=spec.size,
        port=port,
        stage=Stage.WAITING,
        phase=PodPhase.PENDING,
        reason=_NO_ROOM,
        created_unix_seconds=now,
    )


def unschedulable(record: PodRecord, message: str) -> PodRecord:
    return msgspec.structs.replace(record, reason=_NO_ROOM, message=message)


def starting(record: PodRecord) -> PodRecord:
    """The record before the start of the next attempt; journalled before it starts."""
    return msgspec.structs.replace(
        record,
        stage=Stage.LIVE,
        attempt=record.attempt + 1,
        restarts=record.restarts + (1 if record.stage is Stage.BACK_OFF else 0),
        reason="ContainerCreating",
        message="",
        is_starting=record.spec.startup_cores > record.size.cores,
    )


def started(record: PodRecord, now: float) -> PodRecord:
    return msgspec.structs.replace(
        record, phase=PodPhase.RUNNING, reason="", started_unix_seconds=now, finished_unix_seconds=None
    )


def resized(record: PodRecord, size: PodSize) -> PodRecord:
    """The record with another size."""
    return msgspec.structs.replace(record, size=size)


def settled(record: PodRecord) -> PodRecord:
    """The record after its process has started: from then on, its size is the limit."""
    return msgspec.structs.replace(record, is_starting=False)


def settle_pause_seconds(record: PodRecord, now: float) -> float:
    """Seconds until a starting pod counts as started without a report."""
    since = now if record.started_unix_seconds is None else record.started_unix_seconds
    return min(max(0.0, since + _STARTUP_SECONDS - now), _STARTUP_SECONDS)


def back_off_seconds(failures: int) -> float:
    """Pause before the next attempt after a number of failures in a row: 0.2 s, doubling up to 10 s."""
    return min(_LONGEST_DELAY_SECONDS, _FIRST_DELAY_SECONDS * 2.0 ** min(failures - 1, 16))


def end_reason(end: ProcessExit) -> EndReason:
    """Why an attempt ended, as observed by this node."""
    if end.exit_code != 0 and end.oom_killed:
        return EndReason.OUT_OF_MEMORY
    if end.rebooted:
        return EndReason.NODE_LOST
    return EndReason.KILLED if end.lost else _ENDS.get(end.exit_code, EndReason.ERROR)


def exited(record: PodRecord, end: ProcessExit, now: float) -> PodRecord:
    """The record after the end of the running attempt: final, or with a pause before the next one."""
    why = end_reason(end)
    reason = _WORDS.get(why, "Error")
    message = end.message
    if end.oom_killed and not message:
        message = f"the kernel killed it at its limit of {record.size.memory_bytes} bytes; ask for more memory"
    record = msgspec.structs.replace(
        record,
        exit_code=end.exit_code,
        end=why,
        reason=reason,
        message=message,
        finished_unix_seconds=end.finished_unix_seconds,
        earlier_cpu_seconds=record.earlier_cpu_seconds + end.cpu_seconds,
    )
    again = end.exit_code != 0 and record.spec.restart_policy is RestartPolicy.ON_FAILURE and not record.is_deleting
    if not again:
        phase = PodPhase.SUCCEEDED if end.exit_code == 0 else PodPhase.FAILED
        return msgspec.structs.replace(record, stage=Stage.ENDED, phase=phase)
    ran = end.ran_seconds
    if ran is None:
        ran = end.finished_unix_seconds - (record.started_unix_seconds or end.finished_unix_seconds)
    failures, crashes = (0, 0) if ran >= _HEALTHY_SECONDS else (record.failures, record.crashes)
    record = msgspec.structs.replace(record, failures=failures + 1, crashes=crashes + (why.cause is EndCause.PROGRAM))
    would_fail_again = why is EndReason.BAD_INPUT
    if would_fail_again or record.crashes >= CRASH_LIMIT:
        text = "not restarted, it would fail again" if would_fail_again else f"crashed {record.crashes} times in a row"
        message = f"{text}: {message}" if message else text
        return msgspec.structs.replace(record, stage=Stage.ENDED, phase=PodPhase.FAILED, message=message)
    pause = back_off_seconds(record.failures)
    text = f"{reason}, exit code {end.exit_code}; next attempt in {pause:g} s"
    return msgspec.structs.replace(
        record,
        stage=Stage.BACK_OFF,
        next_start_unix_seconds=now + pause,
        message=f"{text}: {message}" if message else text,
    )


def deleting(record: PodRecord, grace_seconds: float, now: float) -> PodRecord:
    """The record of a pod that is to be deleted; of several requests, the shortest grace period counts."""
    left = min(grace_seconds, kill_pause_seconds(record, now)) if record.is_deleting else grace_seconds
    return msgspec.structs.replace(record, kill_unix_seconds=now + left, kill_after_seconds=left)


def kill_pause_seconds(record: PodRecord, now: float) -> float:
    """Seconds until a pod that is being deleted will be killed."""
    return min(max(0.0, (record.kill_unix_seconds or 0.0) - now), record.kill_after_seconds)


def start_pause_seconds(record: PodRecord, now: float) -> float:
    """Seconds until the next attempt of a pod in BACK_OFF begins."""
    return min(max(0.0, record.next_start_unix_seconds - now), back_off_seconds(record.failures))


def status_of(record: PodRecord, usage: Usage | None = None) -> PodStatus:
    """The status of a record; with the `usage` of the running attempt if it was measured."""
    used = usage or Usage()
    return PodStatus(
        name=record.spec.name,
        uid=record.uid,
        job=record.spec.job,
        role=record.spec.role,
        phase=record.phase,
        size=record.size,
        node=record.node,
        address=f"127.0.0.1:{record.port}" if record.port else "",
        reason=record.reason,
        end=record.end,
        is_ending=record.is_deleting,
        ending_until_unix_seconds=record.kill_unix_seconds,
        waits_for_room=record.stage is Stage.WAITING and record.reason == _NO_ROOM,
        message=record.message,
        exit_code=record.exit_code,
        restarts=record.restarts,
        created_unix_seconds=record.created_unix_seconds,
        started_unix_seconds=record.started_unix_seconds,
        finished_unix_seconds=record.finished_unix_seconds,
        cpu_seconds=max(used.cpu_seconds, record.earlier_cpu_seconds),
        memory_bytes=used.memory_bytes,
        labels=record.spec.labels,
    )


def free_of(total: PodSize, records: Iterable[PodRecord], volumes_bytes: int = 0) -> PodSize:
    """Free resources for a new pod; memory volumes use `volumes_bytes`."""
    held = [record.size for record in records if record.holds_resources]
    cores = total.cores - sum(size.cores for size in held)
    memory_bytes = total.memory_bytes - volumes_bytes - sum(size.memory_bytes for size in held)
    return PodSize(max(0.0, round(cores, 6)), max(0, memory_bytes))


def shortage(asked: PodSize, free: PodSize) -> str:
    """Why `asked` does not fit into `free`, in Kubernetes' words; empty when it fits."""
    texts = []
    if asked.cores > free.cores + _CORES_TOLERANCE:
        texts.append(f"insufficient cpu: asked {asked.cores}, free {free.cores}")
    if asked.memory_bytes > free.memory_bytes:
        texts.append(f"insufficient memory: asked {asked.memory_bytes}, free {free.memory_bytes}")
    return "; ".join(texts)
