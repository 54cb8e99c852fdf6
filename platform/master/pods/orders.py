"""What a pod may be ordered to do otherwise than the others, and what follows from its obeying. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from elastrec.platform.master.machine.effects import Decided, Effect
from elastrec.platform.master.machine.events import PodOrdered
from elastrec.platform.master.pods.membership import Member
from elastrec.platform.specs.job import Training
from elastrec.platform.specs.metrics import Role
from elastrec.platform.transport.messages.job import PodOrders
from elastrec.platform.transport.messages.observer import OrderWorker

if TYPE_CHECKING:
    from elastrec.platform.master.machine.state import JobState


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
    if order.is_idle and not any(worker.name != order.pod and not worker.is_idle for worker in _at_hand(state)):
        return (
            f"is_idle: True is not allowed for {order.pod}; allowed: False, as no other worker would train; "
            "let another one train first, or ask for more workers"
        )
    return ""


def ordered(state: JobState, event: PodOrdered, effects: list[Effect]) -> None:
    """A worker has other orders from now on."""
    member = state.membership.members.get(event.pod)
    if member is None or member.role is not Role.WORKER or state.phase.is_final:
        return
    given = PodOrders(
        version=0,
        batch_size=event.batch_size,
        learning_rate_scale=event.learning_rate_scale,
        is_idle=event.is_idle,
        cores=None if member.orders is None else member.orders.cores,
    )
    _order(state, member, given, "", effects)
    keep_one_at_work(state, effects)


def use_cores(state: JobState, member: Member, effects: list[Effect]) -> None:
    """A pod that was resized in place computes, or restores, with as many threads as it has cores now."""
    given = msgspec.structs.replace(member.orders or PodOrders(version=0), cores=member.cores)
    _order(state, member, given, "resized in place", effects)


def keep_one_at_work(state: JobState, effects: list[Effect]) -> None:
    """Idle workers are those that wait while others train: once no other is left, they train again."""
    workers = _at_hand(state)
    if state.phase.is_final or not workers or not all(worker.is_idle for worker in workers):
        return
    for worker in workers:
        assert worker.orders is not None
        given = msgspec.structs.replace(worker.orders, is_idle=False)
        _order(state, worker, given, "no other worker is left to train", effects)


def _at_hand(state: JobState) -> list[Member]:
    """Workers that could train now."""
    return [worker for worker in state.membership.workers() if worker.is_registered and not worker.retiring]


def _order(state: JobState, member: Member, given: PodOrders, reason: str, effects: list[Effect]) -> None:
    if state.membership.order(member, given):
        inputs = {
            "pod": member.name,
            "batch_size": given.batch_size,
            "learning_rate_scale": given.learning_rate_scale,
            "is_idle": given.is_idle,
            **({} if given.cores is None else {"cores": given.cores}),
            "reason": reason,
        }
        effects.append(Decided(decision="pod_ordered", inputs=inputs))


def lets_go(member: Member, version: int) -> bool:
    """Whether a process's word that it has let go of its shards is news.

    It names the orders under which it did, and leases none until it was answered. So a repeated word, or one that was
    meant for an earlier master, takes no shard away that was leased later.
    """
    given = member.orders.version if member.orders is not None else 0
    return member.let_go_version < version <= given


def let_go(state: JobState, member: Member, version: int, effects: list[Effect]) -> None:
    """An idle worker's shards are for others; what it has pushed is applied and acknowledged."""
    if lets_go(member, version):
        member.let_go_version = version
        for queue in state.queues:
            state.ledger(queue.lose(member.name, blame=False, outcome="given back"), effects)
