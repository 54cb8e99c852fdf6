"""The complete state machine of a job, from pods to its end, with failures."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.platform.clusters.pods import EndReason
from elastrec.platform.master.machine import events
from elastrec.platform.master.machine.effects import Effect
from elastrec.platform.master.machine.plan import JobPlan
from elastrec.platform.master.machine.state import JobState
from elastrec.platform.master.service.journal import Journal, decode_state, encode_state
from elastrec.platform.specs.metrics import Phase, Role
from elastrec.platform.specs.splits import Positions
from elastrec.platform.transport.messages.directive import Mode
from tests.platform.master.disturbing import disturb
from tests.platform.master.world import World, bad_rows, plan, running
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
    bad = bad_rows(130), bad_rows(25)
    world = World(plan(is_synchronous=synchronous, epochs=chance.randint(1, 2), most_bad_rows=sum(bad)))
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
        assert (state.training.bad_rows, state.evaluation.bad_rows) == bad
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


def test_bad_rows_of_all_workers_count_together():
    world = World(plan(most_bad_rows=bad_rows(130) + bad_rows(25) - 1))
    world.run_fairly()
    assert world.phases[-2:] == [Phase.EVALUATING, Phase.FAILED]
    assert world.state.failure == (
        "16 bad rows in all workers, data.bad_rows.at_most allows 15; each worker's log names those that it skipped: "
        "fix them, or allow more"
    )


def test_bad_rows_until_a_record_count_in_a_job_that_is_resumed_from_it():
    world = running(plan(most_bad_rows=16))
    world.run_fairly()
    record = world.state.recovery.record
    assert record is not None and record.positions.streams["training"].bad_rows == bad_rows(130)
    resumed = JobState.new(plan(start_record=record.uri, start_positions=Positions.decode(record.positions.encode())))
    assert resumed.training.bad_rows == bad_rows(130)


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


def test_a_restart_counts_against_no_pod_and_delays_no_record():
    world = running()
    due = world.state.saves.next_save
    world.time += 19.0
    pods = dict(world.plane.pods)
    world.handle(events.Restarted(time=world.time))
    assert world.state.saves.next_save == due
    assert world.plane.pods == pods
    world.time += 59.0
    assert all(deadline > world.time for deadline in world.state.training.deadlines.values())
