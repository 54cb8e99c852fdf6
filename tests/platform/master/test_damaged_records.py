"""Rollbacks when the record to restore is damaged, or the store is unreachable."""

from __future__ import annotations

import pytest

from elastrec.platform.master.machine import events
from elastrec.platform.master.machine.effects import CommitRecord, Decided
from elastrec.platform.master.measuring.monitor import PodSample
from elastrec.platform.master.reporting.explanation import timeline_entry
from elastrec.platform.master.reporting.status import training_metrics
from elastrec.platform.specs.metrics import Phase, Role
from elastrec.platform.transport.messages.job import RestoreProblem, SavedPart
from tests.platform.master.world import World, plan, running

pytestmark = pytest.mark.usefixtures("some_fleet")


def act(world: World, rounds: int = 1) -> None:
    for _ in range(rounds):
        for name in list(world.up):
            if name in world.up:
                world.act(name)
        world.commit()


def trained(world: World) -> list[events.Event]:
    """Trains a little and saves; returns the events of it."""
    before = len(world.events)
    act(world, 2)
    world.handle(events.SaveAsked(time=world.time))
    saves = world.state.saves.completed
    for _ in range(20):
        act(world)
        if world.state.saves.completed > saves:
            return world.events[before:]
    raise AssertionError(world.state.saves.quiescing)


def lose_a_server(world: World) -> None:
    world.kill(next(name for name, pod in world.up.items() if pod["role"] is Role.PARAMETER_SERVER))
    world.start_pod()


def decisions(world: World) -> list[Decided]:
    """Everything decided, from the world's own events played again."""
    other = World(world.state.plan)
    return [effect for event in world.events[2:] for effect in other.state.handle(event) if isinstance(effect, Decided)]


def test_a_damaged_newest_record_is_replaced_by_the_one_before_with_its_positions():
    world = running(plan(save_interval_seconds=0.0))
    trained(world)
    first = world.state.recovery.record
    trained(world)
    second = world.state.recovery.record
    assert first is not None and second is not None and first.positions != second.positions
    world.damaged.add(second.uri)
    lose_a_server(world)
    assert world.state.recovery.uri == second.uri
    act(world)
    assert world.state.recovery.uri == first.uri and world.state.phase is Phase.RECOVERING
    assert world.state.positions() == first.positions
    assert world.state.phases.generation == 2
    timeline = [timeline_entry(0.0, 0.0, line.decision, line.inputs) for line in decisions(world)]
    assert (f"found {second.uri} damaged", "checksum differs") in [(entry.what, entry.cause) for entry in timeline]
    world.run_fairly()
    assert world.state.phase is Phase.SUCCEEDED and world.state.training.covered_rows() == 130
    # Servers that found damage live on: nobody is replaced for it.
    assert world.state.membership.losses == {Role.PARAMETER_SERVER: 1}


def test_damage_reported_by_many_servers_counts_once():
    world = running(plan(save_interval_seconds=0.0))
    trained(world)
    trained(world)
    record = world.state.recovery.record
    assert record is not None
    world.damaged.add(record.uri)
    lose_a_server(world)
    orders = {pod: restore.order.order_id for pod, restore in world.state.recovery.servers.items()}
    for name in ("j-ps-0-r1", "j-ps-1"):
        problem = RestoreProblem(order_id=orders[name], reason="checksum differs", is_damaged=True)
        report = events.PodReported(
            time=world.time, pod=name, incarnation=world.up[name]["incarnation"], generation=1, reached_version=0,
            damaged=problem,
        )  # fmt: skip
        assert world.state.changes_state(report) is (name == "j-ps-0-r1")
        world.handle(report)
    assert world.state.phases.generation == 2 and len(world.state.recovery.records) == 1


def test_a_job_without_an_undamaged_record_returns_to_its_start():
    world = running(plan(save_interval_seconds=0.0, start_record="file:///store/yesterday"))
    trained(world)
    world.damaged.update(record.uri for record in world.state.recovery.records)
    lose_a_server(world)
    act(world)
    assert world.state.recovery.uri == "file:///store/yesterday"
    assert world.state.training.cursor == 0 and not world.state.training.returned
    world.run_fairly()
    assert world.state.phase is Phase.SUCCEEDED and world.state.training.covered_rows() == 130


def test_a_job_that_started_without_a_record_starts_again_without_one():
    world = running(plan(save_interval_seconds=0.0))
    trained(world)
    world.damaged.update(record.uri for record in world.state.recovery.records)
    lose_a_server(world)
    act(world)
    assert world.state.recovery.uri == "" and world.state.training.cursor == 0
    world.run_fairly()
    assert world.state.phase is Phase.SUCCEEDED


def test_a_damaged_start_record_is_replaced_by_the_one_before():
    world = World(plan(start_record="file:///store/2", older_start_records=["file:///store/1"]))
    world.damaged.add("file:///store/2")
    world.run_fairly()
    assert world.state.phase is Phase.SUCCEEDED
    assert [line.inputs["record"] for line in decisions(world) if line.decision == "rollback"] == ["file:///store/1"]


def test_a_job_whose_start_records_are_all_damaged_fails_and_never_starts_from_nothing():
    world = World(plan(start_record="file:///store/2", older_start_records=["file:///store/1"]))
    world.damaged.update(("file:///store/1", "file:///store/2"))
    world.run_fairly()
    assert world.state.phase is Phase.FAILED and world.state.training.samples == 0
    assert "no undamaged record is left" in world.state.failure and "start_from" in world.state.failure


def test_a_damaged_final_record_is_trained_and_evaluated_again():
    world = running(plan(save_interval_seconds=0.0))
    trained(world)
    while world.state.phase is not Phase.EVALUATING:
        act(world)
    act(world, 2)
    final = world.state.recovery.record
    assert final is not None and final.is_final and world.state.evaluation.cursor > 0
    world.damaged.add(final.uri)
    lose_a_server(world)
    act(world)
    assert world.state.phases.resume is Phase.TRAINING and world.state.evaluation.cursor == 0
    world.run_fairly()
    assert world.state.phase is Phase.SUCCEEDED and world.state.training.covered_rows() == 130
    assert world.state.recovery.record is not None and world.state.recovery.record.uri != final.uri


def test_the_state_keeps_as_many_records_as_the_store():
    world = running(plan(save_interval_seconds=0.0, kept_records=2))
    for _ in range(3):
        trained(world)
    assert len(world.state.recovery.records) == 2 and world.state.saves.completed == 3


def test_a_job_goes_back_to_the_records_on_which_its_kept_records_build():
    world = running(plan(save_interval_seconds=0.0, kept_records=1, deltas=2))
    chain = []
    for _ in range(3):
        trained(world)
        chain.append(world.state.recovery.record)
    assert world.state.recovery.records == chain and chain[0] is not None
    # The newest two are damaged, so the third one is the base of the chain.
    world.damaged.update(record.uri for record in chain[1:] if record is not None)
    lose_a_server(world)
    act(world)
    assert world.state.recovery.uri == chain[0].uri and world.state.positions() == chain[0].positions
    trained(world)
    assert [record.base for record in world.state.recovery.records] == [""], "a full record follows, and is enough"


@pytest.mark.parametrize("bad", [0, 1])
def test_damage_of_a_base_gives_up_all_records_that_build_on_it_at_once(bad: int):
    world = running(plan(save_interval_seconds=0.0, training_rows=400, kept_records=5, deltas=2))
    for _ in range(6):
        trained(world)
    records = list(world.state.recovery.records)
    older, chain = records[:3], records[3:]
    assert [record.base for record in chain] == ["", chain[0].uri, chain[1].uri]
    world.damaged.add(chain[bad].uri)
    lose_a_server(world)
    assert world.state.recovery.uri == chain[-1].uri
    rollbacks = world.state.recovery.rollbacks
    act(world)
    kept = [*older, *chain[:bad]]
    assert world.state.recovery.records == kept and world.state.recovery.uri == kept[-1].uri
    assert set(world.state.recovery.damaged) == {record.uri for record in chain[bad:]}
    assert world.state.recovery.rollbacks == rollbacks + 1
    named = [line.inputs["record"] for line in decisions(world) if line.decision == "record_damaged"]
    assert named == [chain[bad].uri]
    world.run_fairly()
    assert world.state.phase is Phase.SUCCEEDED and world.state.training.covered_rows() == 400


def test_pruning_is_given_the_damaged_records():
    world = running(plan(save_interval_seconds=0.0))
    trained(world)
    bad = world.state.recovery.records[-1].uri
    world.damaged.add(bad)
    lose_a_server(world)
    act(world, 3)
    world.handle(events.SaveAsked(time=world.time))
    while not world.commits:
        for name in list(world.up):
            world.act(name)
    commit = world.commits[0]
    assert isinstance(commit, CommitRecord) and commit.damaged == [bad]


def test_the_final_record_waits_for_an_unreachable_store_with_a_reason():
    world = running(plan(save_interval_seconds=0.0))
    while world.state.phase is not Phase.SAVING:
        act(world)
    for _ in range(50):
        save = world.state.saves.quiescing
        if save is not None:
            for name in list(world.up):
                if world.up[name]["role"] is Role.WORKER:
                    world.act(name)
            away = SavedPart(order_id=save.order_id, manifest_json=b"", problem="no store is there", store_away=True)
            world.handle(
                events.PodReported(
                    time=world.time, pod="j-ps-0", incarnation=world.up["j-ps-0"]["incarnation"], generation=0,
                    reached_version=1, saved=away,
                )
            )  # fmt: skip
            assert "waits for the checkpoint store: j-ps-0: no store is there" in world.state.reason
        world.time += 5.0
        world.tick()
    assert world.state.phase is Phase.SAVING and world.state.saves.failed > 10
    world.run_fairly()
    assert world.state.phase is Phase.SUCCEEDED


@pytest.mark.parametrize("store_away", [True, False])
def test_only_an_unreachable_store_delays_the_final_record(store_away: bool):
    world = running(plan(save_interval_seconds=0.0))
    for _ in range(1000):
        if world.state.phase.is_final or world.state.saves.failed > 5:
            break
        for name in list(world.up):
            world.act(name)
        if world.commits:
            order = world.commits.pop(0).order_id
            world.handle(
                events.RecordFailed(time=world.time, order_id=order, reason="no such folder", store_away=store_away)
            )
        world.time += 1.0
        world.tick()
    assert world.state.phase is (Phase.SAVING if store_away else Phase.FAILED)


def test_the_status_of_a_job_names_the_server_that_waits_for_the_store():
    world = running()
    lose_a_server(world)
    samples = {"j-ps-1": PodSample(problem="no checkpoint store is there")}
    metrics = training_metrics(world.state, "j", 0.0, None, samples, {})
    assert metrics.reason == "j-ps-1 waits for the checkpoint store: no checkpoint store is there"
