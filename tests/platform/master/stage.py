"""A real master on a real socket, with pods imitated by threads."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from elastrec.platform.clusters.pods import PodSpec
from elastrec.platform.master.service.history_sink import HistorySink
from elastrec.platform.master.service.service import JobService
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.metrics import Phase, TrainingMetrics
from elastrec.platform.transport import RpcClient, RpcServer
from elastrec.platform.transport.messages.job import Done
from elastrec.platform.transport.messages.observer import GetStatus, Status
from tests.platform.master.fakes import FakeCluster, ScriptedPod, launch

PATIENCE_SECONDS = 120.0
"""For a machine that is busy with other work: a wait ends as soon as its condition holds."""


class Stage:
    """A master on a real socket, with pods imitated by threads.

    Args:
        folder: folder of the checkpoint store and, without `journal_folder`, of the journal.
        step_seconds: time of a worker for ten rows. Long jobs should have longer steps, not more of them, because each
            step is a request.

    Attributes:
        history: history of the next master that is started; is_far: pods use only TCP, as from other machines.
    """

    def __init__(
        self,
        folder: Path,
        training_job: TrainingJob,
        journal_folder: Path | None = None,
        *,
        step_seconds: float = 0.002,
        **sizes: Any,
    ) -> None:
        self._step_seconds = step_seconds
        self.folder = journal_folder or folder
        self.request = launch(str(folder / "store"), training_job, **sizes)
        self.cluster = FakeCluster()
        self.pods: dict[str, ScriptedPod] = {}
        self.trained: list[tuple[int, int, int, int]] = []
        self.fail_on: Callable[[ScriptedPod, Any], None] = lambda pod, shard: None
        self.cluster.on_create = self._play
        self.address = ""
        self.history: HistorySink | None = None
        self.is_far = False
        self.service: JobService
        self.server: RpcServer

    def _play(self, spec: PodSpec) -> None:
        self.pods[spec.name] = ScriptedPod(
            spec, self.cluster, self.trained, self._step_seconds, lambda pod, shard: self.fail_on(pod, shard)
        )

    @property
    def job_name(self) -> str:
        return self.request.training_job.metadata.name

    def start(self) -> None:
        port = int(self.address.rpartition(":")[2] or 0)
        self.service = JobService(self.request, self.cluster, self.folder, token="secret", history=self.history)
        self.server = RpcServer(self.service.handlers(), token="secret", port=port, local_streams=not self.is_far)
        self.address = self.server.address
        self.service.start(self.address)
        self.server.serve_in_background()

    def stop(self) -> None:
        self.server.shutdown()
        self.service.close()

    def call(self, message: msgspec.Struct, answer: Any = Done, seconds: float = 10.0) -> Any:
        """What the master answers; a refusal that may pass is asked about again for that many seconds."""
        client = RpcClient(self.address, "secret")
        try:
            return client.call(message, answer, timeout_seconds=seconds)
        finally:
            client.close()

    def metrics(self) -> TrainingMetrics:
        return TrainingMetrics.model_validate_json(self.call(GetStatus(), Status).metrics_json)

    def wait(self, condition: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"in vain; {self.service.state.phase} {self.service.state.failure}"
            time.sleep(0.01)

    def wait_for(self, phase: Phase, seconds: float = PATIENCE_SECONDS) -> None:
        self.wait(lambda: self.service.state.phase is phase, seconds)

    def rows_trained(self, generation: int | None = None) -> list[int]:
        """How often each row was trained."""
        counts = [0] * self.request.training_rows
        for of, _, start, end in self.trained:
            if generation is None or of == generation:
                for row in range(start, end):
                    counts[row] += 1
        return counts

    def close(self) -> None:
        for pod in self.pods.values():
            pod.killed.set()
        self.stop()
        for pod in self.pods.values():
            # Some may have come while the master was being stopped.
            pod.killed.set()
            pod.thread.join(10)
