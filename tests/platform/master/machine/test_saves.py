"""Concurrent saves, and the fate of the parts, orders and folders of each."""

from __future__ import annotations

import pytest

from elastrec.platform.master.machine import events, stages
from elastrec.platform.master.machine.effects import CommitRecord, DiscardRecord
from elastrec.platform.master.machine.saves import COMMITTING, PAUSING, WRITING, Save, Saves
from elastrec.platform.master.reporting.status import training_metrics
from elastrec.platform.specs.errors import ElastrecError
from elastrec.platform.specs.metrics import Phase
from elastrec.platform.specs.splits import Positions, StreamPositions
from elastrec.platform.transport.messages.directive import Mode, SaveOrder
from elastrec.platform.transport.messages.job import SavedPart
from tests.platform.master.world import World, plan, running

pytestmark = pytest.mark.usefixtures("some_fleet")

TEMPLATE = "file:///store/j/records/000000000000-abcdef01-12345678"
CUT = Positions({"training": StreamPositions(4, [])}), 40


def both() -> tuple[Saves, Save, Save]:
    """One save that does not pause workers, and one that does."""
    saves = Saves(record_template=TEMPLATE)
    beside = saves.begin("save-2", step=10, is_final=False, version=2, time=1.0, cut=CUT)
    pausing = saves.begin("save-3", step=20, is_final=False, version=3, time=2.0)
    return saves, beside, pausing


def part(save: Save) -> SavedPart:
    return SavedPart(order_id=save.order_id, manifest_json=b"{}")


def test_saves_overlap_and_at_most_one_pauses_the_workers():
    saves, beside, pausing = both()
    assert (beside.quiesce, beside.stage) == (False, WRITING)
    assert (pausing.quiesce, pausing.stage) == (True, PAUSING)
    assert saves.quiescing is pausing and beside.uri != pausing.uri
    with pytest.raises(ElastrecError, match="save-4: workers pause for save-3 already"):
        saves.begin("save-4", step=30, is_final=False, version=4, time=3.0)


def test_a_server_writes_one_part_after_the_other():
    saves, beside, pausing = both()
    first, second = SaveOrder("save-2", beside.uri), SaveOrder("save-3", pausing.uri)
    assert saves.order_for("ps-0") == first
    saves.take("ps-0", part(beside))
    # The next one is not to be written yet: what was written stays in force.
    assert saves.order_for("ps-0") == first
    pausing.enter(WRITING, 3.0)
    assert (saves.order_for("ps-0"), saves.order_for("ps-1")) == (second, first)
    saves.end(beside)
    assert saves.order_for("ps-1") == second


def test_a_part_counts_for_its_save_alone_and_once():
    saves, beside, pausing = both()
    assert saves.would_take("ps-0", part(beside))
    saves.take("ps-0", part(beside))
    saves.take("ps-0", SavedPart(order_id="save-2", manifest_json=b"", problem="late"))
    saves.take("ps-0", SavedPart(order_id="save-1", manifest_json=b""))
    assert not saves.would_take("ps-0", part(beside)) and not beside.problems()
    assert beside.parts == {"ps-0": part(beside)} and not pausing.parts


def test_an_abandoned_folder_waits_for_its_own_writers_only():
    saves, beside, pausing = both()
    pausing.enter(WRITING, 3.0)
    saves.take("ps-0", part(beside))
    for save in (beside, pausing):
        saves.end(save)
        saves.abandon(save, {"ps-0": "a", "ps-1": "b"}, version=5)
    assert saves.discard(lambda pod, _: pod == "ps-0") == [DiscardRecord(uri=beside.uri)]
    assert list(saves.abandoned) == ["save-3"] and saves.abandoned["save-3"].writers == {"ps-0": "a"}


def begin_beside(world: World) -> Save:
    """A save for which nobody pauses; no policy of the job begins one yet."""
    state = world.state
    cut = state.positions(), state.training.covered_rows()
    state.phases.version += 1
    return state.saves.begin(
        "save-beside", step=state.training.samples, is_final=False, version=state.phases.version, time=world.time,
        cut=cut,
    )  # fmt: skip


def begin_later(world: World) -> Save:
    """Another one, of a job that has not trained yet."""
    cut = Positions({"training": StreamPositions(0, [])}), 0
    return world.state.saves.begin("save-later", step=0, is_final=False, version=0, time=world.time, cut=cut)


def everybody_acts(world: World) -> None:
    for name in list(world.up):
        world.act(name)


def test_workers_train_beside_a_save_that_does_not_pause_them():
    world = running(plan(save_interval_seconds=0.0))
    world.hung.update(("j-ps-0", "j-ps-1"))
    save = begin_beside(world)
    trained = world.state.training.samples
    everybody_acts(world)
    assert world.directive("j-worker-0").mode is Mode.TRAIN and world.state.training.samples > trained
    world.hung.clear()
    everybody_acts(world)
    assert save.stage == COMMITTING
    commits = [effect for effect in world.effects if isinstance(effect, CommitRecord)]
    assert [commit.positions for commit in commits] == [save.positions]


def ordered(world: World) -> Save:
    """A save that was asked for, whose servers have the order to write."""
    world.handle(events.SaveAsked(time=world.time))
    for _ in range(200):
        for save in world.state.saves.under_way.values():
            if save.stage == WRITING:
                return save
        everybody_acts(world)
    raise AssertionError("no save was begun")


def test_workers_train_on_once_every_server_has_frozen_its_cut_however_long_the_store_takes():
    world = running(plan(save_interval_seconds=0.0))
    world.hung.update(("j-ps-0", "j-ps-1"))
    world.stuck.add("j-ps-1")
    save = ordered(world)
    everybody_acts(world)
    trained = world.state.training.samples
    everybody_acts(world)
    assert save.frozen == ["j-ps-0"] and world.directive("j-worker-0").mode is Mode.PAUSE
    assert world.state.training.samples == trained
    world.stuck.clear()
    world.act("j-ps-1")
    assert world.directive("j-worker-0").mode is Mode.TRAIN and save.stage == WRITING
    everybody_acts(world)
    everybody_acts(world)
    assert world.state.training.samples > trained
    world.hung.clear()
    world.act("j-ps-0")
    world.act("j-ps-1")
    world.commit()
    # The record stands where everybody paused, not where training is by now.
    assert world.state.recovery.record is not None and world.state.recovery.record.positions == save.positions
    assert save.positions != world.state.positions()


def test_training_during_a_save_is_lost_with_a_server():
    world = running(plan(save_interval_seconds=0.0))
    world.hung.update(("j-ps-0", "j-ps-1"))
    save = ordered(world)
    for _ in range(4):
        everybody_acts(world)
    at_the_cut, now = save.rows, world.state.training.covered_rows()
    assert now > at_the_cut
    world.hung.clear()
    world.act("j-ps-0")
    world.act("j-ps-1")
    world.commit()
    world.kill("j-ps-0")
    assert world.state.training.covered_rows() == at_the_cut


def test_the_ages_of_the_newest_copy_in_memory_and_of_the_newest_record_are_those_of_their_cuts():
    world = running(plan(save_interval_seconds=0.0))
    world.hung.update(("j-ps-0", "j-ps-1"))
    save = ordered(world)
    cut = world.time

    def ages() -> tuple[float | None, float | None]:
        metrics = training_metrics(world.state, "j", world.time, None, {}, {})
        return metrics.memory_copy_age_seconds, metrics.checkpoint_age_seconds

    def copied(pod: str) -> None:
        incarnation = world.up[pod]["incarnation"]
        world.handle(
            events.PodReported(
                time=world.time, pod=pod, incarnation=incarnation, generation=0, reached_version=0,
                in_memory_order_id=save.order_id,
            )
        )  # fmt: skip

    world.time += 5.0
    copied("j-ps-0")
    assert ages() == (None, None)
    copied("j-ps-1")
    assert ages() == (world.time - cut, None)
    world.hung.clear()
    world.time += 5.0
    world.act("j-ps-0")
    world.act("j-ps-1")
    world.commit()
    assert ages() == (world.time - cut, world.time - cut)


def test_the_final_record_waits_for_a_record_that_is_being_written():
    world = running(plan(save_interval_seconds=0.0))
    world.hung.update(("j-ps-0", "j-ps-1"))
    save = ordered(world)
    for _ in range(400):
        everybody_acts(world)
    assert world.state.training.is_done and list(world.state.saves.under_way.values()) == [save]
    assert world.state.phase is Phase.TRAINING and not save.is_final
    world.hung.clear()
    world.run_fairly(20_000)
    assert world.state.phase is Phase.SUCCEEDED
    assert [record.is_final for record in world.state.recovery.records] == [False, True]


def test_two_overlapping_saves_become_two_records():
    world = running(plan(training_rows=20_000, save_interval_seconds=0.0))
    beside = begin_beside(world)
    world.state.saves.is_asked = True
    for _ in range(6):
        everybody_acts(world)
        world.commit()
    assert world.state.saves.completed == 2 and not world.state.saves.under_way
    assert beside.uri in [record.uri for record in world.state.recovery.records]
    assert world.state.phase is Phase.TRAINING
    world.run_fairly(20_000)
    assert world.state.phase is Phase.SUCCEEDED


def test_a_server_that_has_written_one_part_gets_the_next_one_under_a_new_version():
    world = running(plan(save_interval_seconds=0.0))
    begin_beside(world)
    begin_later(world)
    world.act("j-ps-0")
    first, version = world.directive("j-ps-1"), world.state.phases.version
    world.act("j-ps-1")
    second = world.directive("j-ps-1")
    assert first.save is not None and second.save is not None
    assert (first.save.order_id, second.save.order_id) == ("save-beside", "save-later")
    assert world.state.phases.version > version


def test_a_late_save_fails_and_the_other_one_continues():
    world = running(plan(save_interval_seconds=0.0, lease_seconds=1e6))
    beside = begin_beside(world)
    world.hung.add("j-ps-1")
    world.act("j-ps-0")
    world.time += 20.0
    second = begin_later(world)
    deadline = stages.save_deadline(world.state, beside)
    assert deadline is not None and deadline < world.time + 40.0
    world.time = deadline
    world.tick()
    assert list(world.state.saves.under_way) == [second.order_id] and world.state.saves.failed == 1


def test_a_server_that_is_lost_ends_all_saves():
    world = running(plan(save_interval_seconds=0.0))
    beside = begin_beside(world)
    world.hung.add("j-ps-1")
    world.act("j-ps-1")
    world.kill("j-ps-0")
    assert not world.state.saves.under_way and beside.uri not in world.discarded
    world.hung.clear()
    world.act("j-ps-1")
    assert beside.uri in world.discarded
