"""Leases of shards: which workers get them, answers without shards, and workers that must pause for a save. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastrec.platform.master.machine.effects import AnswerLease, Effect
from elastrec.platform.master.machine.events import ShardsAsked
from elastrec.platform.master.machine.saves import PAUSING
from elastrec.platform.master.machine.shards import ShardQueue
from elastrec.platform.master.pods.membership import Member
from elastrec.platform.specs.metrics import Phase
from elastrec.platform.transport.messages.job import LeaseState, Shard

if TYPE_CHECKING:
    from elastrec.platform.master.machine.state import JobState


def _worker_of(state: JobState, event: ShardsAsked) -> Member | None:
    """The requesting worker; None if it or its generation is not valid any more."""
    member = state.membership.members.get(event.pod)
    known = member is not None and member.incarnation == event.incarnation and not member.retiring
    return member if known and event.generation == state.phases.generation else None


def _may_lease(state: JobState, member: Member, event: ShardsAsked) -> bool:
    """Whether a worker gets shards of that kind now."""
    wanted = Phase.TRAINING if event.kind == "train" else Phase.EVALUATING
    return state.phase is wanted and not state.saves.is_paused and event.count > 0 and not member.is_idle


def _shards_for(state: JobState, member: Member, queue: ShardQueue, event: ShardsAsked) -> list[Shard]:
    """The shards for a request.

    A repeated request, whose answer was lost, always gets its shards again, because the pod already holds their leases.
    """
    if not _may_lease(state, member, event) and not queue.is_repeated(event.pod, event.request_id):
        return []
    return queue.lease(event.pod, event.request_id, event.count, state.time)


def answer_unchanged(state: JobState, event: ShardsAsked) -> AnswerLease | None:
    """The answer to a request that does not change the state, so that polling is not journalled; None if it does.

    A repeated request does not: it gets the shards of the first answer.
    """
    member = _worker_of(state, event)
    if member is None:
        return AnswerLease(state=LeaseState.STALE)
    queue = state.queue_of_kind(event.kind)
    if any(state.queue(report.stream).changes_state(event.pod, report) for report in event.progress):
        return None
    may_lease = _may_lease(state, member, event)
    if may_lease and queue.would_change(event.pod, event.request_id):
        return None
    shards = _shards_for(state, member, queue, event)
    starved = may_lease and not shards and event.pod not in queue.held
    return None if starved != member.starved else _lease_answer(queue, shards)


def shards_asked(state: JobState, event: ShardsAsked, effects: list[Effect]) -> None:
    member = _worker_of(state, event)
    if member is None:
        effects.append(AnswerLease(state=LeaseState.STALE))
        return
    state.take_progress(event.pod, event.generation, event.progress, effects)
    queue = state.queue_of_kind(event.kind)
    shards = _shards_for(state, member, queue, event)
    starved = _may_lease(state, member, event) and not shards and event.pod not in queue.held
    if starved != member.starved:
        state.membership.starve(member, starved, is_synchronous=state.plan.is_synchronous)
    effects.append(_lease_answer(queue, shards))


def _lease_answer(queue: ShardQueue, shards: list[Shard]) -> AnswerLease:
    if shards:
        return AnswerLease(state=LeaseState.GRANTED, shards=shards)
    return AnswerLease(state=LeaseState.DONE if queue.is_done else LeaseState.WAIT)


def moving_workers(state: JobState) -> list[Member]:
    """Workers that have not paused yet, for which a save waits.

    A worker without shards has no pushes that are not applied and acknowledged, and gets no shards now. So saves do not
    wait for a process that is loading its model, which may take longer than the interval between two saves.
    """
    save = state.saves.quiescing
    if save is None or save.stage != PAUSING:
        return []
    return [
        worker
        for worker in state.membership.workers()
        if worker.is_registered and worker.name in state.training.held and worker.reached_version < save.version
    ]
