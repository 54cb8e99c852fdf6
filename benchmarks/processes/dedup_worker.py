"""The processes of `dedup_worker`: roles `server` and `worker`, both of a job file's own code."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.common.child import serve
from benchmarks.common.row_shards import row_shard
from elastrec.platform.data.manifest import build_manifest
from elastrec.platform.data.reading.source import ManifestSource, reader_of
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.text.loading import job_from_json
from elastrec.platform.transport.messages.directive import RoutingTable

TOKEN = "benchmark"
_COUNTED = ("samples", "steps", "loss_sum", "bytes_read", "bytes_read_plain", "bytes_pulled", "bytes_pushed")


def routing(address: str) -> RoutingTable:
    """One server that owns all."""
    return RoutingTable(epoch=1, owners=[0] * 256, servers=["ps-0"], addresses=[address])


def run_server(job: TrainingJob) -> None:
    import structlog

    from elastrec.platform.transport import RpcServer
    from elastrec.platform.transport.server import end_process
    from elastrec.trainers.parameter_server.serving.server import ParameterServer
    from elastrec.trainers.parameter_server.warm_up import warm_kernels

    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    warm_kernels()
    server = ParameterServer("ps-0", job.spec)
    rpc = RpcServer({}, token=TOKEN, array_handlers=server.array_handlers())
    rpc.serve_in_background()
    server.start_empty(routing(rpc.address), 1)
    serve(lambda request: {}, {"address": rpc.address})
    end_process(0)


def run_worker(job: TrainingJob, address: str) -> None:
    import torch

    from elastrec.trainers.worker.feed import Item
    from elastrec.trainers.worker.identity import Identity
    from elastrec.trainers.worker.parameter_server_trainer import Origins
    from elastrec.trainers.worker.step import InFlight, Step
    from elastrec.trainers.worker.window import Window

    torch.set_num_threads(1)
    window, spec = Window(), job.spec
    step = Step(job, Identity("job", "w", "", "", TOKEN, None), window)
    step.client.connect(routing(address), 1)
    step.client.init_dense(step.initial_dense)
    step.mode(training=True)
    manifest = build_manifest(spec.data)
    source = ManifestSource(reader_of(spec, manifest))
    turns, origins = count(), Origins()

    def items(rows: int) -> Iterator[Item]:
        turn = next(turns)
        shard = row_shard(rows, seed=turn, shuffle=spec.training.shuffle, number=turn)
        begin = shard.progress(0, ended=False)
        for found in source.read(shard.split, 0, b"", spec.training.batch_size):
            progress = shard.progress(found.end_offset, ended=found.ends_split)
            yield Item(shard, found.batch, progress, begin, found.ids)

    def finish(started: InFlight, *, hold: bool) -> None:
        step.train(started, origins.of(started.item), hold=hold)
        if started.pulled is not None:
            origins.pushed(started.item)

    def train(request: dict[str, Any]) -> dict[str, float]:
        """The first `rows` rows once, as the worker's loop does: the next pull is under way while one computes."""
        began = time.process_time()
        ahead = None
        for item in items(request["rows"]):
            started = step.pull(item)
            if ahead is not None:
                finish(ahead, hold=True)
            ahead = started
        step.client.release()
        assert ahead is not None, "a log without rows"
        finish(ahead, hold=False)
        step.client.flush()
        spent = time.process_time() - began
        report = window.take()
        window.delivered(report)
        return {"cpu_seconds": spent, **{name: getattr(report, name) for name in _COUNTED}}

    serve(train, {})
    step.client.close()


if __name__ == "__main__":
    described = job_from_json(Path(sys.argv[2]).read_text())
    if sys.argv[1] == "server":
        run_server(described)
    else:
        run_worker(described, sys.argv[3])
