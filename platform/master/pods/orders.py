"""Orders for pods that override the job file, and their effects. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from elastrec.platform.master.machine.effects import Decided, Effect
from elastrec.platform.master.machine.events import PodOrdered, WorkersOrdered
from elastrec.platform.master.pods.membership import Member
from elastrec.platform.specs.job import Training
from elastrec.platform.specs.metrics import Phase, Role
from elastrec.platform.specs.text import plain_words
from elastrec.platform.transport.messages.directive import PodOrders
from elastrec.platform.transport.messages.observer import OrderedWorker, OrderWorkers, WorkerOrder

if TYPE_CHECKING:
    from elastrec.platform.master.machine.state import JobState


_NOT_AFTER = (Phase.SAVING, Phase.EVALUATING)


def refusal(state: JobState, training: Training, message: OrderWorkers) -> str:
    """Why workers cannot get an order; empty if they can."""
    order = message.order
    workers = sorted(member.name for member in state.membership.workers())
    for pod in message.pods:
        if pod not in workers:
            return f"pod: {pod!r} is not allowed; allowed: {', '.join(workers) or 'none, no worker runs'}"
    # A minibatch belongs to one shard, so it cannot have more rows.
    most = training.batch_size * training.batches_per_shard
    if order.batch_size is not None and not 1 <= order.batch_size <= most:
        return f"batch_size: {order.batch_size} is not allowed; allowed: 1 to the rows of a shard, {most}"
    scale = order.learning_rate_scale
    if scale is not None and not (math.isfinite(scale) and scale > 0):
        return f"learning_rate_scale: {scale} is not allowed; allowed: finite numbers above 0"
    if order.is_idle:
        return _idle_refusal(state, message.pods)
    if not message.pods and state.phase in _NOT_AFTER:
        return f"the job {plain_words.phase(state.phase)}: no worker trains any more"
    return ""


def _idle_refusal(state: JobState, pods: list[str]) -> str:
    if not pods:
        return "is_idle: True is not allowed for all workers; allowed: False; name the workers that are to be idle"
    if any(worker.name not in pods and not worker.is_idle for worker in _at_hand(state)):
        return ""
    return (
        f"is_idle: True is not allowed for {', '.join(pods)}; allowed: False, as no other worker would train; "
        "let another one train first, or ask for more workers"
    )


def preview(state: JobState, message: OrderWorkers) -> list[OrderedWorker]:
    """The resulting orders of the workers that a message names."""
    named = message.pods or sorted(member.name for member in state.membership.workers())
    waiting = [] if message.pods else state.due_orders
    seen = []
    for pod in named:
        given = state.membership.members[pod].orders
        for order in (*waiting, message.order):
            given = _merged(given, order)
        assert given is not None
        seen.append(
            OrderedWorker(
                pod=pod, batch_size=given.batch_size, learning_rate_scale=given.learning_rate_scale,
                is_idle=given.is_idle,
            )
        )  # fmt: skip
    return seen


def for_all(state: JobState) -> PodOrders | None:
    """The orders for all workers, with those that are due; None: there are none."""
    given = state.standing_orders
    for order in state.due_orders:
        given = _merged(given, order)
    return given


def ordered(state: JobState, event: PodOrdered, effects: list[Effect]) -> None:
    """Gives a worker other orders."""
    member = state.membership.members.get(event.pod)
    if member is None or member.role is not Role.WORKER or state.phase.is_final:
        return
    _order(state, member, _merged(member.orders, event.order), "", effects)
    keep_one_at_work(state, effects)


def all_ordered(state: JobState, event: WorkersOrdered, effects: list[Effect]) -> None:
    """Schedules other orders for all workers, for the next time when no worker is within a step (`give_due`)."""
    if state.phase.is_final or state.phase in _NOT_AFTER:
        return
    state.due_orders = [*state.due_orders, event.order]
    said = {name: value for name, value in msgspec.structs.asdict(event.order).items() if value not in (None, False)}
    effects.append(Decided(decision="workers_ordered", inputs=said))


def give_due(state: JobState, effects: list[Effect]) -> None:
    """Gives all workers the scheduled orders, if none of them is within a step."""
    due, state.due_orders = state.due_orders, []
    for order in due:
        state.standing_orders = _merged(state.standing_orders, order)
        for worker in state.membership.workers():
            _order(state, worker, _merged(worker.orders, order), "for all workers", effects)


def joined(state: JobState, member: Member) -> None:
    """A worker that registers for the first time gets the orders for all workers, unless it has orders of its own."""
    own = member.orders or PodOrders(version=0)
    if member.role is Role.WORKER and state.standing_orders is not None and own == _without_orders(own):
        state.membership.order(member, msgspec.structs.replace(state.standing_orders, cores=own.cores))


def in_words(given: PodOrders | None) -> str:
    """How a worker's minibatches differ from the job file, for people; empty if they do not."""
    if given is None:
        return ""
    words = [] if given.batch_size is None else [f"batch size {given.batch_size}"]
    words += [] if given.learning_rate_scale == 1.0 else [f"learning rates × {given.learning_rate_scale:g}"]
    return ", ".join(words)


def _merged(before: PodOrders | None, order: WorkerOrder) -> PodOrders:
    kept = before or PodOrders(version=0)
    if order.resets:
        kept = _without_orders(kept)
    named = {
        "batch_size": order.batch_size, "learning_rate_scale": order.learning_rate_scale, "is_idle": order.is_idle,
    }  # fmt: skip
    return msgspec.structs.replace(kept, **{name: value for name, value in named.items() if value is not None})


def _without_orders(given: PodOrders) -> PodOrders:
    """Only what the cluster decides."""
    return PodOrders(version=given.version, cores=given.cores)


def use_cores(state: JobState, member: Member, effects: list[Effect]) -> None:
    """Orders a pod that was resized in place to use as many threads as it has cores now."""
    given = msgspec.structs.replace(member.orders or PodOrders(version=0), cores=member.cores)
    _order(state, member, given, "resized in place", effects)


def keep_one_at_work(state: JobState, effects: list[Effect]) -> None:
    """Lets idle workers train again if no other worker is left."""
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
    """Whether a process's report that it has released its shards is new.

    The report names the orders that it follows, and the process leases no shards until it gets an answer. So a repeated
    report, or one for an earlier master, does not release shards that were leased later.
    """
    given = member.orders.version if member.orders is not None else 0
    return member.let_go_version < version <= given


def let_go(state: JobState, member: Member, version: int, effects: list[Effect]) -> None:
    """Releases the shards of an idle worker, whose pushes are applied and acknowledged."""
    if lets_go(member, version):
        member.let_go_version = version
        for queue in state.queues:
            state.ledger(queue.lose(member.name, blame=False, outcome="given back"), effects)
