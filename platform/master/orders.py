"""What a worker may be ordered to do otherwise than the others. Pure."""

from __future__ import annotations

import math

from elastrec.platform.master.state import JobState
from elastrec.platform.specs.job import Training
from elastrec.platform.transport.observer_messages import OrderWorker


def refusal(state: JobState, training: Training, order: OrderWorker) -> str:
    """Why a worker cannot be given an order; empty when it can."""
    workers = [member.name for member in state.membership.workers()]
    if order.pod not in workers:
        return f"pod: {order.pod!r} is not allowed; allowed: {', '.join(sorted(workers)) or 'none, no worker runs'}"
    # A minibatch lies in one shard: more rows than that would never come together.
    most = training.batch_size * training.batches_per_shard
    if order.batch_size is not None and not 1 <= order.batch_size <= most:
        return f"batch_size: {order.batch_size} is not allowed; allowed: 1 to the rows of a shard, {most}"
    if not (math.isfinite(order.learning_rate_scale) and order.learning_rate_scale > 0):
        return f"learning_rate_scale: {order.learning_rate_scale} is not allowed; allowed: finite numbers above 0"
    return ""
