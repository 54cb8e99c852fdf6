"""Handling of pods that fail, are silent or vanish: replacement, rollback, failure of the job.

Pure. A worker's shards go back to the queue; a lost server costs a rollback to the last complete record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastrec.platform.clusters.pods import EndReason
from elastrec.platform.master.machine import leasing, migration, rollback, saving, stages, stalls
from elastrec.platform.master.machine.effects import Decided, Effect
from elastrec.platform.master.machine.events import PodFailed, PodGone, PodRegistered, PodSilent, Ticked
from elastrec.platform.master.machine.saves import PAUSING
from elastrec.platform.master.pods import more_memory, shape, succession
from elastrec.platform.master.pods.launch import pod_name
from elastrec.platform.master.pods.loss_causes import is_taken_away
from elastrec.platform.master.pods.membership import Member
from elastrec.platform.specs.metrics import Phase, Role
from elastrec.platform.specs.text.quantities import format_bytes
from elastrec.platform.transport.messages.observer import ShapeOutcome

if TYPE_CHECKING:
    from elastrec.platform.master.machine.state import JobState

TAKEN_AWAY_PER_RESTART = 5
"""Factor of `pod_restarts` for losses that the cluster caused."""
_SPEC_NAME = {Role.WORKER: "worker", Role.PARAMETER_SERVER: "parameter_server"}
_WITH_MODEL = (Phase.TRAINING, Phase.SAVING, Phase.EVALUATING)


def pod_failed(state: JobState, event: PodFailed, effects: list[Effect]) -> None:
    member = state.membership.members.get(event.pod)
    if member is None or member.incarnation != event.incarnation or state.phase.is_final:
        return
    if not event.retryable:
        state.fail(f"pod {event.pod} failed and would fail again: {event.reason}", effects, event.traceback)
        return
    culprit = (event.shard.stream, event.shard.number) if event.shard is not None else None
    # If a worker names no shard, the cause is something else, such as a lost connection or a full disk.
    blame = culprit is not None
    _lose(state, member, event.reason, effects, delete=False, blame=blame, culprit=culprit, detail=event.traceback)


def pod_silent(state: JobState, event: PodSilent, effects: list[Effect]) -> None:
    member = state.membership.members.get(event.pod)
    if member is None or member.incarnation != event.incarnation or state.phase.is_final:
        return
    seconds = f"{event.silent_seconds:.1f} s"
    never = f"its process was not ready to work after {seconds} (spec.faults.start_timeout)"
    _lose(state, member, f"no heartbeat for {seconds}" if event.incarnation else never, effects, delete=True)


def pod_gone(state: JobState, event: PodGone, effects: list[Effect]) -> None:
    member = state.membership.members.get(event.pod)
    if member is None or member.uid != event.uid:
        return
    if state.phase.is_final:
        failed = state.phase is Phase.FAILED and event.end is not EndReason.COMPLETED
        dismiss(state, member, effects, delete=not failed)
        return
    code = "" if event.exit_code is None else f" with exit code {event.exit_code}"
    reason = f"ended{code} ({event.end})"
    # The log of a pod on a lost node cannot be read, and until the pod is deleted, it uses quota that its successor
    # needs.
    was_retiring = member.retiring
    dismiss(state, member, effects, delete=was_retiring or event.end is EndReason.NODE_LOST)
    if was_retiring:
        return
    if event.end is EndReason.OUT_OF_MEMORY:
        _out_of_memory(state, member, effects)
    elif event.end is EndReason.BAD_INPUT:
        state.fail(f"pod {event.pod} {reason}: the same code would fail again", effects, event.message)
    else:
        taken_away = is_taken_away(event.end)
        _lose(state, member, reason, effects, delete=False, taken_away=taken_away, detail=event.message)


def process_replaced(state: JobState, member: Member, event: PodRegistered, effects: list[Effect]) -> None:
    """Another process registered under the pod's name: the old process has ended, but not the pod."""
    reason, request = "its process was replaced", succession.request_behind(state, member)
    if request is None and not _count(state, member, reason, effects, taken_away=False, detail=""):
        return
    effects.append(Decided(decision="process_replaced", inputs={"pod": member.name, "phase": str(state.phase)}))
    if member.role is Role.WORKER:
        _lose_shards(state, member, effects, reason, culprit=None, blame=True)
    elif state.phase in _WITH_MODEL and (
        _lost_rows(state, member, event.restored_order_id) or migration.is_lost_with(state, member.name)
    ):
        rollback.recover(state, f"{member.name}: {reason}", effects)
    else:
        migration.process_replaced(state, member.name)
    if request is not None and not state.phase.is_final:
        succession.count_loss(state, member, request, reason, effects)


def _lost_rows(state: JobState, member: Member, restored_order_id: str) -> bool:
    is_owner = member.name in state.ownership.servers
    return is_owner and not state.recovery.is_in_force(member.name, restored_order_id)


def ticked(state: JobState, event: Ticked, effects: list[Effect]) -> None:
    phases = state.phases
    if phases.phase.is_final:
        if state.exit_deadline is not None and state.exit_deadline <= state.time:
            state.exit_deadline = None
            for member in list(state.membership.members.values()):
                dismiss(state, member, effects, delete=True)
        return
    migration.ticked(state, effects)
    shape.ticked(state, event, effects)
    stalls.ticked(state, event, effects)
    more_memory.ticked(state, event, effects)
    succession.ticked(state, effects)
    pausing = state.saves.quiescing
    for save in list(state.saves.under_way.values()):
        saving.ticked(state, save, effects)
    if state.saves.is_paused:
        # Leases do not expire meanwhile.
        if pausing is not None and pausing.stage == PAUSING and pausing.since + state.plan.lease_seconds <= state.time:
            for worker in leasing.moving_workers(state):
                if not phases.phase.is_final:
                    _lose(state, worker, "did not pause for a save in time", effects, delete=True)
        return
    for server in stages.late_restorers(state):
        if not phases.phase.is_final:
            timeout = f"{state.plan.restore_timeout_seconds:g} s (spec.faults.restore_timeout)"
            uri = state.recovery.uri or "the start from nothing"
            _lose(state, server, f"has not restored {uri}: it read nothing for {timeout}", effects, delete=True)
    running = {Phase.TRAINING: state.training, Phase.EVALUATING: state.evaluation}.get(phases.phase)
    for pod in running.late(state.time) if running else []:
        holder = state.membership.members.get(pod)
        if holder is not None and not phases.phase.is_final:
            seconds = state.plan.lease_seconds
            _lose(state, holder, f"no progress on its shards for {seconds:g} s", effects, delete=True)


def _out_of_memory(state: JobState, member: Member, effects: list[Effect]) -> None:
    state.membership.memory_kills += 1
    # While a resize is awaited, the pod still has its earlier size.
    limit = member.memory_bytes if member.awaits_size else member.asked.memory_bytes
    was_copying = _gives_up_copying(state, member, limit, effects)
    if member.oom_bytes == limit and not was_copying:
        role = _SPEC_NAME[member.role]
        state.fail(
            f"pod {member.name} was killed for memory twice in a row at {format_bytes(limit)}; raise "
            f"spec.resources.{role}.memory above that, or spec.scaling.maximum_{role}_memory, up to which the job "
            "doubles it by itself where the cluster has the room",
            effects,
        )
        return
    if succession.request_behind(state, member) is None:
        more_memory.double(state, member, limit, effects)
    # Without the copies, its successor has the room that it had before.
    oom_bytes = 0 if was_copying else limit
    _lose(state, member, f"ended ({EndReason.OUT_OF_MEMORY})", effects, delete=False, oom_bytes=oom_bytes)


def _gives_up_copying(state: JobState, member: Member, limit_bytes: int, effects: list[Effect]) -> bool:
    """Undoes a change of servers for which an owner was killed for memory while it copied the buckets that it was to
    take over, unless its successor has more memory: the change would begin again, and the next kill fail the job.

    Returns whether it was undone.
    """
    under_way, role = state.migration, member.role
    most = max(state.plan.most_memory_bytes.get(role, 0), state.wanted_shape[role].size.memory_bytes)
    is_copying = under_way is not None and under_way.stage == migration.COPYING and member.name in under_way.sources
    if under_way is None or not is_copying or member.name not in state.ownership.servers or most > limit_bytes:
        return False
    reason = (
        f"{member.name} was killed for memory at {format_bytes(limit_bytes)} while it copied the rows that it was to "
        "take over; ask for more memory per server, or for more servers"
    )
    stalls.undo(state, under_way, ShapeOutcome.FAILED, reason, effects)
    return True


def _lose(
    state: JobState,
    member: Member,
    reason: str,
    effects: list[Effect],
    *,
    delete: bool,
    taken_away: bool = False,
    blame: bool = True,
    culprit: tuple[str, int] | None = None,
    detail: str = "",
    oom_bytes: int = 0,
) -> None:
    """Treats a pod as dead and replaces it.

    Args:
        taken_away: whether the cluster or a user ended it, so that neither the pod nor its shard is the cause.
        blame: whether the shard of a worker may be the cause; `culprit`: its stream and number if known.
    """
    if member.role is Role.WORKER:
        blame = blame and not taken_away and not member.retiring
        _lose_shards(state, member, effects, reason, culprit=culprit, blame=blame, detail=detail)
        if state.phase.is_final:
            return
    if member.retiring:
        dismiss(state, member, effects, delete=delete)
        return
    request = succession.request_behind(state, member)
    if request is not None:
        succession.newcomer_lost(state, member, request, reason, effects, delete=delete, is_hopeless=bool(oom_bytes))
        return
    if not _count(state, member, reason, effects, taken_away=taken_away, detail=detail):
        return
    if member.name in state.membership.members:
        dismiss(state, member, effects, delete=delete)
    successor = _successor(state, member, oom_bytes)
    # If the pod never worked, the last kill remains that of its predecessor.
    successor.oom_bytes = oom_bytes or (0 if member.is_registered else member.oom_bytes)
    successor.reason = reason
    more_memory.wait_for_room(state, successor)
    is_owner = member.name in state.ownership.servers
    rolls_back = state.phase in _WITH_MODEL if is_owner else migration.is_lost_with(state, member.name)
    replaced(state, member, successor, reason, effects, rolls_back=rolls_back)
    if is_owner:
        # The other pods keep their orders.
        state.recovery.order(successor.name, state.time)
        state.ownership.take_over(member.name, successor.name)
    if rolls_back:
        rollback.recover(state, f"{member.name}: {reason}", effects)


def replaced(
    state: JobState, lost: Member, successor: Member, reason: str, effects: list[Effect], *, rolls_back: bool = False
) -> None:
    """Logs a lost pod and its replacement; `rolls_back`: whether the job rolls back because of it."""
    inputs = {
        "pod": lost.name, "by": successor.name, "reason": reason, "phase": str(state.phase),
        "fault": state.faults.pod_lost(state, lost, successor, rolls_back=rolls_back),
    }  # fmt: skip
    effects.append(Decided(decision="pod_replaced", inputs=inputs))


def _successor(state: JobState, member: Member, oom_bytes: int) -> Member:
    """The pod that replaces a lost one.

    If the lost pod was being replaced: its successor if that works, otherwise a pod of the same kind, which is then
    replaced. The successor that is starting takes its place at once if the lost pod was ended after a notice, because
    the node was not the cause, or if it was killed for memory and the successor has more, because another pod of its
    size would be killed again.

    Args:
        oom_bytes: memory limit at which it was killed for memory; 0: it ended otherwise.
    """
    size = state.wanted_shape[member.role].size
    takes_starting = member.has_notice or 0 < oom_bytes < size.memory_bytes
    if member.outgoing:
        stand_in = succession.stand_in(state, member, may_be_starting=takes_starting)
        if stand_in is not None:
            return stand_in
    if not member.outgoing or member.has_notice:
        return state.membership.add(member.role, member.index, size, state.time, avoids_nodes=member.avoids_nodes)
    successor = state.membership.add(member.role, member.index, member.asked, state.time)
    successor.outgoing, successor.outgoing_for = member.outgoing, member.outgoing_for
    return successor


def _lose_shards(
    state: JobState,
    member: Member,
    effects: list[Effect],
    reason: str,
    *,
    culprit: tuple[str, int] | None,
    blame: bool,
    detail: str = "",
) -> None:
    for queue in state.queues:
        is_blamed = blame and (culprit is None or culprit[0] == queue.stream)
        culprit_number = culprit[1] if culprit is not None else None
        state.ledger(queue.lose(member.name, blame=is_blamed, culprit=culprit_number), effects)
        number = queue.poison(state.plan.shard_attempts)
        if number is not None:
            state.poisoned = queue.split(number)
            state.fail(
                f"{state.poisoned} failed {queue.failures[number].count} times in a row without getting further and is "
                f"marked as poisoned; the last time {member.name}: {reason}",
                effects,
                detail,
            )
            return


def _count(
    state: JobState, member: Member, reason: str, effects: list[Effect], *, taken_away: bool, detail: str
) -> bool:
    """Counts a loss of the place, which progress resets; returns False if the job has failed because of it."""
    restarts = state.plan.pod_restarts
    streak = state.membership.count_loss(member, taken_away=taken_away)
    if streak.failures > restarts:
        losses, limit = f"failed {streak.failures} times", f"spec.faults.pod_restarts {restarts} allows"
    elif streak.taken_away > TAKEN_AWAY_PER_RESTART * restarts:
        losses = f"was ended by the cluster {streak.taken_away} times"
        limit = f"{TAKEN_AWAY_PER_RESTART} times spec.faults.pod_restarts {restarts}"
    else:
        return True
    place = pod_name(state.plan.job_id, member.role, member.index)
    state.fail(
        f"pod {place} {losses} in a row while the job made no progress, more than {limit}; "
        f"the last time, {member.name}: {reason}",
        effects,
        detail,
    )
    return False


def dismiss(state: JobState, member: Member, effects: list[Effect], *, delete: bool) -> None:
    """Removes a pod from the job: it is deleted, or has ended by itself and is kept for its logs."""
    if member.retiring and member.role is Role.WORKER:
        for queue in state.queues:
            state.ledger(queue.lose(member.name, blame=False), effects)
    state.membership.remove(member.name, delete=delete)
    state.recovery.forget(member.name)
