"""Several workers and one parameter server in one process: what joining workers do to a model under training.

Reader, models, steps, client, server and update rules are the product's; the master and the pods are left out. Workers
take turns, a step each, so that every step lacks the gradients of the same number of others: a run with the same
request gives the same figures. Answers a line of JSON to a line of JSON (`join`).
"""

from __future__ import annotations

import sys
from statistics import fmean
from typing import Any

import msgspec
import structlog
import torch

from benchmarks.common.child import serve
from benchmarks.processes.one_worker import SCORED_ROWS, TOKEN, items, score, serve_rows
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.transport.messages.job import Directive, Mode, RoutingTable
from elastrec.trainers.parameter_server.warm_up import warm_kernels
from elastrec.trainers.worker.feed import Item
from elastrec.trainers.worker.identity import Identity
from elastrec.trainers.worker.parameter_server_trainer import ParameterServerTrainer
from elastrec.trainers.worker.trainer import Started
from elastrec.trainers.worker.window import Window


class _Losses(Window):
    """Keeps the mean loss of every step."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[float] = []

    def add(self, **amounts: Any) -> None:
        self.steps.append(amounts["loss_sum"] / amounts["samples"])
        super().add(**amounts)


class _Worker:
    def __init__(self, name: str, job: TrainingJob, routing: RoutingTable, *, trains_alone: bool) -> None:
        self.losses = _Losses()
        self.trainer = ParameterServerTrainer(job, Identity("job", name, "", "", TOKEN, None), self.losses)
        self._directive = Directive(
            version=1, mode=Mode.TRAIN, generation=1, routing=routing, trains_alone=trains_alone
        )
        self.trainer.follow(self._directive)
        self.trainer.mode(training=True)
        self._started: Started | None = None

    def is_joined(self) -> None:
        """Others train from here on."""
        self._directive = msgspec.structs.replace(self._directive, trains_alone=False)

    def turn(self, item: Item | None) -> None:
        """Ends the step that is under way and begins the next one; before that push where pulls overlap."""
        overlaps = self.trainer.overlaps(self._directive)
        started = self.trainer.start(item) if item is not None and overlaps else None
        if self._started is not None:
            self.trainer.train(self._started, hold=started is not None)
        self._started = self.trainer.start(item) if item is not None and not overlaps else started


def join(request: dict[str, Any]) -> dict[str, Any]:
    """One worker trains, then others join it.

    Args:
        request: `content`, a job file; `alone`, steps of the first worker; `together`, steps of all workers after that;
            `workers`, of them.

    Returns:
        `before`, `after`: mean loss before the update, of the last and of the first `together / 8` steps on each side
        of the join; `auc` and `normalized_entropy` of the log's second day.
    """
    job = TrainingJob.model_validate(request["content"])
    spec = job.spec
    rpc, routing = serve_rows(spec)
    alone, together, count = request["alone"], request["together"], request["workers"]
    workers = [_Worker("worker-0", job, routing, trains_alone=True)]
    try:
        minibatches = items(spec, 0, spec.training.batch_size, alone + together, shuffled=True)
        for item in minibatches[:alone]:
            workers[0].turn(item)
        workers[0].turn(None)
        workers[0].is_joined()
        workers += [_Worker(f"worker-{number}", job, routing, trains_alone=False) for number in range(1, count)]
        for start in range(alone, alone + together, count):
            for worker, item in zip(workers, minibatches[start : start + count], strict=True):
                worker.turn(item)
        for worker in workers:
            worker.turn(None)
            worker.trainer.step.client.flush()
        look = together // 8
        joint = [worker.losses.steps[alone if worker is workers[0] else 0 :][: look // count] for worker in workers]
        sketch = score(workers[0].trainer.step, items(spec, 1, SCORED_ROWS, None, shuffled=False))
    finally:
        for worker in workers:
            worker.trainer.step.client.close()
        rpc.shutdown()
    return {
        "before": fmean(workers[0].losses.steps[alone - look : alone]),
        "after": fmean(loss for losses in joint for loss in losses),
        "auc": sketch.auc(),
        "normalized_entropy": sketch.normalized_entropy(),
    }


if __name__ == "__main__":
    structlog.configure(
        logger_factory=structlog.PrintLoggerFactory(sys.stderr), wrapper_class=structlog.make_filtering_bound_logger(40)
    )
    torch.set_num_threads(1)
    warm_kernels()
    serve(join, {})
