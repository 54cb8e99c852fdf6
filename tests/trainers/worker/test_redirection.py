"""A refusal contains the new routing table, with which a worker continues before it gets a new directive."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from elastrec.platform.data.manifest import build_manifest
from elastrec.platform.specs.errors import TransportError
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.transport import RpcServer
from elastrec.platform.transport.messages.directive import Directive, Mode, RoutingTable, WorkerProcess
from elastrec.trainers.embedding.lane import RoutingChangedError
from elastrec.trainers.parameter_server.messages import GetStats, Push
from elastrec.trainers.parameter_server.serving.server import ParameterServer
from elastrec.trainers.worker.identity import Identity
from elastrec.trainers.worker.loop import run
from elastrec.trainers.worker.parameter_server_trainer import ParameterServerTrainer
from elastrec.trainers.worker.session import Session
from elastrec.trainers.worker.window import Window
from elastrec.trainers.worker.work import Worker
from tests.manifests import write_manifest
from tests.trainers.parameter_server.running import routing_of
from tests.trainers.worker.conftest import BATCH, ROWS, ScriptedMaster

SHARD = 300


def serve(stack: ExitStack, server: ParameterServer, token: str, handlers: dict[Any, Any]) -> RpcServer:
    rpc = RpcServer({}, token=token, array_handlers={**server.array_handlers(), **handlers})
    rpc.serve_in_background()
    stack.callback(rpc.shutdown)
    return rpc


def test_a_worker_uses_the_routing_table_of_a_refusal_before_its_directive(
    scripted_master: Callable[..., ScriptedMaster], tiny_job: Callable[..., TrainingJob], tmp_path: Path
) -> None:
    job = tiny_job(mode="async")
    uri = str(tmp_path / "manifest.json")
    write_manifest(build_manifest(job.spec.data), uri)
    master = scripted_master(job, uri, uri, 2)
    servers = [ParameterServer(f"ps-{index}", job.spec, capacity_rows=10_000) for index in range(2)]
    seen: list[int] = []
    with ExitStack() as stack:
        # ps-1 moves to another address in the middle of the training; the master's directive never says so.
        moved = serve(stack, servers[1], master.token, {})

        def moving(message: Push, arrays: list[Any]) -> Any:
            seen.append(message.origin.end)
            if len(seen) == 3:
                newer = msgspec.structs.replace(
                    routing, epoch=routing.epoch + 1, addresses=[rpcs[0].address, moved.address]
                )
                members = [WorkerProcess("worker-0", master.incarnations["worker-0"])]
                for server in servers:
                    server.adopt(newer, 0, members, 100)
            return servers[1].push(message, arrays)

        rpcs = [
            serve(stack, servers[0], master.token, {}),
            serve(stack, servers[1], master.token, {Push: moving}),
        ]
        buckets = job.spec.resources.virtual_buckets
        routing = routing_of([rpc.address for rpc in rpcs], epoch=1, buckets=buckets)
        for server, rpc in zip(servers, rpcs, strict=True):
            server.start_empty(routing, 0)
            master.addresses[server.name], master.restored[server.name] = rpc.address, master.restore.order_id
        master.add_shards("train", ROWS, SHARD)
        session = Session(Identity("job-1", "worker-0", "", master.server.address, master.token, None))
        trainer = ParameterServerTrainer(job, session.identity, session.window)
        worker = Worker(session, job, session.register(), trainer, torch.set_num_threads)
        thread = threading.Thread(target=run, args=(worker,), daemon=True)
        thread.start()
        try:
            master.wait_for(lambda: len(master.done) == ROWS // SHARD)
            assert len(seen) == 3 and session.directive.routing == routing
            # Its directive comes at last, and changes nothing.
            lanes = list(trainer.step.client._lanes.values())
            assert [lane.address for lane in lanes] == [rpcs[0].address, moved.address]
            for server in servers:
                assert server.dense is not None
                assert (server.dense.steps, server.stats(GetStats()).pushes) == (ROWS // BATCH,) * 2
        finally:
            master.command(Mode.EXIT)
            thread.join(60)
            session.stop()
            thread.join(60)
            session.close()


class RecordingClient:
    """A parameter client that connects to nobody."""

    def __init__(self) -> None:
        self.connected: list[tuple[int, int]] = []

    def connect(self, routing: RoutingTable, generation: int) -> None:
        self.connected.append((routing.epoch, generation))

    def follow(self, version: int) -> None:
        pass

    def init_dense(self, values: Any) -> int:
        return 0

    def drop(self) -> None:
        pass


def directive(epoch: int, generation: int = 0) -> Directive:
    return Directive(version=1, mode=Mode.TRAIN, generation=generation, routing=routing_of(["here:1"], epoch=epoch))


def refusal(epoch: int, generation: int = 0) -> RoutingChangedError:
    return RoutingChangedError("refused", epoch, generation, routing_of(["here:2"], epoch=epoch))


@pytest.fixture
def trainer(tiny_job: Callable[..., TrainingJob]) -> ParameterServerTrainer:
    made = ParameterServerTrainer(tiny_job(), Identity("job-1", "worker-0", "", "nowhere:1", "token", None), Window())
    made.step.client = RecordingClient()  # type: ignore[assignment]
    return made


def connected(trainer: ParameterServerTrainer) -> list[tuple[int, int]]:
    client: Any = trainer.step.client
    found: list[tuple[int, int]] = client.connected
    return found


def test_a_directive_with_the_routing_of_a_server_keeps_the_connections(trainer: ParameterServerTrainer) -> None:
    trainer.follow(directive(1))
    trainer.drop()
    assert trainer.redirected(refusal(2))
    trainer.follow(directive(1))
    assert trainer.keeps(directive(1))
    later = msgspec.structs.replace(directive(2), routing=refusal(2).routing)
    assert trainer.keeps(later)
    trainer.follow(later)
    assert connected(trainer) == [(1, 0), (2, 0)]


def test_a_newer_directive_or_generation_overrides_a_servers_redirection(
    trainer: ParameterServerTrainer,
) -> None:
    trainer.follow(directive(1))
    trainer.redirected(refusal(2))
    for newest in (directive(3), directive(2), directive(1, generation=1)):
        trainer.drop()
        assert not trainer.keeps(newest)
        trainer.follow(newest)
    assert connected(trainer) == [(1, 0), (3, 0), (2, 0), (1, 1)]


def test_a_failure_without_a_table_redirects_no_request(trainer: ParameterServerTrainer) -> None:
    trainer.follow(directive(1))
    assert not trainer.redirected(TransportError("the link broke", retryable=True))
    assert not trainer.redirected(RoutingChangedError("refused", 2, 0))
    trainer.drop()
    trainer.follow(directive(1))
    assert connected(trainer) == [(1, 0), (1, 0)]
