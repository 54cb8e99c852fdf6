"""Servers for tests, in this process on real sockets, and a scripted master."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from elastrec.platform.specs.job import JobSpec, TrainingJob
from elastrec.platform.transport import RpcServer
from elastrec.platform.transport.messages.directive import (
    Directive,
    Mode,
    PodOrders,
    RestoreOrder,
    RoutingTable,
    SaveOrder,
    TakeOrder,
    WorkerProcess,
)
from elastrec.platform.transport.messages.job import Answer, Done, Failed, Heartbeat, Register, Registered
from elastrec.trainers.parameter_server.messages import GetStats
from elastrec.trainers.parameter_server.serving.server import ParameterServer

TOKEN = "token-of-the-tests"
WORKER = WorkerProcess("w-0", "a")
"""The only one that the scripted master names unless a test says otherwise."""
DIMENSION = 4


def job_document(**parts: Any) -> dict[str, Any]:
    """The spec of a small job with the tables `user` and `item`; `parts` replace top-level fields."""
    document: dict[str, Any] = {
        "model": {"architecture": "dlrm", "embedding_dimension": DIMENSION},
        "data": {"path": "clicks", "dense": [{"name": "n"}], "sparse": [{"name": "user"}, {"name": "item"}]},
    }
    return {**document, **parts}


def job_spec(**parts: Any) -> JobSpec:
    return JobSpec.model_validate(job_document(**parts))


def training_job(**parts: Any) -> TrainingJob:
    return TrainingJob.model_validate({"metadata": {"name": "clicks"}, "spec": job_document(**parts)})


def routing_of(addresses: list[str], *, epoch: int = 1, buckets: int = 256) -> RoutingTable:
    """Buckets dealt out in turn to `ps-0`, `ps-1` and so on."""
    count = len(addresses)
    return RoutingTable(
        epoch=epoch,
        owners=[bucket % count for bucket in range(buckets)],
        servers=[f"ps-{index}" for index in range(count)],
        addresses=addresses,
    )


@contextmanager
def running_servers(
    spec: JobSpec, count: int = 1, *, generation: int = 1, start: bool = True, **arguments: Any
) -> Iterator[tuple[RoutingTable, list[ParameterServer]]]:
    """Servers behind real sockets; with `start` they serve from nothing."""
    servers = [ParameterServer(f"ps-{index}", spec, capacity_rows=20_000, **arguments) for index in range(count)]
    rpcs = [
        RpcServer({GetStats: server.stats}, token=TOKEN, array_handlers=server.array_handlers()) for server in servers
    ]
    for rpc in rpcs:
        rpc.serve_in_background()
    routing = routing_of([rpc.address for rpc in rpcs], buckets=spec.resources.virtual_buckets)
    try:
        if start:
            for server in servers:
                server.start_empty(routing, generation)
        yield routing, servers
    finally:
        for rpc in rpcs:
            rpc.shutdown()


class ScriptedMaster:
    """Replaces the job master: it sends the directives of the test and stores the reports of servers.

    It makes no decisions; those of the real master have their own tests.
    """

    def __init__(self, job: TrainingJob, servers: int) -> None:
        self._job = job
        self.changed = threading.Condition()
        self.registered: dict[str, Register] = {}
        self.heartbeats: dict[str, Heartbeat] = {}
        self.failures: list[Failed] = []
        self.known = True
        self.heartbeat_seconds = 0.0
        self.wall_seconds: float | None = None
        self.orders: PodOrders | None = None
        self.directive = Directive(
            version=1,
            mode=Mode.IDLE,
            generation=0,
            routing=routing_of([""] * servers, buckets=job.spec.resources.virtual_buckets),
            members=[WORKER],
        )
        handlers = {Register: self._register, Heartbeat: self._heartbeat, Failed: self._failed}
        self._rpc = RpcServer(handlers, token=TOKEN)
        self.address = self._rpc.address
        self._rpc.serve_in_background()

    def close(self) -> None:
        self._rpc.shutdown()

    def _register(self, message: Register) -> Registered:
        with self.changed:
            self.registered[message.pod] = message
            self.changed.notify_all()
            return Registered(
                job_json=self._job.model_dump_json(by_alias=True).encode(),
                rank=int(message.pod.rsplit("-", 1)[1]),
                streams={},
                directive=self.directive,
                wall_seconds=self.wall_seconds,
                orders=self.orders,
            )

    def _heartbeat(self, message: Heartbeat) -> Answer:
        with self.changed:
            if not self.known:
                self.known = True
                return Answer(directive=None, known=False)
            self.heartbeats[message.pod] = message
            self.changed.notify_all()
            return Answer(directive=self.directive, heartbeat_seconds=self.heartbeat_seconds, orders=self.orders)

    def _failed(self, message: Failed) -> Done:
        with self.changed:
            self.failures.append(message)
            self.changed.notify_all()
        return Done()

    def wait(self, fact: Any, what: str, seconds: float = 120.0) -> None:
        with self.changed:
            assert self.changed.wait_for(fact, seconds), f"not within {seconds} s: {what}"

    def wait_for_registrations(self, count: int, seconds: float = 120.0) -> list[str]:
        self.wait(lambda: len(self.registered) == count, f"{count} servers register", seconds)
        return [self.registered[pod].address for pod in sorted(self.registered)]

    def direct(
        self,
        *,
        mode: Mode = Mode.TRAIN,
        generation: int | None = None,
        addresses: list[str] | None = None,
        save: SaveOrder | None = None,
        restore: RestoreOrder | None = None,
        members: list[WorkerProcess] | None = None,
        take: TakeOrder | None = None,
    ) -> Directive:
        """The next directive; what is not named stays, save for orders to save and to take buckets over."""
        with self.changed:
            old = self.directive
            routing = old.routing
            if addresses is not None:
                routing = routing_of(addresses, epoch=routing.epoch + 1, buckets=len(routing.owners))
            self.directive = Directive(
                version=old.version + 1,
                mode=mode,
                generation=old.generation if generation is None else generation,
                routing=routing,
                members=old.members if members is None else members,
                save=save,
                restore=restore or old.restore,
                moving=take.order_id if take is not None else "",
                take=take,
            )
            return self.directive

    def wait_until_reached(self, directive: Directive, pods: list[str]) -> None:
        self.wait(
            lambda: all(
                pod in self.heartbeats and self.heartbeats[pod].reached_version >= directive.version for pod in pods
            ),
            f"{pods} reach version {directive.version}",
        )
