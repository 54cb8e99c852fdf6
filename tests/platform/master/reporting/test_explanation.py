from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.checkpoints import latest_record
from elastrec.platform.jobs.watching.story import story_of
from elastrec.platform.master.machine import events
from elastrec.platform.master.measuring.time_profile import (
    CHECKPOINTING,
    EVALUATING,
    IDLE,
    PARTS,
    PENDING,
    RECOVERING,
    REDOING,
    STARTING,
    TRAINING,
    WAITING,
    WITHOUT_MASTER,
    TimeProfile,
)
from elastrec.platform.master.reporting.explanation import (
    as_text,
    explanation,
    read_explanation,
    timeline_entry,
    write_explanation,
)
from elastrec.platform.master.service.journal import Journal
from elastrec.platform.specs.metrics import FaultCost, Phase
from elastrec.platform.transport.messages.ledger import Explanation, GetExplanation
from tests.platform.master.disturbing import disturb
from tests.platform.master.fakes import job
from tests.platform.master.service.test_service import Stage, stage  # noqa: F401
from tests.platform.master.world import World, plan
from tests.shapes import change

pytestmark = pytest.mark.usefixtures("some_fleet")


def in_training(world: World) -> None:
    """Everybody behaves until both workers have shards."""
    while len(world.state.training.held) < 2:
        world.start_pod()
        for name in list(world.up):
            world.act(name)
        world.time += 1.0


def seconds(world: World, part: str) -> float:
    return world.state.times.at(world.state, world.time).seconds.get(part, 0.0)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), acts=st.integers(0, 300))
def test_whatever_happens_every_second_belongs_to_one_part(seed: int, acts: int):
    chance = random.Random(seed)
    world = World(plan())
    for _ in range(acts):
        disturb(world, chance)
        world.time += chance.random()
        if chance.random() < 0.05:
            world.handle(events.Measured(time=world.time, waiting_share=chance.random()))
    world.run_fairly()
    times = world.state.times
    # The job's own clock stands still while there is no master.
    without_master = times.seconds.get(WITHOUT_MASTER, 0.0)
    assert times.total - without_master == pytest.approx(world.state.phases.since, rel=1e-9)
    assert set(times.seconds) <= set(PARTS) and all(value >= -1e-9 for value in times.seconds.values())
    assert 0.0 <= times.goodput <= 1.0


def test_a_quiet_job_has_no_lost_work():
    world = World(plan())
    world.run_fairly()
    for part in (STARTING, TRAINING, CHECKPOINTING, EVALUATING):
        assert seconds(world, part) > 0.0, part
    assert seconds(world, REDOING) == seconds(world, RECOVERING) == 0.0


def test_training_since_the_record_is_lost_work_after_a_rollback():
    world = World(plan(save_interval_seconds=0.0))
    in_training(world)
    before = seconds(world, TRAINING)
    world.time += 10.0
    world.kill("j-ps-0")
    assert seconds(world, REDOING) == pytest.approx(before + 10.0)
    assert seconds(world, TRAINING) == 0.0
    world.time += 3.0
    world.run_fairly()
    assert seconds(world, RECOVERING) >= 3.0
    assert world.state.times.total == pytest.approx(world.state.phases.since)


def test_training_before_a_record_is_not_lost_by_a_rollback():
    world = World(plan(save_interval_seconds=0.0))
    in_training(world)
    world.time += 10.0
    world.handle(events.SaveAsked(time=world.time))
    kept = seconds(world, TRAINING)
    world.time += 2.0
    while world.state.recovery.record is None:
        for name in list(world.up):
            world.act(name)
        world.commit()
    assert seconds(world, CHECKPOINTING) == pytest.approx(2.0)
    world.kill("j-ps-0")
    assert seconds(world, TRAINING) == pytest.approx(kept) and seconds(world, REDOING) == 0.0


def test_waiting_for_rows_is_taken_out_of_training():
    world = World(plan())
    in_training(world)
    world.time += 10.0
    world.handle(events.Measured(time=world.time, waiting_share=0.25))
    trained, waited = seconds(world, TRAINING), seconds(world, WAITING)
    assert waited == pytest.approx((trained + waited) / 4)
    world.handle(events.Measured(time=world.time, waiting_share=0.25))
    assert seconds(world, WAITING) == waited


def test_workers_without_shards_are_idle():
    world = World(plan())
    in_training(world)
    idle = seconds(world, IDLE)
    world.kill("j-worker-0")
    world.kill("j-worker-1")
    world.time += 7.0
    world.handle(events.OwnerChanged(time=world.time, owner="me"))
    assert seconds(world, IDLE) - idle == pytest.approx(7.0)


def test_time_without_a_master_is_counted_apart():
    world = World(plan())
    world.time += 4.0
    world.handle(events.Restarted(time=world.time, away_seconds=30.0))
    assert seconds(world, PENDING) == 4.0 and seconds(world, WITHOUT_MASTER) == 30.0


@pytest.mark.parametrize("is_handled_first", [False, True])
def test_time_in_which_the_master_was_suspended_is_counted_apart(is_handled_first: bool):
    world = World(plan(save_interval_seconds=0.0))
    in_training(world)
    world.time += 1.0
    trained = seconds(world, TRAINING)
    world.handle(events.OwnerChanged(time=world.time, owner="me"))
    world.time += 64.0
    if is_handled_first:
        # Calls that arrived meanwhile are answered before the timer notices the suspension.
        world.handle(events.OwnerChanged(time=world.time, owner="another"))
    world.handle(events.Restarted(time=world.time, suspended_seconds=63.5))
    assert seconds(world, WITHOUT_MASTER) == pytest.approx(63.5)
    assert seconds(world, TRAINING) == pytest.approx(trained + 0.5) and seconds(world, IDLE) == 0.0
    # What happened meanwhile is not measured, and a rollback makes no lost work of it.
    world.handle(events.Measured(time=world.time, waiting_share=1.0))
    assert seconds(world, WAITING) == pytest.approx(trained + 0.5)
    world.kill("j-ps-0")
    assert seconds(world, REDOING) == pytest.approx(trained + 0.5)
    assert world.state.times.total == pytest.approx(world.time)
    # The same pause is not counted twice.
    before = seconds(world, WITHOUT_MASTER)
    world.handle(events.Restarted(time=world.time, suspended_seconds=63.5))
    assert seconds(world, WITHOUT_MASTER) == before


def test_looking_at_the_profile_does_not_change_it():
    world = World(plan())
    times = world.state.times
    later = times.at(world.state, world.state.time + 5.0)
    assert later.seconds == {PENDING: 5.0} and times == TimeProfile()


@pytest.mark.parametrize(
    ("decision", "inputs", "what", "cause"),
    [
        (
            "pod_replaced",
            {"pod": "w", "by": "w-r1", "reason": "no heartbeat", "phase": "Training"},
            "lost w",
            "no heartbeat",
        ),
        ("rollback", {"reason": "ps: gone", "generation": 2, "record": "from nothing"}, "the beginning", "ps: gone"),
        ("master_resumed", {"away_seconds": 3.0}, "the master continued", "no master for 3.0 s"),
        (
            "master_resumed",
            {"away_seconds": 0.0, "suspended_seconds": 64.0},
            "the master continued",
            "its process was suspended, or its journal could not be written, for 64.0 s",
        ),
        (
            "job_begun",
            {"record": "", "samples": 0, "workers": 1, "parameter_servers": 2},
            "began without a record with 1 worker, 2 servers",
            "",
        ),
        ("owner_changed", {"owner": "daily/run/launch/1"}, "the owner is now daily/run/launch/1", ""),
        ("something_new", {"size": 3}, "something new", "size 3"),
    ],
)
def test_events_are_shown_with_their_causes(decision: str, inputs: dict[str, object], what: str, cause: str):
    entry = timeline_entry(1.0, 1e9, decision, inputs)
    assert what in entry.what and cause in entry.cause


def test_the_cost_of_a_fault_is_shown_below_it_without_a_separate_entry():
    world = World(plan())
    in_training(world)
    trained = world.state.training.samples
    world.kill("j-ps-0")
    world.time += 4.0
    lines = [
        (world.time, 1e9, each.decision, each.inputs) for each in world.effects if type(each).__name__ == "Decided"
    ]
    journal = SimpleNamespace(timeline=lambda count: (lines, 0))
    times, costs = world.state.times, world.state.faults.costs_at(world.state, world.time)
    story = explanation("j", "Recovering", times, journal, (), costs)  # type: ignore[arg-type]
    rollback = next(entry.cost for entry in story.timeline if entry.what.startswith("rolled back"))
    assert rollback is not None and not rollback.is_over and rollback.paused_seconds == 4.0
    assert f"cost so far: training paused 4.0 s, 12 core-seconds held meanwhile, {trained} rows" in as_text(story)
    world.live_on(5)
    lines = [
        (world.time, 1e9, each.decision, each.inputs) for each in world.effects if type(each).__name__ == "Decided"
    ]
    assert any(decision == "fault_ended" for _, _, decision, _ in lines)
    story = explanation("j", "Training", times, journal)  # type: ignore[arg-type]
    assert "cost: training paused 4.0 s" in as_text(story) and "fault ended" not in as_text(story)


@pytest.mark.parametrize(
    ("decision", "inputs", "cost", "words"),
    [
        ("master_resumed", {"away_seconds": 3.0}, FaultCost(without_master_seconds=3.0), "3.0 s without a master"),
        ("master_resumed", {"away_seconds": 0.0}, FaultCost(), "unknown"),
        (
            "master_resumed",
            {"away_seconds": 0.0, "suspended_seconds": 64.0},
            FaultCost(without_master_seconds=64.0),
            "64.0 s without a master",
        ),
        (
            "job_resumed",
            {"repeated_rows": 1200, "record": "r", "step": 9, "generation": 1, "term": 2},
            FaultCost(repeated_rows=1200),
            "1,200 rows are trained again",
        ),
        ("process_replaced", {"pod": "w", "phase": "Training"}, FaultCost(), "unknown"),
        ("pod_replaced", {"pod": "w", "by": "w-r1", "reason": "", "phase": "Training"}, FaultCost(), "unknown"),
    ],
)
def test_uncounted_costs_of_a_fault_are_unknown(decision: str, inputs: dict[str, object], cost: FaultCost, words: str):
    entry = timeline_entry(1.0, 1e9, decision, inputs)
    assert entry.is_fault and entry.cost == cost and cost.words.startswith(f"cost: {words}")


def test_the_explanation_has_the_reason_of_a_request_for_a_shape():
    world = World(plan())
    in_training(world)
    asked = events.ShapeAsked(
        time=world.time, change=change(workers=3), asked_by="memory-forecast", reason="the limit is reached in 40 s"
    )
    (inputs,) = [effect.inputs for effect in world.handle(asked) if getattr(effect, "decision", "") == "shape_asked"]
    entry = timeline_entry(1.0, 1e9, "shape_asked", inputs)
    assert (
        "by the memory forecast (request 2): 3 workers" in entry.what and entry.cause == "the limit is reached in 40 s"
    )


@pytest.mark.parametrize(("is_granted", "workers", "changes"), [(True, 3, 1), (False, 2, 2)])
def test_the_explanation_has_the_last_sizes_of_the_job_without_those_that_it_never_got(
    tmp_path: Path, is_granted: bool, workers: int, changes: int
):
    world = World(plan())
    in_training(world)
    world.handle(events.ShapeAsked(time=world.time, change=change(workers=3)))
    if is_granted:
        world.start_pod()
    while not world.state.phase.is_final:
        for name in list(world.up):
            world.act(name)
        world.commit()
    journal = Journal(tmp_path / "journal")
    journal.begin(plan())
    journal.start()
    write_explanation(str(tmp_path / "store"), "clicks", "clicks-1", world.state, journal)
    journal.close()
    found = read_explanation(str(tmp_path / "store"), "clicks-1")
    assert found is not None
    story = story_of(found)
    assert story.sizes is not None and (story.sizes.workers, story.shape_changes) == (workers, changes)


def test_every_decision_of_a_disturbed_job_can_be_explained(tmp_path: Path):
    chance, world = random.Random(5), World(plan())
    journal = Journal(tmp_path / "journal")
    journal.begin(plan())
    journal.start()
    handle = world.handle

    def noted(event: events.Event) -> list[object]:
        effects = handle(event)
        lines = [effect for effect in effects if type(effect).__name__ == "Decided"]
        journal.append(event, lines, lambda: b"")  # type: ignore[arg-type]
        return effects  # type: ignore[return-value]

    world.handle = noted  # type: ignore[method-assign,assignment]
    for _ in range(400):
        disturb(world, chance)
    world.run_fairly()
    journal.wait(journal.last)
    lines, omitted = journal.timeline(10_000)
    assert omitted == 0 and len(lines) > 20
    story = Explanation(
        job="j", phase="Succeeded", wall_seconds=world.state.times.total, parts=world.state.times.seconds,
        goodput=world.state.times.goodput, timeline=[timeline_entry(*line) for line in lines],
    )  # fmt: skip
    text = as_text(story)
    assert "rolled back to" in text and "because:" in text and "training" in text
    assert journal.timeline(3) == (lines[-3:], len(lines) - 3)
    journal.close()


def test_a_jobs_parts_sum_to_its_wall_time_and_its_story_outlives_it(stage: Callable[..., Stage], tmp_path: Path):  # noqa: F811
    s = stage(job(checkpoint={"interval": 0.3}), rows=20_000)
    s.wait(lambda: s.service.state.saves.completed >= 1 and s.service.state.training.done > 60)
    s.stop()
    time.sleep(0.5)  # what is measured here is time itself
    s.start()
    s.wait(lambda: s.service.state.phase is Phase.TRAINING and s.service.state.saves.quiescing is None)
    done = s.service.state.training.done
    s.wait(lambda: s.service.state.training.done > done + 20)
    s.pods["clicks-1-ps-0"].kill()
    s.wait_for(Phase.SUCCEEDED)
    live = s.call(GetExplanation(), Explanation)
    assert sum(live.parts.values()) == pytest.approx(live.wall_seconds, rel=1e-6)
    # The wall clock, against which the parts were not added up; its first line is written a moment after the beginning.
    wall = live.timeline[-1].unix_seconds - live.timeline[0].unix_seconds
    assert live.wall_seconds == pytest.approx(wall, rel=0.01, abs=0.4)
    assert live.parts[WITHOUT_MASTER] >= 0.5 and live.parts[REDOING] > 0.0 and 0.0 < live.goodput < 1.0
    timeline_text = " | ".join(entry.what for entry in live.timeline)
    for words in (
        "began",
        "started clicks-1-worker-0",
        "saved",
        "the master continued",
        "lost clicks-1-ps-0",
        "succeeded",
    ):
        assert words in timeline_text
    assert s.service.totals()["job/goodput"] == live.goodput
    faults = [entry.what for entry in live.timeline if entry.is_fault]
    rollback = next(entry.cost for entry in live.timeline if entry.what.startswith("rolled back"))
    assert (
        rollback is not None and rollback.is_over and rollback.paused_seconds == pytest.approx(live.parts[RECOVERING])
    )
    assert rollback.repeated_seconds == pytest.approx(live.parts[REDOING])
    assert "the master continued" in faults and any(what.startswith("lost clicks-1-ps-0") for what in faults)
    assert not any(what.startswith(("began", "started", "saved", "succeeded")) for what in faults)
    s.wait(lambda: read_explanation(str(tmp_path / "store"), "clicks-1") is not None)
    left = read_explanation(str(tmp_path / "store"), "clicks-1")
    assert left is not None and left.parts == live.parts and len(left.timeline) >= len(live.timeline)
    record = latest_record(str(tmp_path / "store"), "clicks")
    assert record is not None and json.loads(record.manifest.attributes["encodings"]) == {"user": "integer"}
