"""Saves of a whole job: workers pause, servers write; and failures during a save."""

from __future__ import annotations

import pytest

from elastrec.platform.master.machine import events, saving
from elastrec.platform.master.machine.effects import AnswerLease, DiscardRecord
from elastrec.platform.master.machine.saves import Base, Saves
from elastrec.platform.master.reporting.status import training_metrics
from elastrec.platform.specs.metrics import Phase, TrainingMetrics
from elastrec.platform.transport.messages.directive import Mode
from elastrec.platform.transport.messages.job import SavedPart
from tests.platform.master.world import World, plan, running

pytestmark = pytest.mark.usefixtures("fleet")


def test_a_worker_dying_during_a_pause_does_not_block_the_save():
    world = running()
    world.handle(events.SaveAsked(time=world.time))
    assert world.directive("j-worker-0").mode is Mode.PAUSE
    world.act("j-worker-0")
    assert world.directive("j-ps-0").save is None
    world.kill("j-worker-1")
    world.act("j-worker-0")
    assert world.directive("j-ps-0").save is not None


def test_a_worker_that_does_not_pause_is_replaced():
    world = running()
    world.handle(events.SaveAsked(time=world.time))
    world.act("j-worker-0")
    world.time += 61.0
    world.tick()
    assert "j-worker-1-r1" in world.state.membership.members and "j-worker-0" in world.state.membership.members


def test_a_save_neither_waits_for_nor_replaces_a_worker_without_work():
    world = running()
    world.kill("j-worker-1")
    world.start_pod()
    assert world.state.membership.members["j-worker-1-r1"].is_registered
    world.handle(events.SaveAsked(time=world.time))
    # It still loads its model and has reached no directive at all.
    world.act("j-worker-0")
    assert world.directive("j-ps-0").save is not None
    world.time += 61.0
    world.tick()
    assert "j-worker-1-r1" in world.state.membership.members


def save_until_written(world: World) -> str:
    """Asks for a record; workers pause, servers write. Returns the order's name."""
    world.handle(events.SaveAsked(time=world.time))
    for name in sorted(world.up, reverse=True) * 2:
        if any(len(save.parts) == 2 for save in world.state.saves.under_way.values()):
            break
        world.act(name)
    (save,) = world.state.saves.under_way.values()
    assert len(save.parts) == 2
    return save.order_id


def test_delta_records_end_with_the_next_full_record_or_a_failed_save():
    world = running(plan(deltas=2))
    bases, uris = [], {}
    for succeed in (True, True, True, True, False, True, True):
        order_id = save_until_written(world)
        order, save = world.directive("j-ps-0").save, world.state.saves.under_way[order_id]
        assert order is not None and order.order_id == order_id
        uris[order_id] = save.uri
        assert saving.commit_effect(world.state, save).base == uris.get(order.base, "")
        bases.append(order.base and list(uris).index(order.base))
        world.commit(succeed)
    # The base of each, by number: full, two that build on the one before, full, one that fails, full, one more.
    assert bases == ["", 0, 1, "", 3, "", 5]


def test_a_final_record_builds_on_none():
    saves = Saves(record_template="file:///store/j/records/000000000000-abcdef01-12345678", base=Base("save-1", "uri"))
    for is_final, base in ((True, None), (False, saves.base)):
        save = saves.begin(f"save-{is_final}", step=1, is_final=is_final, version=2, time=1.0, deltas=5)
        assert save.base == base
        saves.end(save)


def test_the_end_of_an_older_save_does_not_affect_the_running_one():
    world = running()
    older = save_until_written(world)
    world.handle(events.RecordFailed(time=world.time, order_id=older, reason="the store did not answer"))
    newer = save_until_written(world)
    world.handle(events.RecordCommitted(time=world.time, order_id=older))
    assert world.state.recovery.record is None
    world.handle(events.RecordFailed(time=world.time, order_id=older, reason="again"))
    assert list(world.state.saves.under_way) == [newer]
    world.handle(events.RecordCommitted(time=world.time, order_id=newer))
    assert world.state.recovery.record is not None


def test_nothing_is_leased_before_every_server_has_its_cut():
    world = running()
    name = next(n for n, p in world.up.items() if p["shards"])
    world.stuck.add("j-ps-1")
    world.handle(events.SaveAsked(time=world.time))
    for _ in range(2):
        for pod in list(world.up):
            world.act(pod)
    asked = events.ShardsAsked(
        time=world.time, pod=name, incarnation=world.up[name]["incarnation"], generation=0, request_id="late",
        count=1, kind="train",
    )  # fmt: skip
    before = dict(world.state.training.doing)
    (answer,) = [effect for effect in world.handle(asked) if isinstance(effect, AnswerLease)]
    assert not answer.shards and world.state.training.doing == before


def test_a_request_whose_answer_was_lost_gets_its_shards_while_workers_pause():
    world = World(plan())
    for _ in range(4):
        world.start_pod()
    while "j-worker-0" not in world.state.training.held:
        for name in list(world.up):
            world.act(name, loses_answer=name == "j-worker-0")
    granted = {number for number, lease in world.state.training.doing.items() if lease.pod == "j-worker-0"}
    assert granted and not world.up["j-worker-0"]["shards"]
    world.handle(events.SaveAsked(time=world.time))
    world.act("j-worker-0")
    assert {shard.split.number for shard, _ in world.up["j-worker-0"]["shards"]} == granted
    world.run_fairly()
    assert world.state.phase is Phase.SUCCEEDED


@pytest.mark.parametrize("succeed", [True, False])
def test_a_save_that_took_longer_than_a_lease_costs_no_worker(succeed: bool):
    world = running(plan(save_timeout_seconds=1000.0))
    before = dict(world.state.training.deadlines)
    asked = world.time
    world.stuck.update(("j-ps-0", "j-ps-1"))
    world.handle(events.SaveAsked(time=world.time))
    for name in sorted(world.up, reverse=True):
        world.act(name)
    (save,) = world.state.saves.under_way.values()
    world.time += 2 * world.state.plan.lease_seconds
    world.tick()
    assert save.quiesce
    if succeed:
        world.stuck.clear()
        world.act("j-ps-0")
        world.act("j-ps-1")
    else:
        world.handle(events.RecordFailed(time=world.time, order_id=save.order_id, reason="no space"))
    paused = world.time - asked
    assert before and world.state.training.deadlines == {pod: end + paused for pod, end in before.items()}
    world.tick()
    assert {"j-worker-0", "j-worker-1"} <= world.state.membership.members.keys()


def test_abandoned_leases_expire_even_with_frequent_saves():
    world = running(plan(save_interval_seconds=0.0))
    lease_seconds, began = world.state.plan.lease_seconds, world.time
    while "j-worker-0" in world.state.membership.members and world.time < began + 10 * lease_seconds:
        world.time += lease_seconds / 3
        world.tick()
        if world.state.phase is Phase.TRAINING and world.state.saves.quiescing is None:
            save_until_written(world)
            world.commit(succeed=True)
    # Three thirds of the time went by between the saves, which took none.
    assert world.time - began <= 2 * lease_seconds


def test_a_failed_record_does_not_stop_the_training():
    world = running()
    world.handle(events.SaveAsked(time=world.time))
    for _ in range(3):
        for name in list(world.up):
            world.act(name)
    world.commit(succeed=False)
    assert world.state.phase is Phase.TRAINING and world.state.saves.quiescing is None
    assert world.state.saves.failed == 1 and world.state.saves.next_save == world.time + 20.0
    world.run_fairly()
    assert world.state.phase is Phase.SUCCEEDED


def test_the_metrics_say_since_when_and_why_saves_fail_until_one_succeeds():
    world = running()

    def end_a_save(succeed: bool) -> None:
        save_until_written(world)
        world.commit(succeed=succeed)

    def seen() -> TrainingMetrics:
        return training_metrics(world.state, "j", world.time, None, {}, {})

    assert (seen().failed_saves, seen().failing_seconds, seen().save_problem) == (0, None, "")
    end_a_save(succeed=True)
    began = world.time
    for failures in (1, 2):
        world.time = began + 100.0 * failures
        end_a_save(succeed=False)
        assert (seen().failed_saves, seen().save_problem) == (failures, "disk full")
    assert seen().failing_seconds == pytest.approx(world.time - began - 100.0, abs=5.0)
    assert seen().checkpoint_age_seconds == pytest.approx(world.time - began, abs=5.0)
    end_a_save(succeed=True)
    assert (seen().failed_saves, seen().failing_seconds, seen().save_problem) == (0, None, "")


def test_a_server_may_report_that_it_could_not_save():
    world = running()
    world.handle(events.SaveAsked(time=world.time))
    world.act("j-worker-0")
    world.act("j-worker-1")
    save = world.state.saves.quiescing
    assert save is not None
    part = SavedPart(order_id=save.order_id, manifest_json=b"", problem="No space left on device")
    incarnation = world.up["j-ps-0"]["incarnation"]
    effects = world.handle(
        events.PodReported(time=1.0, pod="j-ps-0", incarnation=incarnation, generation=0, reached_version=1, saved=part)
    )
    assert world.state.saves.quiescing is None and world.state.saves.failed == 1
    # Parts that other servers have written would take the room of the next try; this one may still be writing.
    assert DiscardRecord(uri=save.uri) not in effects
    world.act("j-ps-1")
    assert save.uri in world.discarded


def test_a_final_record_that_cannot_be_written_fails_the_job_with_the_reason():
    world = running()
    for _ in range(1000):
        if world.state.phase.is_final:
            break
        for name in list(world.up):
            world.act(name)
        world.commit(succeed=world.state.phase is not Phase.SAVING)
        world.time += 0.5
        world.tick()
    assert world.state.phase is Phase.FAILED and "3 tries" in world.state.failure
    assert "disk full" in world.state.failure
