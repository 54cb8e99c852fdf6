"""The true speed of a simulated job, with missing or slow workers and an overloaded server. Pure.

T_w = T_grad · slow_w + β, together with (T_upd + T_sync + T_emb) · hot, for each worker w     DLRover-RM eq. 1–5
Ψ   = Σ_w m / T_w with dynamic sharding; workers · m / max T_w where the data was divided once

"Together" is the sum of both, or the form of `step_form` in a job's coefficients.

In a second form of the truth, which no policy's model has, servers are queues. Every step puts one demand to each
server, and waits for those of other workers before it; the response R(w) of a closed network with one queue is exact by
mean value analysis (Reiser and Lavenberg 1980):

    R(n) = d · (1 + Q(n−1)),   Q(n) = n · R(n) / (Z + R(n)),   Q(0) = 0,   n = 1 … w

with d = service · (T_upd/w + T_emb) of one step and Z the rest of it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
from scipy.optimize import brentq

from elastrec.platform.scaling.amounts import Allocation
from elastrec.platform.scaling.model.columns import TERMS, Columns, features
from elastrec.platform.scaling.model.step_form import together
from elastrec.platform.scaling.types import Coefficients, ModelShape


class Step(msgspec.Struct, frozen=True):
    """The parts of a step, in seconds; `network` is T_sync, `update` and `lookup` keep servers busy.

    Attributes:
        asking, answering: of the worker for requests to all of its servers, of a server for those of all workers.
        overlap: q of `step_form`.
    """

    compute: float
    update: float
    network: float
    lookup: float
    fixed: float
    asking: float = 0.0
    answering: float = 0.0
    overlap: float = 1.0

    @property
    def seconds(self) -> float:
        """T_iter of eq. 1 without trouble."""
        return self.with_trouble(1.0, 1.0)

    def with_trouble(self, slow: float, hot: float) -> float:
        """T_w."""
        if self.overlap == 1.0:
            summed = self.compute * slow + (self.update + self.network + self.lookup) * hot + self.fixed
            return summed + (self.asking * slow + self.answering * hot)
        own = (self.compute + self.asking) * slow + self.fixed
        servers = (self.update + self.network + self.lookup + self.answering) * hot
        return float(together(np.float64(own), np.float64(servers), self.overlap))


class Rate(msgspec.Struct, frozen=True):
    """A job's rates.

    Attributes:
        samples: Ψ.
        step_seconds, compute_seconds: means over workers, as in its profile; the second is T_grad.
        worker_busy, server_busy: share of the granted cores in use, 0 to 1.
    """

    samples: float
    step_seconds: float
    compute_seconds: float
    worker_busy: float
    server_busy: float

    def on_nodes(self, factor: float) -> Rate:
        """The rates if every step takes `factor` times as long."""
        return Rate(
            self.samples / factor, self.step_seconds * factor, self.compute_seconds * factor,
            self.worker_busy, self.server_busy,
        )  # fmt: skip


STOPPED = Rate(0.0, 0.0, 0.0, 0.0, 0.0)


def steps_of(
    shape: ModelShape, coefficients: Coefficients, service: float | None = None
) -> Callable[[Allocation], Step]:  # fmt: skip
    """Steps by allocation, each computed once; with a `service`, servers are queues."""
    alpha_K = np.array([getattr(coefficients, term) for term in TERMS])
    known: dict[tuple[int, int, float, float], Step] = {}

    def step(now: Allocation) -> Step:
        key = (now.workers, now.parameter_servers, now.worker_cores, now.parameter_server_cores)
        if key not in known:
            compute, update, network, lookup = (features(shape, Columns.of([now]))[0] * alpha_K).tolist()
            asking = coefficients.fan_out * now.parameter_servers / now.worker_cores
            answering = coefficients.fan_in * now.workers / now.parameter_server_cores
            known[key] = Step(
                compute, update, network, lookup, coefficients.fixed, asking, answering, coefficients.overlap
            )  # fmt: skip
            if service is not None:
                known[key] = queued(known[key], now.workers, service)
        return known[key]

    return step


def response(demand: float, think: float, workers: int) -> float:
    """R(w): seconds until a server has answered, including the wait in its queue."""
    queue, found = 0.0, demand
    for others in range(1, workers + 1):
        found = demand * (1.0 + queue)
        queue = others * found / (think + found)
    return found


def queued(step: Step, workers: int, service: float) -> Step:
    """The step where servers are queues; the wait counts as network time, because no core is busy."""
    update, lookup = service * step.update / workers, service * step.lookup
    waited = response(update + lookup, _think(step), workers) - (update + lookup)
    return msgspec.structs.replace(step, update=update, lookup=lookup, network=step.network + waited)


def service_of(step: Step, workers: int) -> float:
    """The service factor with which a step of so many workers takes as long as by eq. 1–5; 1 without servers' work."""
    spent = step.update + step.lookup
    if not spent:
        return 1.0
    alone = step.update / workers + step.lookup
    # A single worker never waits; each of w workers waits at most for all others.
    return float(
        brentq(lambda service: response(service * alone, _think(step), workers) - spent, 1e-9, spent / alone)
        if workers > 1
        else spent / alone
    )


def _think(step: Step) -> float:
    return step.compute + step.network + step.fixed + step.asking + step.answering


def rate_of(
    step: Step, now: Allocation, batch: int, up: int, slow_workers: int, slow: float, hot: float, dynamic: bool
) -> Rate:
    """The rate of `up` workers, `slow_workers` of which compute `slow` times longer.

    Cores in use: T_grad and T_upd take all of a pod's (eq. 2 and 3 are divided by them); lookups and the fixed part do
    not get faster with cores (eq. 5) and take one.
    """
    if up < 1:
        return STOPPED
    slow_workers = min(slow_workers, up)
    good, bad = step.with_trouble(1.0, hot), step.with_trouble(slow, hot)
    if not slow_workers:
        bad = good
    steps_per_second = (up - slow_workers) / good + slow_workers / bad if dynamic else up / bad
    mean = up / steps_per_second
    # The slow worker's cores are busy with other work, and do not count as used by the job.
    computing = step.compute + step.asking + step.fixed * min(1.0, 1.0 / now.worker_cores)
    serving = step.update + step.answering + step.lookup * min(1.0, 1.0 / now.parameter_server_cores)
    share = steps_per_second / now.workers
    compute = step.compute * (1.0 + (slow - 1.0) * slow_workers / up)
    return Rate(
        steps_per_second * batch, mean, min(compute, mean), min(computing * share, 1.0), min(serving / mean, 1.0)
    )
