"""The progress of a job without faults: start, periodic records, the final record, evaluation, success. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastrec.platform.master.machine import leasing, migration, notice, stages
from elastrec.platform.master.machine.effects import CommitRecord, Decided, Effect
from elastrec.platform.master.machine.recovery import CompleteRecord
from elastrec.platform.master.machine.saves import COMMITTING, PAUSING, WRITING, Base, Save
from elastrec.platform.master.pods import orders, shape
from elastrec.platform.specs.metrics import Phase, Role

if TYPE_CHECKING:
    from elastrec.platform.master.machine.state import JobState

FINAL_SAVE_ATTEMPTS = 3
_FINAL_RETRY_SECONDS = 2.0
_STORE_AWAY_SECONDS = 10.0


def step(state: JobState, time: float, effects: list[Effect]) -> bool:
    """Takes one step if one is due; returns whether something changed, so that another step may be due."""
    phases, saves = state.phases, state.saves
    if phases.phase is Phase.PENDING and any(m.is_registered for m in state.membership.members.values()):
        return _move(state, Phase.STARTING, effects)
    if phases.phase in (Phase.STARTING, Phase.RECOVERING):
        return _begin_work(state, time, effects)
    if migration.blocks_saves(state):
        return False
    if phases.phase is Phase.TRAINING and state.training.is_done:
        return _finish_training(state, effects)
    if saves.under_way and any(_push_save(state, save, effects) for save in list(saves.under_way.values())):
        return True
    if notice.step(state, effects):
        return True
    is_due = saves.is_asked or bool(state.due_orders) or (saves.next_save is not None and saves.next_save <= time)
    if is_due and saves.quiescing is None and phases.phase in (Phase.TRAINING, Phase.SAVING):
        return _begin_save(state, effects)
    if phases.phase is Phase.EVALUATING and state.evaluation.is_done:
        effects.append(Decided(decision="job_succeeded", inputs={"samples_trained": state.training.samples}))
        state.finish(Phase.SUCCEEDED, "", effects)
        return True
    return False


def _move(state: JobState, to: Phase, effects: list[Effect]) -> bool:
    before = state.phase
    state.phases.move(to, state.time)
    effects.append(
        Decided(
            decision="phase_changed",
            inputs={"before": str(before), "after": str(to), "generation": state.phases.generation},
        )
    )
    return True


def _begin_work(state: JobState, time: float, effects: list[Effect]) -> bool:
    servers_ready = not state.recovery.awaited() and all(server.address for server in state.owners())
    # One worker is enough, because a job must not wait if there is no room for a second one.
    if not servers_ready or not any(w.is_registered and not w.retiring for w in state.membership.workers()):
        return False
    state.reason = ""
    orders.give_due(state, effects)
    _move(state, state.phases.resume, effects)
    # Of a change of servers that a rollback ended, and that was not wanted any more before its end.
    migration.dismiss_spare(state, effects)
    state.training.rearm(time)
    state.evaluation.rearm(time)
    for worker in state.membership.workers():
        state.membership.starve(worker, False, is_synchronous=state.plan.is_synchronous)
    _schedule(state)
    return True


def _schedule(state: JobState, *, hangs: bool = False) -> None:
    """Sets the time of the next periodic record; if the store hangs, it is later by the timeout of a save."""
    interval = state.plan.save_interval_seconds
    periodic = state.phase is Phase.TRAINING and interval > 0
    pause = max(interval, state.plan.save_timeout_seconds) if hangs else interval
    state.saves.next_save = state.time + pause if periodic else None


def _finish_training(state: JobState, effects: list[Effect]) -> bool:
    saves = state.saves
    save = saves.quiescing
    if saves.under_way and (save is None or save.stage != PAUSING):
        # A record that is being written is complete before the final record, and is the newest one if the final record
        # fails.
        return any(_push_save(state, other, effects) for other in list(saves.under_way.values()))
    _move(state, Phase.SAVING, effects)
    if save is not None:
        save.is_final, save.base = True, None
        return True
    return _begin_save(state, effects)


def _begin_save(state: JobState, effects: list[Effect]) -> bool:
    save = state.saves.begin(
        f"save-{state.phases.next_order()}",
        step=state.training.samples,
        is_final=state.phase is Phase.SAVING,
        version=state.phases.next_version,
        time=state.time,
        deltas=state.plan.deltas,
    )
    effects.append(
        Decided(decision="save_begun", inputs={"order": save.order_id, "step": save.step, "is_final": save.is_final})
    )
    return True


def _push_save(state: JobState, save: Save, effects: list[Effect]) -> bool:
    if save.stage == PAUSING:
        if leasing.moving_workers(state):
            return False
        # No worker is within a step, and workers begin a step only after they were informed of the end of the pause.
        orders.give_due(state, effects)
        save.positions, save.rows = state.positions(), state.training.covered_rows()
        save.unsaved = (state.times.unsaved_training, state.times.unsaved_waiting)
        save.times = dict(state.times.seconds)
        save.cut_time = state.time
        save.enter(WRITING, state.time)
        return True
    if save.stage == WRITING:
        if problems := save.problems():
            failed(state, save, "; ".join(problems), effects, store_away=save.is_store_away())
            return True
        # There is no training after the final record, so workers pause until it is complete.
        if save.quiesce and not save.is_final and not stages.unfrozen(state, save):
            _end_pause(state, save)
            return True
        if stages.writers(state, save):
            return False
        save.enter(COMMITTING, state.time)
        effects.append(commit_effect(state, save))
        return True
    return False


def commit_effect(state: JobState, save: Save) -> CommitRecord:
    """The manifest to write for a save in its last stage."""
    assert save.positions is not None
    return CommitRecord(
        order_id=save.order_id,
        uri=save.uri,
        is_final=save.is_final,
        step=save.step,
        generation=state.phases.generation,
        parts=list(save.parts.values()),
        positions=save.positions,
        damaged=state.recovery.damaged,
        base=save.base.uri if save.base else "",
        shape=shape.reached(state),
        orders=state.standing_orders,
        times=save.times,
    )


def committed(state: JobState, order_id: str, base: str, effects: list[Effect]) -> None:
    """The record is complete: rollbacks return to it, and the job continues.

    Args:
        base: see CompleteRecord.
    """
    save = state.saves.under_way.get(order_id)
    if save is None or save.positions is None:
        _found_late(state, order_id, base, effects)
        return
    _end_save(state, save)
    state.reason = ""
    state.times.saved(save.unsaved)
    _keep_record(state, save, base, effects)
    if save.is_final:
        _move(state, Phase.EVALUATING, effects)
    else:
        state.saves.last_seconds = state.time - save.begun
        _schedule(state)


def _keep_record(state: JobState, save: Save, base: str, effects: list[Effect]) -> None:
    saves = state.saves
    assert save.positions is not None
    _count_progress(state, save)
    record = CompleteRecord(save.uri, save.positions, save.is_final, save.step, base)
    state.recovery.add_record(record, state.plan.kept_records)
    if save.in_memory:
        saves.held_in_memory(save)
    saves.record_time = save.cut_time
    # Older records of this generation may be complete, too; no rollback returns to them, and they are pruned.
    saves.unknown = []
    saves.base = Base(save.order_id, save.uri, save.base.deltas + 1 if save.base else 0)
    saves.completed += 1
    saves.note_success()
    saves.final_failures = 0
    effects.append(Decided(decision="record_committed", inputs={"record": save.uri, "step": save.step}))


def _found_late(state: JobState, order_id: str, base: str, effects: list[Effect]) -> None:
    """A commit has succeeded after the job stopped waiting for it."""
    saves = state.saves
    if saves.committing_has_ended(order_id):
        return
    save = saves.take_unknown(order_id)
    if save is None or state.phase.is_final:
        return
    state.times.saved(save.unsaved)
    _keep_record(state, save, base, effects)
    if not save.is_final:
        _schedule_sooner(state)
        return
    # There was no training since, so the current try is not needed.
    saves.next_save = None
    for retry in list(saves.under_way.values()):
        saves.end(retry)
        stages.abandon(state, retry, is_committing=retry.stage == COMMITTING)
    state.reason = ""
    _move(state, Phase.EVALUATING, effects)


def _schedule_sooner(state: JobState) -> None:
    """The store has answered, so the next periodic record is due after the usual time."""
    saves, interval = state.saves, state.plan.save_interval_seconds
    if state.phase is Phase.TRAINING and saves.next_save is not None and interval > 0:
        saves.next_save = min(saves.next_save, state.time + interval)


def _count_progress(state: JobState, save: Save) -> None:
    """A record with more rows than any record before resets the failure counts, because no rollback undoes these rows.

    Without this condition, a job whose pods crash immediately would continue forever by saving the same state again.
    """
    if save.rows <= state.recovery.saved_rows:
        return
    state.recovery.saved_rows = save.rows
    for role in (Role.WORKER, Role.PARAMETER_SERVER):
        state.membership.made_progress(role)
    for server in state.membership.servers():
        server.oom_bytes = 0


def record_failed(state: JobState, order_id: str, reason: str, effects: list[Effect], *, store_away: bool) -> None:
    """The commit of a save has failed, perhaps after the job stopped waiting for it."""
    saves = state.saves
    if (under_way := saves.under_way.get(order_id)) is not None:
        failed(state, under_way, reason, effects, store_away=store_away)
    elif not saves.committing_has_ended(order_id) and (save := saves.take_unknown(order_id)) is not None:
        stages.abandon(state, save)
        saves.failures -= 1  # it was counted when it became unknown
        _note_failure(state, save, reason, effects)
        _schedule_sooner(state)


def _note_failure(state: JobState, save: Save, reason: str, effects: list[Effect]) -> None:
    state.saves.failed += 1
    state.saves.note_failure(reason, state.time)
    # The next record is a full one, so that it does not depend on a possibly damaged base.
    state.saves.base = None
    inputs = {"order": save.order_id, "is_final": save.is_final, "reason": reason, "total": state.saves.failed}
    effects.append(Decided(decision="save_failed", inputs=inputs))


def failed(
    state: JobState, save: Save, reason: str, effects: list[Effect], *, store_away: bool = False, hangs: bool = False
) -> None:
    """A save has failed: training continues until the next interval; the final record is tried three times.

    Args:
        store_away: the store is not reachable; the final record waits for it without a limit.
        hangs: the store does not answer; the next periodic record is due later.
    """
    _end_save(state, save)
    stages.abandon(state, save)
    _note_failure(state, save, reason, effects)
    if not save.is_final:
        _schedule(state, hangs=hangs)
    elif store_away:
        state.reason = f"the final record waits for the checkpoint store: {reason}"
        state.saves.next_save = state.time + _STORE_AWAY_SECONDS
    else:
        _final_failed(state, reason, effects)


def unknown(state: JobState, save: Save, reason: str, effects: list[Effect]) -> None:
    """A commit has not ended in time: training continues; the record is valid if it is found complete later."""
    _end_save(state, save)
    state.saves.unknown.append(save)
    state.saves.note_failure(reason, state.time)
    inputs = {"order": save.order_id, "is_final": save.is_final, "reason": reason}
    effects.append(Decided(decision="save_unknown", inputs=inputs))
    if save.is_final:
        _final_failed(state, reason, effects)
    else:
        _schedule(state, hangs=True)


def _end_save(state: JobState, save: Save) -> None:
    state.saves.end(save)
    if save.quiesce:
        _end_pause(state, save)


def _end_pause(state: JobState, save: Save) -> None:
    save.quiesce = False
    if state.saves.held_since is None:
        state.training.resume(state.time, state.time - save.begun)


def _final_failed(state: JobState, reason: str, effects: list[Effect]) -> None:
    saves = state.saves
    saves.final_failures += 1
    if saves.final_failures >= FINAL_SAVE_ATTEMPTS:
        state.fail(f"the final record could not be written in {FINAL_SAVE_ATTEMPTS} tries: {reason}", effects)
    else:
        saves.next_save = state.time + _FINAL_RETRY_SECONDS * saves.final_failures


def ticked(state: JobState, save: Save, effects: list[Effect]) -> None:
    """Checks whether the stage of a save is late."""
    if (deadline := stages.save_deadline(state, save)) is None or deadline > state.time:
        return
    timeout = f"{state.plan.save_timeout_seconds:g} s (spec.faults.save_timeout)"
    if save.stage == WRITING:
        names = ", ".join(server.name for server in stages.late_writers(state, save))
        failed(state, save, f"{names} wrote nothing for {timeout}", effects, hangs=True)
    elif save.stage == COMMITTING:
        unknown(state, save, f"its manifest was not written for {timeout}", effects)
