"""Rollbacks: all servers and shards return to the last complete record, in a new generation. Pure.

All servers are ordered to restore.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastrec.platform.master.machine import migration, stages
from elastrec.platform.master.machine.effects import Decided, Effect
from elastrec.platform.master.machine.saves import COMMITTING
from elastrec.platform.master.pods.membership import Member
from elastrec.platform.specs.metrics import Phase
from elastrec.platform.transport.messages.job import RestoreProblem

if TYPE_CHECKING:
    from elastrec.platform.master.machine.state import JobState


def recover(state: JobState, reason: str, effects: list[Effect]) -> None:
    """A server and its rows are lost."""
    state.phases.move(Phase.RECOVERING, state.time)
    _roll_back(state, reason, effects)


def record_damaged(state: JobState, member: Member, problem: RestoreProblem, effects: list[Effect]) -> None:
    """A server could not restore a record: the job returns to the record before it, with its positions.

    After the job's own records come its start records, with the positions of its beginning. A job that started without
    a record starts again without one; any other job fails if no undamaged record is left.
    """
    recovery = state.recovery
    if not is_restoring(state, member, problem.order_id):
        return
    ordered = recovery.servers[member.name].order.uri
    damaged = problem.record or ordered
    # If it is a base of the ordered record, all records between them are unusable, and none of them is tried.
    recovery.give_up_record(damaged)
    recovery.give_up_record(ordered)
    effects.append(
        Decided(
            decision="record_damaged",
            inputs={"record": damaged, "pod": member.name, "reason": problem.reason},
        )
    )
    if recovery.record is None and recovery.start_record is None:
        state.fail(
            f"no undamaged record is left to go back to; the last: {problem.reason}; set spec.continual.start_from to "
            "another record, or to nothing to train from scratch",
            effects,
        )
        return
    _roll_back(state, f"the record {damaged} is damaged", effects)


def is_restoring(state: JobState, member: Member, order_id: str) -> bool:
    """Whether the job waits for that server to execute that restore order."""
    return stages.is_restoring(state) and state.recovery.is_in_force(member.name, order_id)


def _roll_back(state: JobState, reason: str, effects: list[Effect]) -> None:
    phases, saves, recovery = state.phases, state.saves, state.recovery
    record = recovery.record
    phases.resume = Phase.EVALUATING if record is not None and record.is_final else Phase.TRAINING
    positions = record.positions if record is not None else state.plan.start_positions
    trained_rows = state.training.covered_rows()
    # Leases belong to the generation that ends here.
    state.ledger(state.training.restore(positions.of(state.training.stream) if positions else None), effects)
    for worker in state.membership.workers():
        state.ledger(state.evaluation.lose(worker.name, blame=False, outcome="rolled back"), effects)
    if phases.resume is Phase.TRAINING:
        # The evaluation of a damaged final record is not that of the final model.
        state.ledger(state.evaluation.restore(None), effects)
        state.evaluation_sketch = b""
    phases.begin_generation()
    for save in [*saves.unknown, *saves.under_way.values()]:
        # Records that are found complete from now on contain rows that are trained again.
        stages.abandon(state, save, is_committing=save.stage == COMMITTING)
    saves.unknown, saves.under_way, saves.held_since = [], {}, None
    recovery.roll_back(phases.next_order())
    migration.cancel(state, reason, effects)
    for server in state.owners():
        recovery.order(server.name, state.time)
    repeated_seconds = state.times.rolled_back()
    state.reason = reason
    number = state.faults.rolled_back(state, trained_rows - state.training.covered_rows(), repeated_seconds)
    inputs = {
        "reason": reason, "generation": phases.generation, "record": recovery.uri or "from nothing", "fault": number,
    }  # fmt: skip
    effects.append(Decided(decision="rollback", inputs=inputs))
