"""Several workers and one parameter server in one process: the effect of joining workers on the model.

Reader, models, steps, client, server and update rules are the product's; the master and the pods are left out. Workers
take turns, a step each, so that every step lacks the gradients of the same number of others: a run with the same
request gives the same figures. Answers a line of JSON to a line of JSON (`join`).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import msgspec
import structlog
import torch

from benchmarks.common.child import serve
from benchmarks.processes.one_worker import SCORED_ROWS, TOKEN, items, score, serve_rows
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.transport.messages.directive import Directive, Mode, RoutingTable
from elastrec.trainers.parameter_server.warm_up import warm_kernels
from elastrec.trainers.worker.feed import Item
from elastrec.trainers.worker.identity import Identity
from elastrec.trainers.worker.parameter_server_trainer import ParameterServerTrainer
from elastrec.trainers.worker.trainer import Started
from elastrec.trainers.worker.window import Window

_WINDOWS = 8
"""Of the steps of all workers together; the mean loss of each is answered."""


class _Losses(Window):
    """Appends the mean loss of every step to `steps`, which all workers share."""

    def __init__(self, steps: list[float]) -> None:
        super().__init__()
        self._steps = steps

    def add(self, **amounts: Any) -> None:
        self._steps.append(amounts["loss_sum"] / amounts["samples"])
        super().add(**amounts)


@dataclass(frozen=True)
class Joining:
    """The way in which workers join, and the weight of their pushes afterwards.

    Attributes:
        apart: steps of all workers from one that joins to the next; 0: all join at once.
        ramp_steps: own steps in which a newcomer's learning rates rise linearly to those of the job.
        ramp_from: a factor of its learning rates at the begin of these steps.
        all_ramp: whether the learning rates of the first worker fall and rise in the same way.
        rate_scale: a factor of all workers' learning rates.
    """

    apart: int = 0
    ramp_steps: int = 0
    ramp_from: float = 0.0
    all_ramp: bool = False
    rate_scale: float = 1.0

    def workers_at(self, step: int, most: int) -> int:
        return min(most, 2 + step // self.apart) if self.apart else most

    def scale_of(self, worker: int, step: int) -> float:
        """Of one of a worker's steps since others have joined, counted from 0."""
        if not self.ramp_steps or not (worker or self.all_ramp):
            return self.rate_scale
        passed = min(1.0, (step + 1) / self.ramp_steps)
        return self.rate_scale * (self.ramp_from + (1 - self.ramp_from) * passed)


class _Worker:
    def __init__(
        self, number: int, job: TrainingJob, routing: RoutingTable, losses: list[float], *, trains_alone: bool
    ) -> None:
        self.number = number
        identity = Identity("job", f"worker-{number}", "", "", TOKEN, None)
        self.trainer = ParameterServerTrainer(job, identity, _Losses(losses))
        self._directive = Directive(
            version=1, mode=Mode.TRAIN, generation=1, routing=routing, trains_alone=trains_alone
        )
        self.trainer.follow(self._directive)
        self.trainer.mode(training=True)
        self._started: Started | None = None
        self._joining: Joining | None = None
        self._steps = 0  # since others have joined

    def is_joined(self, joining: Joining) -> None:
        """Others train from here on."""
        self._directive, self._joining = msgspec.structs.replace(self._directive, trains_alone=False), joining

    def turn(self, item: Item | None) -> None:
        """Ends the step that is under way and begins the next one; before that push where pulls overlap."""
        overlaps = self.trainer.overlaps(self._directive)
        started = self.trainer.start(item) if item is not None and overlaps else None
        if self._started is not None:
            scale = 1.0
            if self._joining is not None:
                scale, self._steps = self._joining.scale_of(self.number, self._steps), self._steps + 1
            self.trainer.train(self._started, hold=started is not None, rate_scale=scale)
        self._started = self.trainer.start(item) if item is not None and not overlaps else started


def join(request: dict[str, Any]) -> dict[str, Any]:
    """One worker trains, then others join it.

    Args:
        request: `content`, a job file; `alone`, steps of the first worker; `together`, steps of all workers after that;
            `workers`, of them, 1: none joins; `joining`, see `Joining` (absent: all at once, as they are).

    Returns:
        `before`, `after`: mean loss before the update, of the last and of the first `together / 8` steps on each side
        of the join; `windows`, of each eighth of the steps together; `auc` and `normalized_entropy` of the log's second
        day.
    """
    job = TrainingJob.model_validate(request["content"])
    spec = job.spec
    rpc, routing = serve_rows(spec)
    alone, together, count = request["alone"], request["together"], request["workers"]
    joining, losses = Joining(**request.get("joining", {})), list[float]()
    workers = [_Worker(0, job, routing, losses, trains_alone=True)]
    try:
        minibatches = items(spec, 0, spec.training.batch_size, alone + together, shuffled=True)
        for item in minibatches[:alone]:
            workers[0].turn(item)
        workers[0].turn(None)
        if count > 1:
            workers[0].is_joined(joining)
        step = 0
        while step < together:
            while len(workers) < joining.workers_at(step, count):
                workers.append(_Worker(len(workers), job, routing, losses, trains_alone=False))
                workers[-1].is_joined(joining)
            of_round = minibatches[alone + step : alone + min(together, step + len(workers))]
            for worker, item in zip(workers, of_round, strict=False):
                worker.turn(item)
            step += len(of_round)
        for worker in workers:
            worker.turn(None)
            worker.trainer.step.client.flush()
        sketch = score(workers[0].trainer.step, items(spec, 1, SCORED_ROWS, None, shuffled=False))
    finally:
        for worker in workers:
            worker.trainer.step.client.close()
        rpc.shutdown()
    look = together // _WINDOWS
    windows = [fmean(losses[first : first + look]) for first in range(alone, alone + look * _WINDOWS, look)]
    return {
        "before": fmean(losses[alone - look : alone]),
        "after": windows[0],
        "windows": windows,
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
