from __future__ import annotations

import random
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.platform.clusters.pods import EndReason
from elastrec.platform.master.machine import events, saving
from elastrec.platform.master.machine.effects import AnswerLease, DiscardRecord, Effect
from elastrec.platform.master.machine.plan import JobPlan
from elastrec.platform.master.machine.saves import Base, Saves
from elastrec.platform.master.machine.state import JobState
from elastrec.platform.master.service.journal import Journal, decode_state, encode_state
from elastrec.platform.specs.metrics import Phase, Role
from elastrec.platform.transport.messages.job import Mode, SavedPart
from tests.platform.master.disturbing import disturb
from tests.platform.master.world import World, plan, running
from tests.splits import length_of

pytestmark = pytest.mark.usefixtures("fleet")


class RememberingWorld(World):
    """A world that keeps the state's bytes after every event."""

    def __init__(self, job_plan: JobPlan) -> None:
        self.history: list[bytes] = []
        super().__init__(job_plan)

    def note(self, event: events.Event, effects: list[Effect]) -> None:
        super().note(event, effects)
        self.history.append(encode_state(self.state))


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32), synchronous=st.booleans(), acts=st.integers(0, 500))
def test_whatever_happens_a_job_ends_with_every_row_trained(seed: int, synchronous: bool, acts: int):
    chance = random.Random(seed)
    world = World(plan(is_synchronous=synchronous, epochs=chance.randint(1, 2)))
    for _ in range(acts):
        disturb(world, chance)
    world.run_fairly()
    state = world.state
    assert state.phase in (Phase.SUCCEEDED, Phase.FAILED)
    if state.phase is Phase.FAILED:
        assert "pod_restarts" in state.failure or "final record" in state.failure
    else:
        assert state.training.is_done and state.training.covered_rows() == state.plan.training.total_rows
        assert state.training.samples >= state.plan.training.total_rows
        assert state.evaluation.is_done
        assert state.recovery.record is not None and state.recovery.record.is_final
    assert not world.state.membership.members


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32), acts=st.integers(1, 150))
def test_every_prefix_of_the_journal_gives_the_same_state(seed: int, acts: int):
    chance = random.Random(seed)
    world = RememberingWorld(plan())
    for _ in range(acts):
        disturb(world, chance)
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder) / "journal.sqlite", snapshot_every=7)
        journal.begin(world.state.plan)
        journal.start()
        written = 0
        for stop in sorted({chance.randint(1, len(world.events)) for _ in range(4)} | {len(world.events)}):
            for event, after in zip(world.events[written:stop], world.history[written:stop], strict=True):
                journal.append(event, [], lambda after=after: after)  # type: ignore[misc]
            written = stop
            journal.wait(journal.last)
            reader = Journal(Path(folder) / "journal.sqlite")
            assert reader.load() == decode_state(world.history[stop - 1])
            reader.close()
        journal.close()


def test_a_quiet_job_takes_the_straight_way():
    world = World(plan())
    world.run_fairly()
    assert world.phases == [
        Phase.PENDING,
        Phase.STARTING,
        Phase.TRAINING,
        Phase.SAVING,
        Phase.EVALUATING,
        Phase.SUCCEEDED,
    ]
    assert world.state.training.samples == 130 and world.state.phases.generation == 0


def test_the_routing_table_is_complete_only_when_all_servers_have_registered():
    world = World(plan())
    assert world.state.routing().addresses == ["", ""]
    world.start_pod()
    world.start_pod()
    table = world.state.routing()
    assert table.addresses == ["j-ps-0:1", "j-ps-1:1"] and set(table.owners) == {0, 1} and len(table.owners) == 64


def test_a_lost_server_voids_the_progress_of_the_old_generation():
    world = running()
    name, pod = next((n, p) for n, p in world.up.items() if p["shards"])
    shard = pod["shards"][0][0]
    trained = world.state.training.samples
    epoch = world.state.routing().epoch
    world.kill("j-ps-0")
    assert world.state.phase is Phase.RECOVERING and world.state.phases.generation == 1
    assert world.state.routing().epoch > epoch and world.state.routing().addresses[0] == ""
    world.handle(
        events.PodReported(
            time=world.time,
            pod=name,
            incarnation=pod["incarnation"],
            generation=0,
            reached_version=0,
            progress=[world.progress(shard, length_of(shard))],
        )
    )
    assert world.state.training.samples == trained and world.state.training.done == 0
    assert world.directive(name).mode is Mode.IDLE
    world.run_fairly()
    assert world.state.phase is Phase.SUCCEEDED


def test_progress_of_the_old_generation_is_void_even_if_its_attempt_is_leased_again():
    world = running()
    name, pod = next((n, p) for n, p in world.up.items() if p["shards"])
    shard = pod["shards"][0][0]
    number = shard.split.number
    world.kill("j-ps-0")
    for _ in range(8):
        world.start_pod()
        for other in sorted(world.up, key=lambda other: other != name):
            world.act(other)
        if number in world.state.training.doing:
            break
    lease, trained = world.state.training.doing[number], world.state.training.samples
    assert (lease.pod, lease.attempt) == (name, shard.attempt) and lease.offset < length_of(shard)
    world.handle(
        events.PodReported(
            time=world.time,
            pod=name,
            incarnation=pod["incarnation"],
            generation=0,
            reached_version=0,
            progress=[world.progress(shard, length_of(shard))],
        )
    )
    assert world.state.training.doing[number] == lease and world.state.training.samples == trained


def test_a_worker_dying_during_a_pause_does_not_block_the_save():
    world = running()
    world.handle(events.SaveAsked(time=world.time))
    assert world.directive("j-worker-0").mode is Mode.PAUSE
    world.act("j-worker-0")
    assert world.directive("j-ps-0").save is None
    world.kill("j-worker-1")
    world.act("j-worker-0")
    assert world.directive("j-ps-0").save is not None


def test_a_worker_that_does_not_stand_still_is_replaced():
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


def test_the_end_of_an_older_save_says_nothing_about_the_one_under_way():
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


def test_leases_on_which_nobody_works_end_although_saves_come_more_often():
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


def test_a_pod_killed_for_memory_twice_in_a_row_fails_the_job_with_advice():
    world = running()
    world.kill("j-worker-0", end=EndReason.OUT_OF_MEMORY)
    assert world.state.phase is Phase.TRAINING
    world.start_pod()
    world.kill("j-worker-0-r1", end=EndReason.OUT_OF_MEMORY)
    assert world.state.phase is Phase.FAILED
    assert "spec.resources.worker.memory" in world.state.failure


def test_bad_input_is_never_tried_again():
    world = running()
    world.kill("j-worker-0", end=EndReason.BAD_INPUT, exit_code=2, message="the last lines")
    assert world.state.phase is Phase.FAILED and "the last lines" in world.state.failure


def test_the_restart_budget_ends_the_job():
    world = running(plan(pod_restarts=2))
    for restart in range(3):
        world.kill("j-worker-0" + (f"-r{restart}" if restart else ""), end=EndReason.ERROR)
        world.start_pod()
    assert world.state.phase is Phase.FAILED and "pod_restarts 2" in world.state.failure


def test_a_server_process_that_kept_its_rows_costs_no_rollback():
    world = running()
    world.up["j-ps-0"]["incarnation"] = "new"
    world.register("j-ps-0")
    assert world.state.phases.generation == 0
    world.up["j-ps-0"] |= {"incarnation": "newer", "restored": ""}
    world.register("j-ps-0")
    assert world.state.phases.generation == 1 and world.state.phase is Phase.RECOVERING


def test_a_worker_learns_whether_it_trains_alone():
    world = running()
    first, second = (name for name, process in world.up.items() if process["role"] is Role.WORKER)
    before = world.directive(first)
    assert not before.trains_alone
    world.kill(second)
    alone = world.directive(first)
    assert alone.trains_alone
    world.live_on(1)
    joined = world.directive(first)
    assert not joined.trains_alone
    assert before.version < alone.version < joined.version


def test_in_bsp_a_worker_without_shards_is_not_waited_for():
    world = running(plan(is_synchronous=True, training_rows=20, save_interval_seconds=0.0), rounds=2)
    members = [worker.pod for worker in world.state.training_members()]
    busy = [name for name in world.up if world.up[name]["role"] is Role.WORKER and world.up[name]["shards"]]
    idle = [name for name in members if name not in busy]
    for name in idle:
        world.act(name)
    assert [worker.pod for worker in world.state.training_members()] == busy


def test_a_server_lost_while_evaluating_returns_to_the_final_record():
    world = running()
    while world.state.phase is not Phase.EVALUATING:
        for name in list(world.up):
            world.act(name)
        world.commit()
    for name in list(world.up):
        world.act(name)
    assert world.state.evaluation.doing
    world.kill("j-ps-1")
    assert world.state.phases.resume is Phase.EVALUATING
    # A prediction needs rows of the servers: what was leased begins again, as a lease of the new generation.
    assert not world.state.evaluation.doing and not world.state.evaluation.held
    record = world.state.recovery.record
    assert record is not None and world.state.recovery.uri == record.uri
    world.run_fairly()
    assert world.state.phase is Phase.SUCCEEDED and world.state.training.samples == 130


def test_a_phase_may_only_change_along_the_table():
    state = JobState.new(plan())
    with pytest.raises(Exception, match="cannot go from Pending to Succeeded"):
        state.phases.move(Phase.SUCCEEDED, 0.0)


def test_a_state_is_a_plain_value():
    world = running()
    assert decode_state(encode_state(world.state)) == world.state
    assert msgspec.msgpack.decode(encode_state(world.state))["plan"]["job_id"] == "j"


def test_a_restart_blames_nobody_and_postpones_no_record():
    world = running()
    due = world.state.saves.next_save
    world.time += 19.0
    pods = dict(world.plane.pods)
    world.handle(events.Restarted(time=world.time))
    assert world.state.saves.next_save == due
    assert world.plane.pods == pods
    world.time += 59.0
    assert all(deadline > world.time for deadline in world.state.training.deadlines.values())
