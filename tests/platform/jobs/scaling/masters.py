"""Fake masters on sockets, which record the requests of scaling rounds; one never answers."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from elastrec.platform.clusters.nodes import Node
from elastrec.platform.clusters.pods import PodPhase, PodSize, PodStatus
from elastrec.platform.jobs.surroundings import Platform
from elastrec.platform.master.pods.launch import pod_name
from elastrec.platform.specs.environment import TOKEN_FILE
from elastrec.platform.specs.metrics import Phase, Role, TrainingMetrics
from elastrec.platform.transport import RpcServer
from elastrec.platform.transport.messages.observer import ChangeShape, GetStatus, ShapeAnswer, ShapeRequest, Status
from elastrec.platform.transport.messages.profile import GetProfile, Profile

TOKEN = "a-token-for-tests"
SIZE = PodSize(16.0, 2**36)


class Masters:
    """By job id; `asked` is what each was asked for, in order; `requests` is what each reports in its status."""

    def __init__(self, folder: Path, opened: ExitStack) -> None:
        self._opened, self._addresses = opened, dict[str, str]()
        self.asked: list[tuple[str, ChangeShape]] = []
        self.requests: list[ShapeRequest] = []
        launcher = SimpleNamespace(
            jobs=self._pods, find=lambda job: next((pod for pod in self._pods() if pod.job == job), None),
            address=lambda pod: self._addresses[pod.job], secrets=lambda name, uid: {TOKEN_FILE: TOKEN},
            nodes=lambda: [Node(name="node", size=SIZE, free=SIZE)], pods=lambda job=None: [],
        )  # fmt: skip
        self.platform = Platform(launcher, None, "http://127.0.0.1:1", "", folder)  # type: ignore[arg-type]

    def _pods(self) -> list[PodStatus]:
        return [
            PodStatus(
                name=pod_name(job, Role.MASTER), uid=job, job=job, role=Role.MASTER, phase=PodPhase.RUNNING,
                size=PodSize(0.5, 2**29), address=address,
            )
            for job, address in self._addresses.items()
        ]  # fmt: skip

    def add(
        self, job_id: str, profile: Profile, change: Callable[[ChangeShape], ShapeAnswer] = lambda _: ShapeAnswer("s-1")
    ) -> None:
        """One that answers."""

        def changed(message: ChangeShape) -> ShapeAnswer:
            self.asked.append((job_id, message))
            return change(message)

        def status(_: GetStatus) -> Status:
            metrics = TrainingMetrics(job=job_id, phase=Phase.TRAINING).model_dump_json().encode()
            return Status(metrics_json=metrics, shape_requests=self.requests)

        self.serve(job_id, {GetProfile: lambda _: profile, ChangeShape: changed, GetStatus: status})

    def serve(self, job_id: str, handlers: dict[type[Any], Callable[[Any], Any]]) -> None:
        """One that answers with these."""
        server = RpcServer(handlers, token=TOKEN)
        server.serve_in_background()
        self._opened.callback(server.stop)
        self._addresses[job_id] = server.address

    def add_silent(self, job_id: str) -> None:
        """One that takes connections, and says nothing."""
        listening = self._opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        self._addresses[job_id] = "{}:{}".format(*listening.getsockname())


@contextmanager
def masters(folder: Path) -> Iterator[Masters]:
    with ExitStack() as opened:
        yield Masters(folder, opened)
