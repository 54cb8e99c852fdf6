"""Changes of size or node: in place if there is room; otherwise successors start first and take over."""

from __future__ import annotations

import pytest

from elastrec.platform.clusters.pods import EndReason, PodPhase, PodSize
from elastrec.platform.master.machine import events, migration
from elastrec.platform.master.machine.effects import Decided
from elastrec.platform.master.machine.migration import COPYING, HANDING_OVER, STARTING
from elastrec.platform.master.pods.membership import Member
from elastrec.platform.master.pods.more_memory import ROOM_SECONDS
from elastrec.platform.master.pods.operations import PodOperations
from elastrec.platform.master.pods.shape import IN_PLACE_SECONDS
from elastrec.platform.specs.metrics import MigrationMetrics, Phase, Role
from elastrec.platform.transport.messages.observer import PodMove, ShapeOutcome, WorkerOrder
from tests.platform.master.machine.test_migration import check, go_on, long_job, owners
from tests.platform.master.world import World
from tests.shapes import change

SERVER, WORKER = "j-ps-0", "j-worker-0"
LARGE = PodSize(1.0, 5000)


def ask(world: World, *moved: str, leaves_node: bool = False, **shape_asked: float) -> str:
    """The request's id."""
    moves = [PodMove(pod=pod, leaves_node=leaves_node) for pod in moved]
    world.handle(events.ShapeAsked(time=world.time, change=change(**shape_asked), moves=moves))
    assert world.state.shape_requests
    return world.state.shape_requests[-1].request_id


def outcome(world: World) -> ShapeOutcome:
    assert world.state.shape_requests
    return world.state.shape_requests[-1].outcome


@pytest.fixture
def crowded(monkeypatch: pytest.MonkeyPatch) -> None:
    """No node has the room for another size of a pod that runs; new pods find room."""
    resize = PodOperations._resize

    def refuse(operations: PodOperations, name: str, uid: str, size: PodSize) -> None:
        known = operations._known(uid)
        if known is not None and (known.size == size or known.phase is PodPhase.PENDING):
            resize(operations, name, uid, size)
        else:
            operations._refuse_resize(name, uid, size, "the node is full")

    monkeypatch.setattr(PodOperations, "_resize", refuse)


def by_role(world: World, role: Role) -> set[str]:
    return {member.name for member in world.state.membership.members.values() if member.role is role}


def members(world: World, role: Role) -> list[Member]:
    return [member for member in world.state.membership.members.values() if member.role is role]


@pytest.mark.usefixtures("fleet")
def test_a_size_that_the_nodes_have_room_for_is_reached_in_place_without_a_migration():
    world = long_job()
    before, pods = owners(world), set(world.up)
    ask(world, parameter_server_memory_bytes=5000, worker_memory_bytes=3000)
    world.live_on(1)
    assert outcome(world) is ShapeOutcome.DONE and set(world.up) == pods and owners(world) == before
    granted = {member.role: member.memory_bytes for member in world.state.membership.members.values()}
    assert granted[Role.PARAMETER_SERVER] >= 5000 and granted[Role.WORKER] >= 3000
    assert world.state.recovery.rollbacks == 0


@pytest.mark.usefixtures("fleet", "crowded")
def test_servers_that_cannot_be_resized_in_place_are_succeeded_by_others_of_that_size():
    world = long_job()
    old = by_role(world, Role.PARAMETER_SERVER)
    ask(world, parameter_server_memory_bytes=5000)
    assert old <= by_role(world, Role.PARAMETER_SERVER)
    go_on(world, until=COPYING)
    assert set(owners(world)) == old
    go_on(world)
    check(world)
    servers = world.state.membership.servers()
    assert not old & {server.name for server in servers} and len(servers) == 2
    assert {server.asked for server in servers} == {LARGE}
    assert outcome(world) is ShapeOutcome.DONE and world.state.recovery.rollbacks == 0 and not world.commits


@pytest.mark.usefixtures("crowded")
def test_workers_that_cannot_be_resized_in_place_leave_once_as_many_others_have_registered():
    world = long_job()
    old = by_role(world, Role.WORKER)
    ask(world, worker_cores=2.0)
    for _ in range(6):
        world.start_pod()
        working = [w for w in world.state.membership.workers() if w.is_registered and not w.retiring]
        assert len(working) >= 2
    world.live_on(8)
    workers = world.state.membership.workers()
    assert not old & {worker.name for worker in workers} and len(workers) == 2
    assert {worker.asked.cores for worker in workers} == {2.0} and outcome(world) is ShapeOutcome.DONE


@pytest.mark.usefixtures("crowded")
def test_another_number_and_another_size_are_reached_by_one_migration():
    world = long_job()
    ask(world, parameter_servers=3, parameter_server_memory_bytes=5000, workers=1, worker_cores=2.0)
    go_on(world)
    world.live_on(8)
    check(world)
    assert {server.asked for server in world.state.membership.servers()} == {LARGE}
    assert len(world.state.ownership.servers) == 3 and world.state.ownership.epoch == 2
    (worker,) = world.state.membership.workers()
    assert worker.asked.cores == 2.0 and outcome(world) is ShapeOutcome.DONE


def test_a_size_without_room_in_time_is_reached_by_a_successor():
    world = long_job(lease_seconds=1e6)
    if not world.plane.can_defer:
        pytest.skip("this cluster refuses what has no room")
    world.plane.defers_resizes = True
    ask(world, parameter_server_memory_bytes=5000)
    assert world.state.migration is None
    world.time += IN_PLACE_SECONDS
    world.tick()
    assert all(server.outgoing for server in world.state.owners()) and world.state.migration is not None
    go_on(world)
    assert {server.asked for server in world.state.membership.servers()} == {LARGE}
    assert outcome(world) is ShapeOutcome.DONE


@pytest.mark.parametrize("pod", [SERVER, WORKER])
def test_a_moved_pod_works_until_its_successor_works(pod: str):
    world = long_job()
    role = world.state.membership.members[pod].role
    count = len(by_role(world, role))
    ask(world, pod)
    assert len(by_role(world, role)) == count + 1 and not world.state.membership.members[pod].retiring
    world.live_on(12)
    assert len(by_role(world, role)) == count and pod not in by_role(world, role)
    assert outcome(world) is ShapeOutcome.DONE and world.state.recovery.rollbacks == 0
    check(world)


def test_the_status_shows_each_servers_predecessor_and_the_time():
    world = long_job(lease_seconds=1e6)
    ask(world, SERVER)
    world.time += 1.0
    go_on(world, until=COPYING)
    world.time += 2.0
    shown = MigrationMetrics(stage=COPYING, leaving=(SERVER,), joining=("j-ps-2",), seconds=3.0, stage_seconds=2.0)
    assert migration.metrics(world.state, world.time) == shown
    assert migration.waiting(world.state, world.time) == (
        "to 2 parameter servers, j-ps-2 for j-ps-0: copying of j-ps-2 for 2 s"
    )
    go_on(world, until=HANDING_OVER)
    handing_over = shown.model_copy(update={"stage": HANDING_OVER, "stage_seconds": 0.0})
    assert migration.metrics(world.state, world.time) == handing_over
    go_on(world)
    assert migration.metrics(world.state, world.time) is None


@pytest.mark.parametrize("pod", [SERVER, WORKER])
def test_the_successor_of_a_pod_that_leaves_its_node_must_not_run_there(pod: str):
    world = long_job()
    member = world.state.membership.members[pod]
    member.node = "slow-node"
    ask(world, pod, leaves_node=True)
    (successor,) = [m for m in world.state.membership.members.values() if m.made_for]
    assert successor.role is member.role and successor.avoids_nodes == ["slow-node"]
    # So must not another one in its place.
    world.start_pod()
    world.kill(successor.name)
    (again,) = [m for m in world.state.membership.members.values() if m.made_for]
    assert again.avoids_nodes == ["slow-node"]


def test_moves_of_several_pods_are_reached_together():
    world = long_job()
    for pod in ("j-ps-0", "j-ps-1", WORKER):
        ask(world, pod)
    world.live_on(16)
    assert [request.outcome for request in world.state.shape_requests] == [ShapeOutcome.DONE] * 3
    assert not {"j-ps-0", "j-ps-1", WORKER} & set(world.state.membership.members)
    assert world.state.recovery.rollbacks == 0
    check(world)


@pytest.mark.parametrize("stage", [STARTING, COPYING, HANDING_OVER])
def test_a_move_can_be_cancelled_until_its_hand_over(stage: str):
    world = long_job()
    before = owners(world)
    request_id = ask(world, SERVER)
    go_on(world, until=stage)
    world.handle(events.ShapeCancelled(time=world.time, request_id=request_id))
    if stage == HANDING_OVER:
        assert outcome(world) is ShapeOutcome.OPEN
        go_on(world)
        assert outcome(world) is ShapeOutcome.DONE and SERVER not in owners(world)
        return
    assert outcome(world) is ShapeOutcome.CANCELLED and world.state.migration is None
    assert owners(world) == before and by_role(world, Role.PARAMETER_SERVER) == set(before)


@pytest.mark.usefixtures("crowded")
@pytest.mark.parametrize("registered", [False, True])
def test_a_cancelled_size_of_workers_keeps_the_working_ones(registered: bool):
    world = long_job()
    old = by_role(world, Role.WORKER)
    request_id = ask(world, worker_cores=2.0)
    if registered:
        world.start_pod()
        # The first one has its successor, and leaves.
        old = {w.name for w in world.state.membership.workers() if not w.retiring and w.is_registered}
    world.handle(events.ShapeCancelled(time=world.time, request_id=request_id))
    world.live_on(6)
    workers = world.state.membership.workers()
    assert len(workers) == 2 and {w.name for w in workers} >= old & set(world.up)
    assert not any(w.outgoing or w.made_for for w in workers)


@pytest.mark.usefixtures("crowded")
@pytest.mark.parametrize(
    "later", [{"worker_cores": 1.0}, {"worker_cores": 1.0, "workers": 2}, {"workers": 1, "worker_cores": 1.0}]
)
@pytest.mark.parametrize("registered", [False, True])
def test_workers_that_stay_in_another_size_are_not_more_than_are_wanted(
    later: dict[str, float], registered: bool, monkeypatch: pytest.MonkeyPatch
):
    world = long_job()
    ask(world, worker_cores=2.0)
    if registered:
        world.start_pod()  # the first one has its successor, and leaves
    monkeypatch.undo()  # a smaller size is possible everywhere
    ask(world, **later)
    world.live_on(6)
    assert outcome(world) is ShapeOutcome.DONE
    workers = world.state.membership.workers()
    assert len(workers) == world.state.wanted_shape[Role.WORKER].count == later.get("workers", 2)
    assert not any(worker.outgoing or worker.made_for for worker in workers)


@pytest.mark.usefixtures("crowded")
@pytest.mark.parametrize("asked", [{"parameter_server_memory_bytes": 5000}, {"worker_cores": 2.0}])
def test_successors_that_find_no_room_are_given_up_in_time_and_those_that_work_stay(asked: dict[str, float]):
    world = long_job(lease_seconds=1e6)
    before, up = owners(world), set(world.up)
    ask(world, **asked)
    waiting = sorted(world.state.membership.members.keys() - up)
    assert len(waiting) == 2
    world.time += 3600.0
    world.handle(events.Ticked(time=world.time, waiting=dict.fromkeys(waiting, "insufficient memory")))
    assert outcome(world) is ShapeOutcome.TIMED_OUT
    assert world.state.shape_requests
    assert f"{waiting[0]}: insufficient memory" in world.state.shape_requests[-1].reason
    assert set(world.state.membership.members) == up == set(world.up) and owners(world) == before
    world.live_on(2)
    assert world.state.phase is Phase.TRAINING and world.state.recovery.rollbacks == 0


@pytest.mark.usefixtures("crowded")
@pytest.mark.parametrize("role", [Role.WORKER, Role.PARAMETER_SERVER])
def test_a_successor_that_is_killed_for_its_memory_ends_the_request_and_not_the_job(role: Role):
    world = long_job()
    old = by_role(world, role)
    name = role.replace("-", "_")
    ask(world, **{f"{name}_memory_bytes": 10})
    while not (made := [m for m in world.state.membership.members.values() if m.made_for and m.is_registered]):
        world.start_pod()
    world.kill(made[0].name, end=EndReason.OUT_OF_MEMORY)
    assert outcome(world) is ShapeOutcome.REFUSED
    world.live_on(6)
    there = [member for member in world.state.membership.members.values() if member.role is role]
    assert len(there) == 2 and (role is Role.WORKER or {member.name for member in there} == old)
    assert world.state.wanted_shape[role].size.memory_bytes == 1000
    assert world.state.phase is Phase.TRAINING and world.state.recovery.rollbacks == 0


def test_successors_that_are_lost_again_and_again_end_the_request_and_not_the_job():
    world = long_job(pod_restarts=2)
    ask(world, SERVER)
    for _ in range(3):
        world.start_pod()
        (made,) = [m for m in world.state.membership.members.values() if m.made_for]
        world.kill(made.name)
    assert outcome(world) is ShapeOutcome.REFUSED and "lost 3 times" in (world.state.shape_requests[-1].reason)  # type: ignore[union-attr]
    assert world.state.membership.losses == {}
    world.live_on(2)
    assert world.state.phase is Phase.TRAINING and world.state.recovery.rollbacks == 0


def test_a_successor_whose_process_is_replaced_again_and_again_ends_the_request_and_not_the_job():
    world = long_job()
    ask(world, SERVER)
    go_on(world, until=COPYING)
    (successor,) = [m.name for m in world.state.membership.servers() if m.made_for]
    for _ in range(world.state.plan.pod_restarts + 1):
        assert outcome(world) is ShapeOutcome.OPEN
        world.up[successor] |= {"incarnation": f"{world.up[successor]['incarnation']}+", "copied": ""}
        world.register(successor)
    assert outcome(world) is ShapeOutcome.REFUSED and "process was replaced" in world.state.shape_requests[-1].reason
    world.live_on(6)
    assert world.state.phase is Phase.TRAINING and not world.state.recovery.rollbacks
    assert owners(world).count(SERVER) and successor not in world.state.membership.members
    check(world)


def test_a_worker_without_shards_that_never_leaves_is_deleted():
    world = long_job(lease_seconds=60.0)
    pod = "j-worker-1"
    world.handle(events.PodOrdered(time=world.time, pod=pod, order=WorkerOrder(is_idle=True)))
    world.act(pod)
    assert pod not in world.state.training.held
    ask(world, workers=1)
    leaving = world.state.membership.members[pod]
    assert leaving.retiring
    stuck = world.up.pop(pod)  # its process sends heartbeats, and does nothing else
    for _ in range(10):
        world.live_on(2)
        world.time += 6.9
        world.tick()
    assert pod in world.state.membership.members and outcome(world) is ShapeOutcome.OPEN
    world.time = leaving.leaving_since + world.state.plan.lease_seconds + world.state.plan.exit_seconds
    assert world.state.next_deadline() == world.time
    world.up[pod] = stuck
    world.tick()
    assert pod not in world.state.membership.members and pod not in world.up
    assert outcome(world) is ShapeOutcome.DONE and world.state.phase is Phase.TRAINING


def test_a_worker_that_leaves_has_time_after_its_last_progress():
    world = long_job(lease_seconds=60.0)
    ask(world, workers=1)
    (leaving,) = [worker for worker in world.state.membership.workers() if worker.retiring]
    pod = world.up.pop(leaving.name)
    for _ in range(3):
        world.time += 50.0
        shard, offset = pod["shards"][0]
        pod["shards"][0][1] = offset + 1
        world.handle(
            events.PodReported(
                time=world.time, pod=leaving.name, incarnation=pod["incarnation"], generation=0, reached_version=1,
                progress=[world.progress(shard, offset + 1)],
            )
        )  # fmt: skip
        world.live_on(1)
    assert leaving.leaving_since == world.time
    assert leaving.name in world.state.membership.members


def test_a_new_worker_that_is_lost_while_it_is_moved_is_succeeded_by_one_worker():
    world = long_job()
    ask(world, workers=4)
    world.start_pod()
    (new,) = [worker.name for worker in world.state.membership.workers() if worker.made_for and worker.is_registered]
    ask(world, new)
    world.kill(new)
    world.live_on(6)
    assert [request.outcome for request in world.state.shape_requests or []] == [ShapeOutcome.DONE] * 2
    assert len(world.state.membership.workers()) == world.state.wanted_shape[Role.WORKER].count == 4


def test_a_server_that_is_lost_while_it_is_moved_is_taken_over_by_its_successor():
    world = long_job()
    ask(world, SERVER)
    go_on(world, until=COPYING)
    (successor,) = [m.name for m in world.state.membership.servers() if m.made_for]
    world.kill(SERVER)
    assert world.state.recovery.rollbacks == 1 and successor in owners(world)
    world.live_on(6)
    assert outcome(world) is ShapeOutcome.DONE and len(world.state.membership.servers()) == 2
    check(world)


def test_a_server_that_is_lost_before_its_successor_works_is_replaced_and_still_moved():
    world = long_job()
    ask(world, SERVER)
    world.kill(SERVER)
    (replacement,) = [m for m in world.state.owners() if m.name not in ("j-ps-0", "j-ps-1")]
    assert replacement.outgoing and world.state.recovery.rollbacks == 1
    world.live_on(20)
    assert outcome(world) is ShapeOutcome.DONE and replacement.name not in world.state.membership.members
    check(world)


@pytest.mark.usefixtures("fleet", "crowded")
@pytest.mark.parametrize("role", [Role.PARAMETER_SERVER, Role.WORKER])
def test_a_pod_killed_for_memory_before_its_larger_successor_works_is_replaced_by_that_one(role: Role):
    world = long_job()
    ask(world, **{f"{role.replace('-', '_')}_memory_bytes": LARGE.memory_bytes})
    small = by_role(world, role) & set(world.up)
    assert len(small) == 2 and len(by_role(world, role)) == 4, "its successors wait for a node"
    for pod in sorted(small):
        world.kill(pod, end=EndReason.OUT_OF_MEMORY)
    # Another pod of the small size would be killed again, which fails the job.
    assert {member.asked.memory_bytes for member in members(world, role)} == {LARGE.memory_bytes}
    world.live_on(20)
    assert world.state.phase is Phase.TRAINING and outcome(world) is ShapeOutcome.DONE
    assert len(by_role(world, role)) == 2
    check(world)


@pytest.mark.usefixtures("fleet", "crowded")
@pytest.mark.parametrize("role", [Role.PARAMETER_SERVER, Role.WORKER])
def test_a_request_for_memory_that_no_node_has_is_not_done_when_its_pods_start_with_less(role: Role):
    world = long_job()
    ask(world, **{f"{role.replace('-', '_')}_memory_bytes": LARGE.memory_bytes})
    limit = max(member.memory_bytes for member in members(world, role) if member.is_registered)
    for pod in sorted(by_role(world, role) & set(world.up)):
        world.kill(pod, end=EndReason.OUT_OF_MEMORY)
    world.time += ROOM_SECONDS
    world.handle(events.Ticked(time=world.time, waiting=dict.fromkeys(by_role(world, role), "insufficient memory")))
    request = world.state.shape_requests[-1]
    assert outcome(world) is ShapeOutcome.TIMED_OUT and not request.is_open
    assert f"{LARGE.memory_bytes} of memory were not available: insufficient memory" in request.reason
    (decided,) = [each for each in world.effects if isinstance(each, Decided) and each.decision == "memory_not_granted"]
    assert decided.inputs["asked_memory_bytes"] == LARGE.memory_bytes
    world.live_on(20)
    assert world.state.phase is Phase.TRAINING and len(by_role(world, role)) == 2
    assert {member.asked.memory_bytes for member in members(world, role)} <= {1000, limit}


def test_with_bsp_a_server_moves_during_training_and_its_successor_has_its_place():
    world = long_job(is_synchronous=True)
    first, second = world.state.ownership.servers
    ask(world, first)
    world.live_on(20)
    assert outcome(world) is ShapeOutcome.DONE and world.state.recovery.rollbacks == 0
    successor, other = world.state.ownership.servers
    assert other == second and successor not in (first, second)
    check(world)


def slow(world: World, pod: str) -> None:
    incarnation = world.state.membership.members[pod].incarnation
    world.handle(
        events.PodSlow(
            time=world.time, pod=pod, incarnation=incarnation, ratio=3.0, seconds_per_row=0.3,
            others_seconds_per_row=0.1,
        )
    )  # fmt: skip


def test_a_slow_worker_works_until_its_successor_does_and_the_decision_has_its_inputs():
    world = long_job(slow_pod_moves=1)
    node = world.state.membership.members[WORKER].node = "slow-node"
    slow(world, WORKER)
    (successor,) = [m for m in world.state.membership.workers() if not m.is_registered]
    assert successor.avoids_nodes == [node] and not world.state.membership.members[WORKER].retiring
    (decided,) = [e for e in world.effects if isinstance(e, Decided) and e.decision == "slow_pod_moved"]
    assert (decided.inputs["pod"], decided.inputs["node"], decided.inputs["ratio"]) == (WORKER, node, 3.0)
    world.live_on(12)
    assert outcome(world) is ShapeOutcome.DONE and WORKER not in by_role(world, Role.WORKER)
    assert world.state.recovery.rollbacks == 0 and len(by_role(world, Role.WORKER)) == 2
    # No more of them than the job file allows, of both roles together.
    successor.node = world.state.membership.members[SERVER].node = "another-node"
    slow(world, successor.name)
    slow(world, SERVER)
    assert len(world.state.shape_requests) == 1
    check(world)


@pytest.mark.parametrize("is_synchronous", [False, True])
def test_a_slow_server_serves_until_its_successor_on_another_node_has_its_buckets(is_synchronous: bool):
    world = long_job(slow_pod_moves=1, is_synchronous=is_synchronous)
    slow_server, other = world.state.ownership.servers
    node = world.state.membership.members[slow_server].node = "slow-node"
    slow(world, slow_server)
    (decided,) = [e for e in world.effects if isinstance(e, Decided) and e.decision == "slow_pod_moved"]
    assert (decided.inputs["pod"], decided.inputs["role"]) == (slow_server, Role.PARAMETER_SERVER)
    assert (decided.inputs["node"], decided.inputs["ratio"], decided.inputs["moves"]) == (node, 3.0, 1)
    go_on(world, until=COPYING)
    (successor,) = by_role(world, Role.PARAMETER_SERVER) - {slow_server, other}
    assert world.state.membership.members[successor].avoids_nodes == [node]
    assert world.state.ownership.servers == [slow_server, other]
    go_on(world)
    assert outcome(world) is ShapeOutcome.DONE and world.state.ownership.servers == [successor, other]
    world.live_on(1)
    assert slow_server not in world.state.membership.members
    assert world.state.recovery.rollbacks == 0 and not world.commits
    check(world)


def test_a_server_that_is_slow_while_buckets_change_servers_stays():
    world = long_job(slow_pod_moves=5)
    slow_server, other = world.state.ownership.servers
    world.state.membership.members[slow_server].node = "slow-node"
    epoch, bucket = world.state.ownership.epoch, owners(world).index(slow_server)
    world.handle(
        events.ServerHot(
            time=world.time, server=slow_server, ratio=2.0, ratio_after=1.0, moves={bucket: other},
            ownership_epoch=epoch,
        )
    )  # fmt: skip
    slow(world, slow_server)
    assert not world.state.shape_requests and world.state.slow_moves == 0
    go_on(world)
    slow(world, slow_server)
    assert len(world.state.shape_requests) == 1 and world.state.slow_moves == 1


def test_a_slow_worker_is_not_moved_during_other_changes_or_as_a_new_process():
    world = long_job(slow_pod_moves=5)
    world.state.membership.members[WORKER].node = "slow-node"
    world.handle(
        events.PodSlow(
            time=world.time, pod=WORKER, incarnation="before", ratio=3.0, seconds_per_row=0.3,
            others_seconds_per_row=0.1,
        )
    )  # fmt: skip
    assert not world.state.shape_requests
    ask(world, SERVER)
    slow(world, WORKER)
    assert len(world.state.shape_requests) == 1 and world.state.slow_moves == 0
    world.live_on(20)
    slow(world, WORKER)
    assert len(world.state.shape_requests) == 2 and world.state.slow_moves == 1


def test_a_request_ends_with_its_job():
    world = long_job()
    ask(world, SERVER, worker_cores=2.0)
    world.handle(events.StopAsked(time=world.time, reason="enough"))
    assert outcome(world) is ShapeOutcome.SUPERSEDED
    ask_again = events.ShapeAsked(time=world.time, change={}, moves=[PodMove(pod=WORKER)])
    world.handle(ask_again)
    assert len(world.state.shape_requests) == 1
    world.run_fairly()
    assert not world.plane.pods
