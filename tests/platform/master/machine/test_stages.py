"""A hanging store: deadlines of every stage of a save and a restore, and late answers."""

from __future__ import annotations

import msgspec
import pytest

from elastrec.platform.master.machine import events, stages
from elastrec.platform.master.machine.effects import Decided, DiscardRecord
from elastrec.platform.master.machine.saves import COMMITTING, WRITING, Save
from elastrec.platform.master.reporting.status import training_metrics
from elastrec.platform.specs.metrics import Phase, Role
from elastrec.platform.specs.text.plain_words import numbered
from elastrec.platform.transport.messages.directive import Mode
from elastrec.platform.transport.messages.job import SavedPart
from tests.platform.master.world import World, plan, running

pytestmark = pytest.mark.usefixtures("some_fleet")

TIMEOUT = 40.0


def saving(world: World, *, hung: str = "", stage: str = COMMITTING) -> Save:
    """A save that was asked for, in that stage."""
    if hung:
        world.hung.add(hung)
    world.handle(events.SaveAsked(time=world.time))
    return until_stage(world, stage)


def until_stage(world: World, stage: str) -> Save:
    for _ in range(200):
        for save in world.state.saves.under_way.values():
            if save.stage == stage:
                return save
        everybody_acts(world)
    raise AssertionError(f"no save reached the stage {stage}")


def everybody_acts(world: World) -> None:
    for name in list(world.up):
        world.act(name)


def pass_seconds(world: World, seconds: float) -> None:
    world.time += seconds
    world.tick()


def late(world: World) -> None:
    """The time of the stage is over."""
    deadline = world.state.next_deadline()
    assert deadline is not None
    pass_seconds(world, deadline - world.time)


def decisions(world: World, name: str) -> list[dict[str, object]]:
    return [effect.inputs for effect in world.effects if isinstance(effect, Decided) and effect.decision == name]


def committed(world: World, save: Save) -> None:
    world.handle(events.RecordCommitted(time=world.time, order_id=save.order_id))


def reason(world: World) -> str:
    return training_metrics(world.state, "j", world.time, None, {}, {}).reason


# Writing


def test_a_part_that_is_late_fails_the_save_and_training_continues():
    world = running()
    save = saving(world, hung="j-ps-1", stage=WRITING)
    everybody_acts(world)
    pass_seconds(world, TIMEOUT - 0.1)
    assert list(world.state.saves.under_way.values()) == [save]
    late(world)
    assert not world.state.saves.under_way and world.state.phase is Phase.TRAINING
    assert world.directive("j-worker-0").mode is Mode.TRAIN
    (failure,) = decisions(world, "save_failed")
    assert failure["reason"] == "j-ps-1 wrote nothing for 40 s (spec.faults.save_timeout)"


def test_the_folder_of_a_late_save_stays_until_no_process_writes_into_it():
    world = running()
    save = saving(world, hung="j-ps-1", stage=WRITING)
    everybody_acts(world)
    late(world)
    for _ in range(5):
        everybody_acts(world)
    assert save.uri not in world.discarded
    world.hung.clear()
    everybody_acts(world)
    assert world.discarded == [save.uri]


def test_a_server_may_begin_to_write_until_it_learns_of_the_end_of_the_save():
    world = running()
    save = saving(world, stage=WRITING)
    incarnation = world.up["j-ps-1"]["incarnation"]
    world.act("j-ps-0")
    late(world)
    beat = events.PodReported(
        time=world.time, pod="j-ps-1", incarnation=incarnation, generation=0,
        reached_version=world.state.phases.version - 1,
    )  # fmt: skip
    world.handle(beat)
    assert save.uri not in world.discarded
    world.act("j-ps-1")
    assert world.discarded == [save.uri]


@pytest.mark.parametrize("how", ["gone", "replaced"])
def test_a_writer_that_ends_has_left_its_folder(how: str):
    world = running()
    save = saving(world, hung="j-ps-1", stage=WRITING)
    everybody_acts(world)
    late(world)
    assert not world.discarded
    if how == "gone":
        world.kill("j-ps-1")
    else:
        world.up["j-ps-1"] |= {"incarnation": "another", "writing": "", "uri": ""}
        world.register("j-ps-1")
    assert world.discarded == [save.uri]


def test_a_silent_servers_unfinished_record_is_deleted_only_after_its_pod_has_ended():
    world = running()
    save = saving(world, hung="j-ps-0", stage=WRITING)
    everybody_acts(world)
    assert world.up["j-ps-0"]["uri"] == save.uri
    world.plane.delays = True
    uid, incarnation = world.up["j-ps-0"]["uid"], world.up["j-ps-0"]["incarnation"]
    world.handle(events.PodSilent(time=world.time, pod="j-ps-0", incarnation=incarnation, silent_seconds=15.0))
    for _ in range(20):
        world.start_pod()
        world.reconcile()
    # Its successor has registered, and it writes on.
    assert world.state.membership.members["j-ps-0-r1"].incarnation and world.plane.pods[uid].is_ending
    assert world.discarded == []
    world.plane.settle()
    world.reconcile()
    assert world.discarded == [save.uri]


def test_a_late_part_belongs_to_no_later_record():
    world = running()
    first = saving(world, hung="j-ps-1", stage=WRITING)
    everybody_acts(world)
    late(world)
    second = saving(world, stage=WRITING)
    assert second.uri != first.uri
    part = SavedPart(order_id=first.order_id, manifest_json=b"late")
    incarnation = world.up["j-ps-1"]["incarnation"]
    world.handle(
        events.PodReported(
            time=world.time, pod="j-ps-1", incarnation=incarnation, generation=0, reached_version=0, saved=part
        )
    )
    assert "j-ps-1" not in second.parts and world.state.saves.quiescing is second


def test_a_server_that_gets_on_is_not_late():
    world = running()
    save = saving(world, hung="j-ps-1", stage=WRITING)
    everybody_acts(world)
    for _ in range(5):
        pass_seconds(world, TIMEOUT - 1.0)
        world.up["j-ps-1"]["transfers"] += 1
        world.act("j-ps-1")
    assert list(world.state.saves.under_way.values()) == [save]
    late(world)
    assert not world.state.saves.under_way


def test_few_transfers_are_journalled():
    world = running()
    saving(world, hung="j-ps-1", stage=WRITING)
    member = world.state.membership.members["j-ps-1"]
    beat = events.PodReported(
        time=member.active, pod="j-ps-1", incarnation=member.incarnation, generation=0,
        reached_version=member.reached_version, transfers=member.transfers + 1, restored_order_id="restore-1/j-ps-1",
    )  # fmt: skip
    at = {
        share: stages.changes_state(world.state, member, later(beat, share * TIMEOUT))
        for share in (0.01, 0.04, 0.06, 1)
    }
    assert at == {0.01: False, 0.04: False, 0.06: True, 1: True}


def later(report: events.PodReported, seconds: float) -> events.PodReported:
    return msgspec.structs.replace(report, time=report.time + seconds)


def test_while_a_store_hangs_workers_train_at_least_as_long_as_they_pause():
    world = running(plan(save_interval_seconds=5.0))
    saving(world, hung="j-ps-1", stage=WRITING)
    late(world)
    assert world.state.saves.next_save == world.time + TIMEOUT


def test_the_final_record_of_a_store_that_hangs_fails_the_job_after_three_tries():
    world = running()
    world.hung.add("j-ps-1")
    for tries in range(1, 4):
        save = until_stage(world, WRITING)
        assert save.is_final
        everybody_acts(world)
        late(world)
        assert world.state.saves.final_failures == tries
        pass_seconds(world, 10.0)
    assert world.state.phase is Phase.FAILED
    assert "final record could not be written in 3 tries: j-ps-1 wrote nothing" in world.state.failure


# Committing


def test_a_commit_that_does_not_end_is_unknown_and_training_continues():
    world = running()
    save = saving(world)
    late(world)
    assert world.state.saves.quiescing is None and world.state.phase is Phase.TRAINING
    assert world.state.recovery.record is None and not world.discarded
    (unknown,) = decisions(world, "save_unknown")
    assert unknown["order"] == save.order_id and "save_timeout" in str(unknown["reason"])


def test_an_unknown_record_that_is_found_complete_counts():
    world = running()
    save = saving(world)
    late(world)
    pass_seconds(world, 5.0)
    everybody_acts(world)
    committed(world, save)
    record = world.state.recovery.record
    assert record is not None and record.uri == save.uri and world.state.saves.completed == 1
    trained = world.state.training.covered_rows()
    world.kill("j-ps-0")
    assert world.state.recovery.uri == save.uri
    assert world.state.training.covered_rows() == save.rows < trained
    world.hung.clear()
    world.run_fairly()
    assert world.state.phase is Phase.SUCCEEDED and world.state.training.covered_rows() == 130


def test_training_before_a_record_was_known_is_lost_work_after_a_rollback_to_it():
    world = running(plan(save_interval_seconds=0.0))
    pass_seconds(world, 6.0)
    save = saving(world)
    late(world)
    before = world.state.times.at(world.state, world.time).seconds.get("training", 0.0)
    pass_seconds(world, 9.0)
    committed(world, save)
    world.kill("j-ps-0")
    assert world.state.times.seconds["training"] == pytest.approx(before)


def test_an_unknown_record_that_fails_is_discarded():
    world = running()
    save = saving(world)
    late(world)
    world.handle(events.RecordFailed(time=world.time, order_id=save.order_id, reason="disk full"))
    assert world.discarded == [save.uri] and world.state.saves.failed == 1
    committed(world, save)
    assert world.state.recovery.record is None


def test_an_unknown_record_changes_nothing_once_a_newer_one_is_complete():
    world = running()
    older = saving(world)
    late(world)
    newer = saving(world)
    committed(world, newer)
    committed(world, older)
    assert [record.uri for record in world.state.recovery.records] == [newer.uri] and world.state.saves.completed == 1


def test_a_record_of_rolled_back_rows_is_deleted_even_if_it_is_complete():
    world = running()
    save = saving(world)
    late(world)
    world.kill("j-ps-0")
    assert world.state.recovery.uri == "" and not world.discarded
    committed(world, save)
    assert world.state.recovery.record is None
    assert DiscardRecord(uri=save.uri, may_be_complete=True) in world.effects


def test_a_new_master_deletes_the_record_that_its_predecessor_was_committing():
    world = running()
    save = saving(world)
    world.kill("j-ps-0")
    world.handle(events.Restarted(time=world.time))
    # The same process, which was stopped, may still write the manifest.
    assert not world.discarded
    world.handle(events.Restarted(time=world.time, away_seconds=2.0))
    assert world.discarded == [save.uri]


def test_a_final_record_that_is_found_complete_ends_the_training_without_another():
    world = running()
    first = until_stage(world, COMMITTING)
    while not first.is_final:
        committed(world, first)
        first = until_stage(world, COMMITTING)
    late(world)
    pass_seconds(world, 10.0)
    second = until_stage(world, WRITING)
    committed(world, first)
    assert world.state.phase is Phase.EVALUATING and world.state.saves.quiescing is None
    record = world.state.recovery.record
    assert record is not None and record.uri == first.uri
    everybody_acts(world)
    assert world.discarded == [second.uri]


def test_a_final_commit_that_never_ends_fails_the_job():
    world = running(plan(save_interval_seconds=0.0))
    for _ in range(3):
        assert until_stage(world, COMMITTING).is_final
        late(world)
        pass_seconds(world, 10.0)
    assert world.state.phase is Phase.FAILED and "its manifest was not written for 40 s" in world.state.failure


# Restoring


def recovering(world: World, hung: str) -> None:
    """ps-0 was lost and is there again, `hung` does not restore."""
    world.hung.add(hung)
    world.kill("j-ps-0")
    world.start_pod()
    everybody_acts(world)
    assert world.state.phase is Phase.RECOVERING


def test_a_server_that_does_not_restore_in_time_is_replaced_and_counts_for_its_place():
    world = running()
    recovering(world, "j-ps-1")
    late(world)
    assert "j-ps-1-r1" in world.state.membership.members and "j-ps-0-r1" in world.state.membership.members
    assert world.state.membership.streaks[Role.PARAMETER_SERVER][1].failures == 1
    replaced = decisions(world, "pod_replaced")[-1]
    assert replaced["pod"] == "j-ps-1" and "read nothing for 40 s (spec.faults.restore_timeout)" in str(replaced)
    world.run_fairly()
    assert world.state.phase is Phase.SUCCEEDED


def test_an_unreadable_store_ends_the_job_by_the_limit_of_restarts():
    world = running(plan(pod_restarts=2))
    recovering(world, "j-ps-1")
    for restart in range(1, 4):
        late(world)
        world.start_pod()
        world.hung.add(f"j-ps-1-r{restart}")
        everybody_acts(world)
    assert world.state.phase is Phase.FAILED and "has not restored" in world.state.failure


def test_servers_that_still_read_or_have_not_started_are_not_late():
    world = running()
    recovering(world, "j-ps-1")
    world.kill("j-ps-0-r1")
    pass_seconds(world, TIMEOUT - 1.0)
    world.up["j-ps-1"]["transfers"] += 1
    world.act("j-ps-1")
    pass_seconds(world, TIMEOUT - 1.0)
    assert "j-ps-1" in world.state.membership.members
    assert "j-ps-0-r2" in world.state.membership.members


def test_a_restart_of_the_master_gives_every_stage_its_whole_time():
    world = running()
    save = saving(world, hung="j-ps-1", stage=WRITING)
    world.time += TIMEOUT - 1.0
    world.handle(events.Restarted(time=world.time, away_seconds=1.0))
    assert world.state.next_deadline() == world.time + TIMEOUT and world.state.saves.quiescing is save


# Reasons


def test_status_shows_the_reason_and_the_time_of_a_stages_wait():
    world = running()
    world.handle(events.SaveAsked(time=world.time))
    save = world.state.saves.quiescing
    assert save is not None and reason(world) == ""
    world.time += 3.0
    assert reason(world) == f"pausing for {numbered(save.order_id)}: waiting for j-worker-0, j-worker-1 for 3 s"
    world.hung.add("j-ps-1")
    until_stage(world, WRITING)
    everybody_acts(world)
    world.time += 35.0
    assert reason(world) == f"writing {numbered(save.order_id)}: waiting for j-ps-1 for 35 s"
    world.hung.clear()
    until_stage(world, COMMITTING)
    world.time += 12.0
    assert reason(world) == f"committing {numbered(save.order_id)} for 12 s"
    late(world)
    assert "it is unknown whether save 2 is complete" in reason(world)
    recovering(world, "j-ps-1")
    world.time += 7.0
    assert reason(world).endswith("; restoring from nothing: waiting for j-ps-1 for 7 s")
