"""A master's answers to heartbeats, and checks of reports before they become events."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from elastrec.platform.data.metrics.heads import HeadSketches
from elastrec.platform.master.machine.state import JobState
from elastrec.platform.master.pods.membership import MemberStage
from elastrec.platform.specs.errors import DataError, ElastrecError
from elastrec.platform.specs.metrics import Role
from elastrec.platform.specs.splits import STREAMS
from elastrec.platform.transport.messages.directive import PodOrders
from elastrec.platform.transport.messages.job import Answer, ShardProgress
from elastrec.platform.transport.wire.frames import Encoded


class Unknown(msgspec.Struct, tag="Answer"):
    """The answer to a process of a pod that has not registered with this master."""

    directive: None = None
    known: bool = False


class Answers:
    """Encoded answers to heartbeats that carry the newest directive; not thread-safe.

    One for all workers of the same orders, and one for each server.
    """

    def __init__(self) -> None:
        self._version = -1
        self._encoded: dict[tuple[str, PodOrders | None, float], Encoded] = {}

    def of(self, pod: str, incarnation: str, state: JobState, heartbeat_seconds: float) -> Encoded:
        """The directive and the heartbeat interval for the pod's process."""
        if self._version != state.phases.version:
            self._version = state.phases.version
            self._encoded.clear()
        member = state.membership.members.get(pod)
        kind, orders = "exit", None
        if member is not None and member.incarnation == incarnation and member.stage is not MemberStage.RETIRING:
            orders = member.orders
            # Every server gets only its own restore order.
            kind = "worker" if member.role is Role.WORKER else pod
        encoded = self._encoded.get((kind, orders, heartbeat_seconds))
        if encoded is None:
            directive = state.directive(pod, incarnation)
            encoded = Encoded.of(Answer(directive=directive, heartbeat_seconds=heartbeat_seconds, orders=orders))
            self._encoded[kind, orders, heartbeat_seconds] = encoded
        return encoded


def check_kind(name: str, kind: str) -> None:
    """Raises ElastrecError unless it is a kind of shard."""
    if kind not in ("train", "evaluate"):
        raise ElastrecError(f"{name}: {kind!r} is not allowed; allowed: train, evaluate")


def check_progress(progress: Sequence[ShardProgress]) -> None:
    """Refuses invalid reports, because the state machine must be able to handle every journalled event.

    Raises:
        ElastrecError: a report names no stream of the job, or its sketch cannot be read.
    """
    for report in progress:
        if report.stream not in STREAMS:
            raise ElastrecError(f"progress.stream: {report.stream!r} is not allowed; allowed: {', '.join(STREAMS)}")
        if report.sketch:
            try:
                HeadSketches.decode(report.sketch)
            except DataError as error:
                raise ElastrecError(f"progress of split {report.number}: its sketch cannot be read: {error}") from error
