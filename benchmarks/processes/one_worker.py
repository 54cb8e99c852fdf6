"""One worker and one parameter server in one process: short trainings, one after the other.

Reader, models, steps, client, server and update rules are the product's; the master and the pods are left out. The
order of the steps is fixed: a run with the same request gives the same figures. Answers a line of JSON to a line of
JSON (`train_and_score`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import structlog
import torch

from benchmarks.common.child import serve
from benchmarks.common.row_shards import row_shards
from elastrec.platform.data.manifest import build_manifest
from elastrec.platform.data.metrics.binary import BinaryMetricsSketch
from elastrec.platform.data.partitions import existing_partitions
from elastrec.platform.data.reading.source import ManifestSource, reader_of
from elastrec.platform.specs.job import JobSpec, TrainingJob
from elastrec.platform.specs.row_ranges import RowRanges
from elastrec.platform.transport import RpcServer
from elastrec.platform.transport.messages.directive import RoutingTable
from elastrec.trainers.memory import ResidentMemory
from elastrec.trainers.parameter_server.serving.server import ParameterServer
from elastrec.trainers.parameter_server.warm_up import warm_kernels
from elastrec.trainers.worker.feed import Item
from elastrec.trainers.worker.identity import Identity
from elastrec.trainers.worker.parameter_server_trainer import Origins
from elastrec.trainers.worker.step import InFlight, Step
from elastrec.trainers.worker.window import Window

TOKEN = "benchmark"
SCORED_ROWS, MOST_SCORED = 4096, 16
_STEPS_PER_LOOK = 32
_Items = list[Item]


def items(spec: JobSpec, day: int, batch_size: int, count: int | None, *, shuffled: bool) -> _Items:
    """Minibatches of one partition, at most `count`: of a job's shards as its only worker gets them, or as they lie."""
    manifest = build_manifest(spec.data, [existing_partitions(spec.data)[day]])
    training = spec.training
    shard_rows = training.batch_size * training.batches_per_shard if shuffled else manifest.rows
    ranges = RowRanges(rows=manifest.rows, split_rows=shard_rows, shuffle=shuffled, seed=training.seed)
    source = ManifestSource(reader_of(spec, manifest))

    def read() -> Iterator[Item]:
        for shard in row_shards(ranges, "train" if shuffled else "evaluate"):
            before = shard.progress(0, ended=False)
            for found in source.read(shard.split, 0, b"", batch_size):
                progress = shard.progress(found.end_offset, ended=found.ends_split)
                yield Item(shard, found.batch, progress, before, found.ids)
                before = progress

    made = list(islice(read(), count))
    source.close()
    return made


def serve_rows(spec: JobSpec, server: ParameterServer | None = None) -> tuple[RpcServer, RoutingTable]:
    """A parameter server `ps-0` without rows, the only one of generation 1; the caller shuts it down."""
    server = server or ParameterServer("ps-0", spec)
    rpc = RpcServer({}, token=TOKEN, array_handlers=server.array_handlers())
    rpc.serve_in_background()
    buckets = spec.resources.virtual_buckets
    routing = RoutingTable(epoch=1, owners=[0] * buckets, servers=["ps-0"], addresses=[rpc.address])
    server.start_empty(routing, 1)
    return rpc, routing


def train(step: Step, minibatches: _Items, overlap_after: int | None) -> None:
    """Steps as the worker's loop takes them; pulls overlap once `overlap_after` steps are done (None: never)."""
    step.mode(training=True)
    memory, origins = ResidentMemory(), Origins()

    def finish(started: InFlight, *, hold: bool) -> None:
        step.train(started, origins.of(started.item), hold=hold)
        if started.pulled is not None:
            origins.pushed(started.item)

    ahead: InFlight | None = None
    for number, item in enumerate(minibatches):
        if number % _STEPS_PER_LOOK == 0:
            # A worker looks with every heartbeat.
            memory.measure()
        started = step.pull(item)
        if ahead:
            finish(ahead, hold=True)
        ahead = started
        if overlap_after is None or number < overlap_after:
            finish(ahead, hold=False)
            ahead = None
    if ahead:
        finish(ahead, hold=False)
    step.client.flush()


def score(step: Step, minibatches: _Items) -> BinaryMetricsSketch:
    """Predictions of the model as it is; ids that were never trained have zero rows."""
    step.mode(training=False)
    sketch = BinaryMetricsSketch()
    for item in minibatches:
        started = step.pull(item)
        prediction = step.predict(started)
        (head,) = prediction.heads
        sketch.update(head.prediction_B, head.label_B)
    return sketch


def scored_days(spec: JobSpec, request: dict[str, Any]) -> Sequence[int]:
    """Of `train_and_score`."""
    chosen: list[int] | None = request.get("days")
    return chosen or range(1, len(existing_partitions(spec.data)))


def most_scored(request: dict[str, Any]) -> int | None:
    """Of `train_and_score`."""
    return request.get("most_scored", MOST_SCORED)


def train_and_score(request: dict[str, Any]) -> dict[str, Any]:
    """One training on the log's first day, scored on days after it.

    Args:
        request: `content`, a job file; `steps`, the maximum number of steps (absent: the whole day); `overlap_after` as
            in `train` (absent: never); `days`, numbers of the scored days (absent: all after the first one);
            `most_scored`, minibatches of each (absent: MOST_SCORED; null: all).

    Returns:
        `steps`, their `rows`, and per scored day `auc` and `normalized_entropy`.
    """
    job = TrainingJob.model_validate(request["content"])
    spec = job.spec
    rpc, routing = serve_rows(spec)
    step = Step(job, Identity("job", "worker-0", "", "", TOKEN, None), Window())
    try:
        step.client.connect(routing, 1)
        step.client.init_dense(step.initial_dense)
        minibatches = items(spec, 0, spec.training.batch_size, request.get("steps"), shuffled=True)
        train(step, minibatches, request.get("overlap_after"))
        most = most_scored(request)
        sketches = [
            score(step, items(spec, day, SCORED_ROWS, most, shuffled=False)) for day in scored_days(spec, request)
        ]
    finally:
        step.client.close()
        rpc.shutdown()
    return {
        "steps": len(minibatches),
        "rows": sum(item.batch.num_rows for item in minibatches),
        "auc": [sketch.auc() for sketch in sketches],
        "normalized_entropy": [sketch.normalized_entropy() for sketch in sketches],
    }


if __name__ == "__main__":
    structlog.configure(
        logger_factory=structlog.PrintLoggerFactory(sys.stderr), wrapper_class=structlog.make_filtering_bound_logger(40)
    )
    torch.set_num_threads(1)
    warm_kernels()
    serve(train_and_score, {})
