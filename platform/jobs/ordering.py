"""Sends orders to the workers of a running job: another batch size, other learning rates, or to be idle."""

from __future__ import annotations

from collections.abc import Sequence

from elastrec.platform.jobs.surroundings import Platform
from elastrec.platform.jobs.watching.masters import live_master
from elastrec.platform.specs.errors import ClusterError
from elastrec.platform.transport.messages.observer import OrdersAnswer, OrderWorkers, WorkerOrder

_CALL_SECONDS = 15.0


def order_workers(
    platform: Platform, job_id: str, order: WorkerOrder, *, pods: Sequence[str] = (), dry_run: bool = False
) -> OrdersAnswer:
    """The master's answer to an order for workers.

    Args:
        order, pods, dry_run: see OrderWorkers.

    Raises:
        ClusterError: no master of the job runs, or it does not answer.
    """
    with live_master(platform, job_id) as master:
        if master is None:
            raise ClusterError(
                f"job {job_id} has no master that runs: only a running job takes orders; see `elastrec status`"
            )
        message = OrderWorkers(order=order, pods=list(pods), dry_run=dry_run)
        return master.call(message, OrdersAnswer, timeout_seconds=_CALL_SECONDS, remember=True)
