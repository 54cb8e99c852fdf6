"""What a master answers to life signs, and what it refuses before it becomes an event."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from elastrec.platform.data.sketch import BinaryMetricsSketch
from elastrec.platform.master.state import JobState
from elastrec.platform.specs.errors import DataError, ElastrecError
from elastrec.platform.specs.metrics import Role
from elastrec.platform.specs.splits import STREAMS
from elastrec.platform.transport.job_messages import PodOrders, ShardProgress


class FastAnswer(msgspec.Struct, tag="Answer", omit_defaults=True):
    """An `Answer` whose directive is already encoded: it is the same bytes for all workers."""

    directive: msgspec.Raw
    known: bool = True
    heartbeat_seconds: float = 0.0
    orders: PodOrders | None = None


class Unknown(msgspec.Struct, tag="Answer"):
    """An `Answer` to a process of a pod of which none has registered with this master."""

    directive: None = None
    known: bool = False


class Directives:
    """Encoded directives of the newest version: one for all workers, one per server; not thread-safe."""

    def __init__(self) -> None:
        self._encoded: dict[tuple[int, str], msgspec.Raw] = {}

    def of(self, pod: str, incarnation: str, state: JobState) -> msgspec.Raw:
        """What the pod's process shall do now."""
        member = state.membership.members.get(pod)
        leaves = member is None or member.retiring or member.is_held_by_another(incarnation)
        # Every server is told what it has to restore, and nothing of the others.
        kind = "exit" if member is None or leaves else "worker" if member.role is Role.WORKER else pod
        key = (state.phases.version, kind)
        encoded = self._encoded.get(key)
        if encoded is None:
            if any(version != key[0] for version, _ in self._encoded):
                self._encoded.clear()
            encoded = self._encoded[key] = msgspec.Raw(msgspec.msgpack.encode(state.directive(pod, incarnation)))
        return encoded


def check_kind(name: str, kind: str) -> None:
    """Raises ElastrecError unless it is a kind of shard."""
    if kind not in ("train", "evaluate"):
        raise ElastrecError(f"{name}: {kind!r} is not allowed; allowed: train, evaluate")


def check_progress(progress: Sequence[ShardProgress]) -> None:
    """Refuses what no journal may hold: a state machine must be able to take every event of its own.

    Raises:
        ElastrecError: a report names no stream of the job, or its sketch cannot be read.
    """
    for report in progress:
        if report.stream not in STREAMS:
            raise ElastrecError(f"progress.stream: {report.stream!r} is not allowed; allowed: {', '.join(STREAMS)}")
        if report.sketch:
            try:
                BinaryMetricsSketch.decode(report.sketch)
            except DataError as error:
                raise ElastrecError(f"progress of split {report.number}: its sketch cannot be read: {error}") from error
