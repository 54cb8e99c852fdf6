"""Memory after out-of-memory kills: doubled within the limits of the job file and of the cluster."""

from __future__ import annotations

import random

import pytest

from elastrec.platform.clusters.pods import EndReason, PodSpec, PodStatus
from elastrec.platform.history import metric_names as names
from elastrec.platform.master.machine import events
from elastrec.platform.master.machine.effects import Decided
from elastrec.platform.master.pods.more_memory import ASKED_BY, ROOM_SECONDS
from elastrec.platform.master.reporting.explanation import timeline_entry
from elastrec.platform.master.reporting.status import totals
from elastrec.platform.specs.errors import ClusterError
from elastrec.platform.specs.metrics import Phase, Role
from elastrec.platform.transport.messages.observer import ShapeOutcome
from tests.platform.clusters.fake_fleet import FakeFleet
from tests.platform.master.pods.test_losses import long_job, restore_servers, start_pods
from tests.platform.master.world import World
from tests.shapes import change

pytestmark = pytest.mark.usefixtures("fleet")

ASKED, MOST = 1000, 5000
WORKER, SERVER = "j-worker-0", "j-ps-0"


def job(**changes: object) -> World:
    values = {"most_memory_bytes": {Role.WORKER: MOST, Role.PARAMETER_SERVER: MOST}, "workers": 2}
    return long_job(**(values | changes))  # type: ignore[arg-type]


def kill_for_memory(world: World, pod: str) -> None:
    world.kill(pod, end=EndReason.OUT_OF_MEMORY)


def go_on(world: World) -> None:
    world.plane.settle()
    world.reconcile()
    start_pods(world)
    restore_servers(world)


def asked_bytes(world: World, role: Role) -> dict[str, int]:
    members = world.state.membership.members.values()
    return {member.name: member.asked.memory_bytes for member in members if member.role is role}


def decisions(world: World) -> list[str]:
    return [effect.decision for effect in world.effects if isinstance(effect, Decided)]


@pytest.mark.parametrize(("pod", "role"), [(WORKER, Role.WORKER), (SERVER, Role.PARAMETER_SERVER)])
def test_the_successor_of_a_pod_that_was_killed_for_memory_has_twice_as_much(pod: str, role: Role):
    world = job()
    kill_for_memory(world, pod)
    go_on(world)
    assert asked_bytes(world, role)[f"{pod}-r1"] == 2 * ASKED
    assert world.state.phase is Phase.TRAINING and totals(world.state, world.time)[names.MEMORY_KILLS] == 1
    assert world.state.wanted_shape[role].size.memory_bytes == 2 * ASKED
    (changed,) = world.state.shape_changes
    assert changed.asked_by == ASKED_BY and not world.state.shape_requests


def test_pods_of_its_role_get_as_much_in_place_and_those_of_other_roles_keep_theirs():
    world = job()
    before = dict(world.up)
    kill_for_memory(world, WORKER)
    go_on(world)
    workers = asked_bytes(world, Role.WORKER)
    assert set(workers.values()) == {2 * ASKED} and len(workers) == 2
    assert world.up["j-worker-1"]["uid"] == before["j-worker-1"]["uid"]
    assert set(asked_bytes(world, Role.PARAMETER_SERVER).values()) == {ASKED}


def test_memory_is_doubled_kill_by_kill_up_to_the_limit_of_the_job_file_and_then_the_job_fails():
    world, had = job(), []
    while world.state.phase is Phase.TRAINING:
        pod = next(name for name in sorted(world.up) if name.startswith(WORKER))
        had.append(world.state.membership.members[pod].asked.memory_bytes)
        kill_for_memory(world, pod)
        go_on(world)
    assert had == [ASKED, 2 * ASKED, 4 * ASKED, MOST, MOST]
    assert "twice in a row" in world.state.failure and "spec.scaling.maximum_worker_memory" in world.state.failure


def test_without_a_limit_in_the_job_file_memory_is_not_increased():
    world = job(most_memory_bytes={})
    kill_for_memory(world, WORKER)
    go_on(world)
    assert set(asked_bytes(world, Role.WORKER).values()) == {ASKED}
    kill_for_memory(world, f"{WORKER}-r1")
    assert world.state.phase is Phase.FAILED and "spec.resources.worker.memory" in world.state.failure


def test_two_pods_that_are_killed_at_the_same_size_double_it_once():
    world = job()
    for pod in (WORKER, "j-worker-1"):
        # The second one is killed before its larger size has reached it.
        gone = {"uid": world.state.membership.members[pod].uid, "end": EndReason.OUT_OF_MEMORY, "exit_code": 137}
        world.effects += world.state.handle(events.PodGone(time=world.time, pod=pod, **gone))
    assert asked_bytes(world, Role.WORKER) == {f"{WORKER}-r1": 2 * ASKED, "j-worker-1-r1": 2 * ASKED}
    assert world.state.membership.memory_kills == 2 and decisions(world).count("memory_doubled") == 1


def test_a_pod_that_fits_no_node_starts_with_the_memory_of_the_killed_one(monkeypatch: pytest.MonkeyPatch):
    world = job()
    create = type(world.plane).create

    def create_small(plane: FakeFleet, pod: PodSpec) -> PodStatus:
        if pod.size.memory_bytes > ASKED:
            raise ClusterError(f"{pod.size.memory_bytes} bytes are more than any node has")
        return create(plane, pod)

    monkeypatch.setattr(type(world.plane), "create", create_small)
    kill_for_memory(world, SERVER)
    go_on(world)
    assert asked_bytes(world, Role.PARAMETER_SERVER) == {f"{SERVER}-r1": ASKED}
    assert world.state.phase is Phase.TRAINING, world.state.failure
    assert world.state.wanted_shape[Role.PARAMETER_SERVER].size.memory_bytes == ASKED
    kill_for_memory(world, f"{SERVER}-r1")
    assert world.state.phase is Phase.FAILED and "twice in a row" in world.state.failure


def test_a_pod_that_waits_too_long_starts_with_the_memory_of_the_killed_one():
    world = job()
    kill_for_memory(world, WORKER)
    successor = f"{WORKER}-r1"
    waiting = {successor: "insufficient memory"}
    world.time += 0.5 * ROOM_SECONDS
    world.handle(events.Ticked(time=world.time, waiting=waiting))
    assert asked_bytes(world, Role.WORKER)[successor] == 2 * ASKED
    world.time += 0.5 * ROOM_SECONDS
    assert world.state.next_deadline() is not None and world.state.next_deadline() <= world.time
    world.handle(events.Ticked(time=world.time, waiting=waiting))
    assert asked_bytes(world, Role.WORKER)[successor] == ASKED
    go_on(world)
    assert world.state.phase is Phase.TRAINING and successor in world.up
    decided = [effect for effect in world.effects if isinstance(effect, Decided)]
    entries = [timeline_entry(0.0, 0.0, each.decision, each.inputs) for each in decided if "memory" in each.decision]
    assert [(entry.what, entry.cause) for entry in entries] == [
        ("the successor of j-worker-0 gets 2000 of memory", "it was killed at 1000"),
        ("j-worker-0-r1 gets only 1000 of memory", "2000 were not available: insufficient memory"),
    ]


def test_a_slow_start_is_not_mistaken_for_a_lack_of_room():
    world = job()
    kill_for_memory(world, WORKER)
    world.time += 2 * ROOM_SECONDS
    world.handle(events.Ticked(time=world.time))
    assert asked_bytes(world, Role.WORKER)[f"{WORKER}-r1"] == 2 * ASKED
    assert world.state.next_deadline() is None or world.state.next_deadline() > world.time


def test_requested_memory_is_not_doubled_again():
    world = job()
    world.handle(events.ShapeAsked(time=world.time, change=change(worker_memory_bytes=3 * ASKED), timeout_seconds=9e9))
    member = world.state.membership.members[WORKER]
    # It was killed before the cluster said that it has more.
    member.awaits_size, member.memory_bytes = True, ASKED
    kill_for_memory(world, WORKER)
    assert set(asked_bytes(world, Role.WORKER).values()) == {3 * ASKED}
    assert "memory_doubled" not in decisions(world)


def test_a_job_whose_pods_are_killed_for_memory_at_random_ends_well_or_with_the_reason():
    for seed in range(4):
        chance = random.Random(seed)
        world = job(training_rows=400, shard_rows=10)
        for _ in range(60):
            world.live_on()
            world.time += 1.0
            world.tick()
            if world.up and chance.random() < 0.1 and not world.state.phase.is_final:
                kill_for_memory(world, chance.choice(sorted(world.up)))
        world.run_fairly()
        asked = {member.asked.memory_bytes for member in world.state.membership.members.values()}
        assert all(ASKED <= each <= MOST for each in asked)
        assert world.state.phase is Phase.SUCCEEDED or "twice in a row" in world.state.failure


def wanted_bytes(world: World) -> int:
    return world.state.wanted_shape[Role.WORKER].size.memory_bytes


def ask(world: World, memory_bytes: int) -> None:
    """The request stays open until its third worker has started."""
    wanted = change(workers=3, worker_memory_bytes=memory_bytes)
    world.handle(events.ShapeAsked(time=world.time, change=wanted, timeout_seconds=1000.0))


def time_out(world: World) -> None:
    world.time += 1000.0
    world.handle(events.Ticked(time=world.time))
    assert world.state.shape_requests[-1].outcome is ShapeOutcome.TIMED_OUT


@pytest.mark.parametrize(
    ("asked", "killed_at", "kept"),
    [(3 * ASKED // 2, 3 * ASKED // 2, 3 * ASKED), (3 * ASKED, ASKED, 2 * ASKED), (ASKED // 4, ASKED // 4, ASKED)],
)
def test_a_request_that_is_given_up_does_not_take_back_memory_that_a_kill_has_shown_to_be_needed(
    asked: int, killed_at: int, kept: int
):
    world = job()
    ask(world, asked)
    member = world.state.membership.members[WORKER]
    member.awaits_size, member.memory_bytes = killed_at != asked, killed_at
    kill_for_memory(world, WORKER)
    time_out(world)
    go_on(world)
    assert wanted_bytes(world) == kept
    assert asked_bytes(world, Role.WORKER)[f"{WORKER}-r1"] == kept
    kill_for_memory(world, f"{WORKER}-r1")
    assert world.state.phase is Phase.TRAINING, world.state.failure


def test_memory_that_was_not_granted_does_not_come_back_with_a_request_that_is_given_up():
    world = job()
    ask(world, 3 * ASKED // 2)
    kill_for_memory(world, WORKER)
    world.time += ROOM_SECONDS
    world.handle(events.Ticked(time=world.time, waiting={f"{WORKER}-r1": "insufficient memory"}))
    time_out(world)
    assert wanted_bytes(world) == 3 * ASKED // 2
