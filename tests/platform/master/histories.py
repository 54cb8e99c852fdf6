"""What masters count and send to MLflow, without a tracking server, for pods of a chosen age."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from elastrec.platform.clusters.pods import PodEvent, PodEventKind, PodPhase, PodStatus
from elastrec.platform.history.delivery.reporter import Reporter
from elastrec.platform.history.points import Point
from elastrec.platform.master.service.history_sink import HistorySink
from elastrec.platform.specs.metrics import Role
from elastrec.platform.specs.shape import PodSize


class Listing:
    """A `Fleet` that can only be watched: these pods are there."""

    def __init__(self, *pods: PodStatus) -> None:
        self.pods = pods

    def watch(self, resume: str, timeout_seconds: float) -> Iterator[PodEvent]:
        yield from (PodEvent(PodEventKind.SEEN, pod) for pod in self.pods)
        yield PodEvent(PodEventKind.SYNCED)


class Kept:
    """A tracking server that takes everything, and keeps it in `points`."""

    def __init__(self, points: list[Point]) -> None:
        self.points = points

    def send(self, run_id: str, points: Sequence[Point], timeout_seconds: float, tags: Mapping[str, str]) -> None:
        self.points.extend(points)


def running(name: str, cores: float, seconds: float) -> PodStatus:
    """A server that has been running for that long."""
    return PodStatus(
        name=name, uid=name, job="clicks-1", role=Role.PARAMETER_SERVER, phase=PodPhase.RUNNING, size=PodSize(cores, 1),
        started_unix_seconds=time.time() - seconds,
    )  # fmt: skip


def history(*pods: PodStatus, points: list[Point] | None = None) -> HistorySink:
    """The sink of a master whose cluster has these pods; what is sent is added to `points`."""
    reporter = Reporter("", "run", sink=Kept([] if points is None else points))
    return HistorySink(reporter, Listing(*pods), "clicks-1")  # type: ignore[arg-type]
