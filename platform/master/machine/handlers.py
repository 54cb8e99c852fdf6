"""Handlers of events: one function per kind, here or in the module of its subject."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from elastrec.platform.master.machine import leasing, migration, notice, rollback, saving, stages, stalls
from elastrec.platform.master.machine.effects import Decided, Effect
from elastrec.platform.master.machine.events import (
    Begun,
    Measured,
    OwnerChanged,
    PodDeleted,
    PodFailed,
    PodGone,
    PodOrdered,
    PodRefused,
    PodRegistered,
    PodReported,
    PodResized,
    PodSeen,
    PodSilent,
    PodSlow,
    RecordCommitted,
    RecordFailed,
    ResizeRefused,
    Restarted,
    SaveAsked,
    ServerHot,
    ShapeAsked,
    ShapeCancelled,
    ShardsAsked,
    StopAsked,
    TermBegun,
    Ticked,
    WorkersOrdered,
)
from elastrec.platform.master.machine.saves import COMMITTING
from elastrec.platform.master.measuring.time_profile import WITHOUT_MASTER
from elastrec.platform.master.pods import losses, more_memory, orders, shape, succession
from elastrec.platform.specs.metrics import Phase, Role
from elastrec.platform.specs.text import plain_words

if TYPE_CHECKING:
    from elastrec.platform.master.machine.state import JobState


def _term_begun(state: JobState, event: TermBegun, effects: list[Effect]) -> None:
    state.address = event.address
    if state.phases.term:
        state.phases.begin_next_term(event.term)
        effects.append(Decided(decision="term_begun", inputs={"term": event.term, "address": event.address}))
        return
    resumed = event.resumed.records if event.resumed else []
    state.phases.begin_first_term(event.term)
    state.recovery.resume_from(state.phases.orders, resumed)
    state.ownership.begin(state.phases.version)
    record = state.recovery.record
    if record is not None and record.is_final:
        state.phases.resume = Phase.EVALUATING
    if event.resumed is None or record is None:
        return
    state.is_resumed = True
    # Discarded rows count as trained, too, so the steps of this term's records are higher than that of the one before.
    state.begin_at(record.uri, record.positions, max(record.step, event.resumed.trained_rows))
    state.wanted_shape = event.resumed.shape or state.wanted_shape
    state.standing_orders = event.resumed.orders
    state.begin_after(event.resumed.times)
    other_sizes = state.wanted_shape.change_from(state.plan.shape)
    effects.append(
        Decided(
            decision="job_resumed",
            inputs={
                "term": event.term,
                "record": record.uri,
                "step": record.step,
                "covered_rows": state.training.covered_rows(),
                "total_rows": state.plan.training.total_rows,
                "repeated_rows": state.training.samples - max(record.step, state.training.covered_rows()),
                "generation": state.phases.generation,
                "other_sizes": ", ".join(plain_words.places(other_sizes)),
                "orders": orders.in_words(event.resumed.orders),
            },
        )
    )


def _begun(state: JobState, event: Begun, effects: list[Effect]) -> None:
    plan = state.plan
    for role, places in state.wanted_shape.places.items():
        for index in range(places.count):
            member = state.membership.add(role, index, places.size, event.time)
            if role is Role.PARAMETER_SERVER:
                state.recovery.order(member.name, event.time)
    state.ownership.assign([server.name for server in state.membership.servers()], plan.virtual_buckets)
    inputs = {
        "workers": state.wanted_shape[Role.WORKER].count,
        "parameter_servers": state.wanted_shape[Role.PARAMETER_SERVER].count,
        "record": state.recovery.uri,
        "samples": state.samples_before,
    }
    effects.append(Decided(decision="job_begun", inputs=inputs))


def _restarted(state: JobState, event: Restarted, effects: list[Effect]) -> None:
    phases = state.phases
    if not phases.phase.is_final:
        state.times.add(WITHOUT_MASTER, event.away_seconds)
        state.times.suspended(event.suspended_seconds)
        inputs = {
            "away_seconds": round(event.away_seconds, 3), "suspended_seconds": round(event.suspended_seconds, 3),
        }  # fmt: skip
        effects.append(Decided(decision="master_resumed", inputs=inputs))
    state.training.rearm(event.time)
    state.evaluation.rearm(event.time)
    committing = [save for save in state.saves.under_way.values() if save.stage == COMMITTING]
    effects.extend(saving.commit_effect(state, save) for save in committing)
    stages.begin_anew(state)
    migration.keep_time(state)
    succession.keep_time(state)
    stalls.restarted(state, event.suspended_seconds)
    if not phases.phase.is_final:
        effects.extend(saving.commit_effect(state, save) for save in state.saves.unknown)
    if event.away_seconds:
        # Another process may have written these manifests; no process is writing them now.
        for entry in state.saves.abandoned.values():
            entry.is_committing = False
    if state.exit_deadline is not None:
        state.exit_deadline = event.time + state.plan.exit_seconds


def _seen(state: JobState, event: PodSeen, effects: list[Effect]) -> None:
    state.membership.seen(event.pod, event.uid)


def _registered(state: JobState, event: PodRegistered, effects: list[Effect]) -> None:
    member = state.membership.members.get(event.pod)
    if member is None or member.role is not event.role or state.phase.is_final:
        return
    if event.incarnation in member.superseded:
        # The last one that registered stays. Otherwise two running processes would replace each other until the failure
        # limit is reached.
        return
    if member.is_held_by_another(event.incarnation):
        losses.process_replaced(state, member, event, effects)
        if state.phase.is_final:
            return
        member.superseded.append(member.incarnation)
    elif not member.is_registered:
        effects.append(
            Decided(
                decision="pod_registered",
                inputs={"pod": event.pod, "node": event.node, "address": event.address, "phase": str(state.phase)},
            )
        )
        stalls.registered(state, member)
        orders.joined(state, member)
    is_new = member.incarnation != event.incarnation
    address = event.address if member.role is Role.PARAMETER_SERVER else ""
    state.membership.registered(member, event.incarnation, address, event.node, state.time, event.started_cores)
    if member.role is Role.PARAMETER_SERVER and (is_new or event.restored_order_id):
        state.recovery.restored(member.name, event.restored_order_id)


def _reported(state: JobState, event: PodReported, effects: list[Effect]) -> None:
    member = state.membership.members.get(event.pod)
    if member is None or member.incarnation != event.incarnation:
        return
    state.take_progress(event.pod, event.generation, event.progress, effects)
    if event.progress:
        member.leaving_since = state.time
    member.reached_version = max(member.reached_version, event.reached_version)
    member.orders_version = max(member.orders_version, event.orders_version)
    orders.let_go(state, member, event.let_go_version, effects)
    stages.take_report(state, member, event)
    migration.take_report(state, event)
    stalls.take_report(state, event, effects)
    if state.recovery.would_restore(event.pod, event.restored_order_id):
        state.recovery.restored(event.pod, event.restored_order_id)
    state.saves.freeze(event.pod, event.frozen_order_id)
    state.saves.copied(event.pod, event.in_memory_order_id, state.ownership.servers)
    if event.saved is not None:
        state.saves.take(event.pod, event.saved)
    if event.damaged is not None:
        rollback.record_damaged(state, member, event.damaged, effects)
    if event.ends_in_seconds is not None and notice.is_new(member, event):
        notice.given(state, member, event.ends_in_seconds, effects)


def _deleted(state: JobState, event: PodDeleted, effects: list[Effect]) -> None:
    state.membership.leaving.pop(event.pod, None)


def _refused(state: JobState, event: PodRefused, effects: list[Effect]) -> None:
    member = state.membership.members.get(event.pod)
    if member is None or event.size not in (None, member.asked):
        return  # with the size that it is to have by now, it is created again
    settled = (shape.creation_refused, more_memory.creation_refused, shape.continues_smaller)
    if not any(settle(state, event, effects) for settle in settled):
        state.fail(f"pod {event.pod} cannot be created: {event.reason}", effects)


def _record_committed(state: JobState, event: RecordCommitted, effects: list[Effect]) -> None:
    saving.committed(state, event.order_id, event.base, effects)


def _record_failed(state: JobState, event: RecordFailed, effects: list[Effect]) -> None:
    saving.record_failed(state, event.order_id, event.reason, effects, store_away=event.store_away)


def _stop(state: JobState, event: StopAsked, effects: list[Effect]) -> None:
    if not state.phase.is_final:
        effects.append(Decided(decision="job_stopped", inputs={"reason": event.reason}))
        state.finish(Phase.STOPPED, event.reason, effects)


def _owner_changed(state: JobState, event: OwnerChanged, effects: list[Effect]) -> None:
    state.owner = event.owner
    effects.append(Decided(decision="owner_changed", inputs={"owner": event.owner}))


def _measured(state: JobState, event: Measured, effects: list[Effect]) -> None:
    state.times.measure(event.waiting_share)


def _save_asked(state: JobState, event: SaveAsked, effects: list[Effect]) -> None:
    state.saves.is_asked = True


HANDLERS: dict[type[Any], Callable[[JobState, Any, list[Effect]], None]] = {
    TermBegun: _term_begun,
    Begun: _begun,
    Restarted: _restarted,
    PodRegistered: _registered,
    PodReported: _reported,
    PodOrdered: orders.ordered,
    WorkersOrdered: orders.all_ordered,
    ShardsAsked: leasing.shards_asked,
    PodFailed: losses.pod_failed,
    PodSilent: losses.pod_silent,
    PodSeen: _seen,
    PodGone: losses.pod_gone,
    PodDeleted: _deleted,
    PodResized: shape.pod_resized,
    ResizeRefused: shape.resize_refused,
    PodRefused: _refused,
    RecordCommitted: _record_committed,
    RecordFailed: _record_failed,
    StopAsked: _stop,
    OwnerChanged: _owner_changed,
    SaveAsked: _save_asked,
    ShapeAsked: shape.shape_asked,
    ShapeCancelled: shape.shape_cancelled,
    ServerHot: migration.relieve,
    PodSlow: succession.leave_slow_node,
    Ticked: losses.ticked,
    Measured: _measured,
}
