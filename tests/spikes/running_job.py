"""A job on real servers, from the view of an external caller. The view of the nodes is specific to each cluster."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from elastrec.platform.clusters.pods import PodStatus
from elastrec.platform.clusters.protocol import Launcher
from elastrec.platform.master.pods.launch import LaunchRequest
from elastrec.platform.specs.errors import ClusterError, TransportError
from elastrec.platform.specs.metrics import Phase, Role, TrainingMetrics
from elastrec.platform.specs.shape import PlacesChange
from elastrec.platform.transport import RpcClient
from elastrec.platform.transport.messages.job import Done
from elastrec.platform.transport.messages.ledger import Explanation, GetExplanation
from elastrec.platform.transport.messages.observer import (
    CancelShape,
    ChangeShape,
    GetStatus,
    ShapeAnswer,
    ShapeOutcome,
    Status,
)

TOKEN = "secret"
JOB = "clicks-1"
MASTER = f"{JOB}-master"
_LOOK_SECONDS = 0.15


class RunningJob:
    """The job `clicks-1`.

    Attributes:
        address: last known address of its master, for calls without the cluster.
    """

    def __init__(self, launcher: Launcher, request: LaunchRequest) -> None:
        self.launcher, self.request = launcher, request
        self.address = ""

    # The master

    def find_master(self) -> PodStatus:
        """Its pod."""
        found = self.launcher.find(JOB)
        assert found is not None
        return found

    def call(self, message: msgspec.Struct, answer: Any = Done) -> Any:
        """Asks the master where it was found last."""
        if not self.address:
            raise ClusterError("the master has not been found yet", retryable=True)
        client = RpcClient(self.address, TOKEN)
        try:
            return client.call(message, answer, timeout_seconds=5.0)
        finally:
            client.close()

    def wait_for_master(self) -> None:
        """Until a master answers at the address that its pod has now."""

        def answers() -> bool:
            self.address = self.launcher.address(self.find_master())
            return bool(self.address) and self.status() is not None

        self.wait("a master answers", answers)

    def master_log(self) -> str:
        """The end of it."""
        try:
            return "\n".join(self.launcher.logs(MASTER, tail_lines=60))
        except ClusterError as error:
            return str(error)

    # What it says

    def status(self) -> Status | None:
        """None while no master answers."""
        try:
            found: Status = self.call(GetStatus(), Status)
        except (ClusterError, TransportError):
            return None
        return found

    def metrics(self) -> TrainingMetrics | None:
        status = self.status()
        return None if status is None else TrainingMetrics.model_validate_json(status.metrics_json)

    def trained(self) -> int:
        """Rows, as far as a master says."""
        metrics = self.metrics()
        return metrics.samples_trained if metrics else -1

    def outcome(self) -> ShapeOutcome | None:
        """Of the last request for another shape."""
        status = self.status()
        return status.shape_requests[-1].outcome if status is not None and status.shape_requests else None

    def story(self) -> str:
        timeline = self.call(GetExplanation(), Explanation).timeline
        return "\n".join(f"{entry.what}: {entry.cause}" for entry in timeline)

    # What it is asked

    def ask(self, **changes: Any) -> str:
        """Another shape for the workers; returns the id of the request."""
        answer: ShapeAnswer = self.call(ChangeShape(change={Role.WORKER: PlacesChange(**changes)}), ShapeAnswer)
        assert answer.accepted, answer.reason
        return answer.request_id

    def cancel(self, request_id: str) -> None:
        """Cancels a request for a shape."""
        self.call(CancelShape(request_id))

    # What is waited for

    def members(self) -> dict[str, PodStatus]:
        """The job's pods, by the part of the name that is their own."""
        return {pod.name.removeprefix(f"{JOB}-"): pod for pod in self.launcher.pods(JOB)}

    def wait(self, what: str, fact: Callable[[], object], seconds: float = 90.0) -> None:
        deadline = time.monotonic() + seconds
        while not fact():
            if time.monotonic() > deadline:
                raise AssertionError(f"in vain: {what}; {self.metrics()}\n{self.members()}\n{self.master_log()}")
            time.sleep(_LOOK_SECONDS)

    def wait_for_training(self) -> None:
        self.wait("training", lambda: (m := self.metrics()) is not None and m.phase is Phase.TRAINING)

    def wait_for_progress(self) -> None:
        """More rows are trained than now."""
        self.wait("a master answers", lambda: self.trained() >= 0)
        before = self.trained()
        self.wait("progress", lambda: self.trained() > before)

    def wait_for_end(self) -> None:
        """The job is over, and all of it was trained."""
        self.wait("the end", lambda: (m := self.metrics()) is not None and m.phase.is_final, seconds=240.0)
        metrics = self.metrics()
        assert metrics is not None and metrics.phase is Phase.SUCCEEDED, metrics
        assert metrics.shards_done == metrics.shards_total
