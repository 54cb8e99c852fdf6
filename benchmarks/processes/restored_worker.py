"""One worker and one parameter server in one process: a short training, saved in deltas, scored before a restore and
after it.

Like `one_worker`. The chain of records is that of a job: a full record in the middle of the training, then deltas.
Answers a line of JSON to a line of JSON (`train_restore_and_score`).
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import structlog
import torch

from benchmarks.common.child import serve
from benchmarks.processes.one_worker import MOST_SCORED, SCORED_ROWS, TOKEN, items, score, serve_rows, train
from elastrec.checkpoints import commit_record
from elastrec.platform.specs.job import TrainingJob
from elastrec.trainers.parameter_server.records.share import restore, save_part
from elastrec.trainers.parameter_server.serving.server import ParameterServer
from elastrec.trainers.parameter_server.warm_up import warm_kernels
from elastrec.trainers.worker.identity import Identity
from elastrec.trainers.worker.step import Step
from elastrec.trainers.worker.window import Window

DELTAS = 5


def train_restore_and_score(request: dict[str, Any]) -> dict[str, Any]:
    """One training on the log's first day, scored on its third one.

    Args:
        request: `content`, a job file; `steps`, the maximum number of steps.

    Returns:
        `auc` and `normalized_entropy` of the model in training, `restored_auc` and `restored_normalized_entropy` of the
        model restored from the last record, and `delta_bytes` of all deltas together.
    """
    job = TrainingJob.model_validate(request["content"])
    spec = job.spec
    trained, again = (ParameterServer("ps-0", spec) for _ in range(2))
    (rpc, routing), (rpc_again, routing_again) = (serve_rows(spec, server) for server in (trained, again))
    steps = [Step(job, Identity("job", "worker-0", "", "", TOKEN, None), Window()) for _ in range(2)]
    minibatches = items(spec, 0, spec.training.batch_size, request["steps"], shuffled=True)
    half, delta_bytes, base = len(minibatches) // 2, 0, ""
    each = half // DELTAS
    try:
        with tempfile.TemporaryDirectory() as folder:
            for step, place in zip(steps, (routing, routing_again), strict=True):
                step.client.connect(place, 1)
                step.client.init_dense(step.initial_dense)
            train(steps[0], minibatches[: len(minibatches) - DELTAS * each], None)
            for number in range(DELTAS + 1):
                if number:
                    begin = len(minibatches) - (DELTAS + 1 - number) * each
                    train(steps[0], minibatches[begin : begin + each], None)
                uri = f"{folder}/record-{number}"
                part = save_part(trained, uri, cut=uri, base=base)
                commit_record(
                    uri, [part], b"{}", job=job, job_id="job", kind="periodic", step=number, generation=1, base=base
                )
                base, delta_bytes = uri, delta_bytes + (part.size_bytes if number else 0)
            restore(again, base, routing_again, 1)
        sketches = [score(step, items(spec, 2, SCORED_ROWS, MOST_SCORED, shuffled=False)) for step in steps]
    finally:
        for step in steps:
            step.client.close()
        rpc.shutdown()
        rpc_again.shutdown()
    (auc, restored), (entropy, restored_entropy) = (
        [sketch.auc() for sketch in sketches],
        [sketch.normalized_entropy() for sketch in sketches],
    )
    return {
        "steps": len(minibatches),
        "auc": auc,
        "normalized_entropy": entropy,
        "restored_auc": restored,
        "restored_normalized_entropy": restored_entropy,
        "delta_bytes": delta_bytes,
    }


if __name__ == "__main__":
    structlog.configure(
        logger_factory=structlog.PrintLoggerFactory(sys.stderr), wrapper_class=structlog.make_filtering_bound_logger(40)
    )
    torch.set_num_threads(1)
    warm_kernels()
    serve(train_restore_and_score, {})
