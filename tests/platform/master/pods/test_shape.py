"""Requests for another shape of a running job: each has an id and an outcome, and can be cancelled."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from elastrec.platform.master.machine import events
from elastrec.platform.master.pods.shape_checks import prospects, refusal
from elastrec.platform.master.service.journal import decode_state, encode_state
from elastrec.platform.specs.metrics import Phase, Role
from elastrec.platform.specs.shape import Places, PlacesChange, PodSize
from elastrec.platform.specs.text.plain_words import numbered
from elastrec.platform.transport.messages.ledger import Explanation, GetExplanation
from elastrec.platform.transport.messages.observer import (
    REQUEST_TIMEOUT_SECONDS,
    CancelShape,
    ChangeShape,
    GetStatus,
    PodMove,
    ShapeAnswer,
    ShapeOutcome,
    ShapeRequest,
    Status,
)
from elastrec.platform.transport.messages.profile import GetProfile, Profile
from tests.platform.master.service.test_service import stage  # noqa: F401
from tests.platform.master.stage import Stage
from tests.platform.master.world import World, plan, running
from tests.shapes import change

pytestmark = pytest.mark.usefixtures("fleet")


def ask(world: World, **shape_asked: float) -> None:
    world.handle(events.ShapeAsked(time=world.time, change=change(**shape_asked)))


def last(world: World) -> ShapeRequest:
    assert world.state.shape_requests
    return world.state.shape_requests[-1].reported()


def long_job(**changes: object) -> World:
    return running(plan(training_rows=20_000, save_interval_seconds=0.0, **changes))


def test_a_request_is_open_until_every_pod_that_is_wanted_works():
    world = long_job()
    ask(world, workers=3)
    assert last(world) == ShapeRequest(request_id="shape-2", wanted="3 workers", outcome=ShapeOutcome.OPEN)
    world.live_on(1)
    assert last(world).outcome is ShapeOutcome.DONE
    ask(world, workers=1)
    assert last(world).request_id == "shape-3" and last(world).outcome is ShapeOutcome.OPEN
    world.live_on(8)
    assert last(world).outcome is ShapeOutcome.DONE and len(world.state.membership.workers()) == 1


def test_a_request_for_the_present_shape_is_done_immediately():
    world = long_job()
    ask(world, workers=2, parameter_servers=2)
    assert last(world).outcome is ShapeOutcome.DONE and not world.state.saves.is_asked


def test_a_size_rounded_to_whole_cores_counts_as_granted(fleet: str):
    world = long_job()
    ask(world, worker_cores=1.5)
    world.live_on(1)
    assert last(world).outcome is ShapeOutcome.DONE
    granted = 2.0 if fleet == "yarn" else 1.5
    assert {(worker.cores, worker.asked.cores) for worker in world.state.membership.workers()} == {(granted, 1.5)}
    # Nothing is asked for again, and a new pod is asked for as the others were.
    assert all(pod.asked_size.cores == 1.5 for pod in world.plane.pods.values() if pod.role is Role.WORKER)
    ask(world, workers=3)
    world.live_on(1)
    assert {worker.asked.cores for worker in world.state.membership.workers()} == {1.5}
    assert last(world).outcome is ShapeOutcome.DONE


def test_other_servers_that_are_not_wanted_any_more_never_come():
    world = long_job()
    ask(world, parameter_servers=3)
    ask(world, parameter_servers=2)
    world.live_on(10)
    assert len(world.state.membership.servers()) == 2 and world.state.recovery.rollbacks == 0
    assert last(world).outcome is ShapeOutcome.DONE


def test_a_later_request_supersedes_an_open_one_with_the_same_fields():
    world = long_job()
    ask(world, parameter_servers=3, workers=3)
    ask(world, workers=4)
    ends = [e.inputs for e in world.effects if getattr(e, "decision", "") == "shape_ended"]
    assert ends == [{"request": "shape-2", "outcome": "superseded", "reason": f"by {numbered(last(world).request_id)}"}]
    # What the later one does not name is still wanted.
    assert world.state.wanted_shape[Role.PARAMETER_SERVER].count == 3
    world.live_on(12)
    assert last(world).outcome is ShapeOutcome.DONE
    assert (len(world.state.membership.workers()), len(world.state.membership.servers())) == (4, 3)


def test_requests_with_different_fields_are_fulfilled_together_and_end_separately():
    world = long_job()
    ask(world, parameter_servers=3)
    ask(world, workers=3)
    assert [request.outcome for request in world.state.shape_requests] == [ShapeOutcome.OPEN] * 2
    world.live_on(12)
    assert [request.outcome for request in world.state.shape_requests] == [ShapeOutcome.DONE] * 2
    assert world.state.recovery.rollbacks == 0


def test_the_same_plan_asked_twice_is_one_request():
    world = long_job()
    asked = events.ShapeAsked(time=world.time, change=change(workers=3), plan_id="plan-7")
    world.handle(asked)
    world.handle(asked)
    assert [request.plan_id for request in world.state.shape_requests] == ["plan-7"]
    world.live_on(3)
    assert last(world).outcome is ShapeOutcome.DONE
    world.handle(asked)
    assert len(world.state.shape_requests) == 1


@pytest.mark.parametrize(("frees_plan", "requests"), [(False, 1), (True, 2)])
def test_a_cancelled_plan_is_requested_again_only_if_its_requester_cancelled_it(frees_plan: bool, requests: int):
    world = long_job()
    asked = events.ShapeAsked(time=world.time, change=change(workers=3), plan_id="plan-7")
    world.handle(asked)
    world.handle(events.ShapeCancelled(time=world.time, request_id=last(world).request_id, frees_plan=frees_plan))
    world.handle(asked)
    assert len(world.state.shape_requests) == requests


def test_a_cancelled_request_restores_the_earlier_wanted_shape():
    world = long_job()
    ask(world, workers=4, parameter_servers=3)
    world.handle(events.ShapeCancelled(time=world.time, request_id="shape-2"))
    assert last(world).outcome is ShapeOutcome.CANCELLED
    world.live_on(10)
    assert len(world.state.membership.servers()) == 2 and len(world.state.membership.workers()) == 2
    assert world.state.recovery.rollbacks == 0 and world.state.phase is Phase.TRAINING


def test_a_plan_for_an_older_shape_is_refused_and_the_refusal_is_journalled():
    world = long_job()
    version = world.state.shape_version
    ask(world, workers=3)
    wanted = world.state.wanted_shape
    late = events.ShapeAsked(
        time=world.time, change=change(workers=9), expected_version=version, asked_by="three-stage"
    )
    world.handle(late)
    assert world.state.wanted_shape == wanted and last(world).wanted == "3 workers"
    (refused,) = [e.inputs for e in world.effects if getattr(e, "decision", "") == "shape_refused"]
    assert refused == {
        "wanted": "9 workers", "expected_version": version, "version": version + 1, "asked_by": "three-stage",
    }  # fmt: skip
    world.handle(msgspec.structs.replace(late, expected_version=version + 1))
    assert last(world).wanted == "9 workers"


def test_the_version_of_the_shape_rises_when_another_one_is_wanted_and_only_then():
    world = long_job()
    ask(world, workers=2)
    assert world.state.shape_version == 0 and world.state.shape_changes == []
    ask(world, workers=4)
    assert world.state.shape_version == 1
    world.handle(events.ShapeCancelled(time=world.time, request_id=last(world).request_id))
    assert world.state.shape_version == 2
    there, back = world.state.shape_changes
    assert (there.before, there.after) == (back.after, back.before)
    assert decode_state(encode_state(world.state)).shape_changes == [there, back]


def test_a_master_reports_changes_and_refuses_plans_made_before_them(
    stage: Callable[..., Stage],  # noqa: F811
):
    s = stage(rows=20_000)
    s.wait_for(Phase.TRAINING)
    before = s.call(GetProfile(), Profile)
    assert before.servers_move
    wanted = ChangeShape(change=change(workers=3), expected_version=before.shape_version, asked_by="three-stage")
    assert s.call(wanted, ShapeAnswer).accepted
    after = s.call(GetProfile(), Profile)
    assert after.shape_version == before.shape_version + 1
    (changed,) = after.shape_changes
    assert (changed.after[Role.WORKER].count, changed.asked_by) == (3, "three-stage") and changed.seconds_ago < 60.0
    refused = s.call(ChangeShape(change=change(workers=1), expected_version=before.shape_version), ShapeAnswer)
    assert not refused.accepted
    assert f"expected_version: {before.shape_version} is not allowed" in refused.reason
    assert "plan again" in refused.reason
    late = ChangeShape(change=change(workers=1), expected_version=before.shape_version, dry_run=True)
    assert s.call(late, ShapeAnswer) == refused
    tried = s.call(msgspec.structs.replace(late, expected_version=after.shape_version), ShapeAnswer)
    assert not tried.reason and tried.prospects
    story = s.call(GetExplanation(), Explanation)
    assert any("refused the shape" in entry.what for entry in story.timeline)


def test_only_an_open_request_can_be_cancelled():
    world = long_job()
    ask(world, workers=3)
    world.live_on(1)
    world.handle(events.ShapeCancelled(time=world.time, request_id="shape-2"))
    assert last(world).outcome is ShapeOutcome.DONE and len(world.state.membership.workers()) == 3
    ask(world, workers=4)
    world.handle(events.ShapeCancelled(time=world.time, request_id="shape-2"))
    assert last(world).outcome is ShapeOutcome.OPEN


def test_workers_that_find_no_room_are_given_up_in_time_and_those_that_work_stay():
    world = long_job(lease_seconds=1e6)
    ask(world, workers=4)
    working = {name for name, pod in world.up.items() if pod["role"] is Role.WORKER}
    waiting = sorted(world.state.membership.members.keys() - world.up.keys())
    assert world.state.next_deadline() == world.time + REQUEST_TIMEOUT_SECONDS
    world.time += REQUEST_TIMEOUT_SECONDS
    world.handle(events.Ticked(time=world.time, waiting={waiting[0]: "insufficient cpu"}))
    assert last(world).outcome is ShapeOutcome.TIMED_OUT
    assert last(world).reason == (
        f"it was not reached in 3600 s; not started: {waiting[0]}: insufficient cpu, {waiting[1]}"
    )
    assert {worker.name for worker in world.state.membership.workers()} == working


def test_a_worker_that_the_cluster_refuses_ends_the_request_and_not_the_job():
    world = long_job()
    ask(world, workers=4)
    refused = next(worker.name for worker in world.state.membership.workers() if not worker.is_registered)
    world.handle(events.PodRefused(time=world.time, pod=refused, reason="no node is that large"))
    assert last(world).outcome is ShapeOutcome.REFUSED and last(world).reason == f"{refused}: no node is that large"
    assert len(world.state.membership.workers()) == 2
    world.run_fairly()
    assert world.state.phase is Phase.SUCCEEDED


def refuse(world: World, role: Role) -> None:
    """The cluster refuses every pod of a role that has not started."""
    while not world.state.phase.is_final:
        members = world.state.membership.members.values()
        new = [member.name for member in members if member.role is role and not member.is_registered]
        if not new:
            return
        world.handle(events.PodRefused(time=world.time, pod=new[0], reason="no node is that large"))


@pytest.mark.parametrize(
    "role, first, second",
    [
        (Role.WORKER, {"workers": 3}, {"workers": 4}),
        (Role.WORKER, {"workers": 3, "worker_memory_bytes": 5000}, {"workers": 4}),
        (Role.PARAMETER_SERVER, {"parameter_servers": 3}, {"parameter_servers": 4}),
    ],
)
def test_pods_of_a_superseded_request_are_not_wanted_either_once_the_cluster_refuses_the_later_one(
    role: Role, first: dict[str, float], second: dict[str, float]
):
    world = long_job()
    before = world.state.wanted_shape
    ask(world, **first)
    ask(world, **second)
    refuse(world, role)
    assert [request.outcome for request in world.state.shape_requests] == ["superseded", "refused"]
    assert world.state.wanted_shape == before
    world.live_on(2)
    assert world.state.phase is Phase.TRAINING and len(world.state.membership.members) == 4


def test_a_size_of_a_superseded_request_is_not_wanted_by_two_requests():
    world = long_job()
    ask(world, workers=3, worker_memory_bytes=5000)
    ask(world, workers=4)
    ask(world, worker_memory_bytes=7000)
    refuse(world, Role.WORKER)
    assert [request.outcome for request in world.state.shape_requests] == ["superseded", "superseded", "refused"]
    assert world.state.wanted_shape[Role.WORKER] == Places(2, PodSize(1.0, 1000))


@pytest.mark.parametrize("role", [Role.WORKER, Role.PARAMETER_SERVER])
def test_a_refused_pod_of_a_requested_size_that_replaces_a_lost_one_ends_the_request_and_not_the_job(role: Role):
    world = long_job()
    if not world.plane.can_defer:
        pytest.skip("this cluster refuses what has no room")
    world.plane.defers_resizes = True
    ask(world, **{f"{role.replace('-', '_')}_memory_bytes": 5000})
    lost = next(member for member in world.state.membership.members.values() if member.role is role)
    world.kill(lost.name)
    (again,) = [member for member in world.state.membership.members.values() if not member.is_registered]
    assert again.asked.memory_bytes == 5000
    world.handle(events.PodRefused(time=world.time, pod=again.name, reason="no node is that large"))
    assert last(world).outcome is ShapeOutcome.REFUSED and last(world).reason == f"{again.name}: no node is that large"
    assert world.state.phase is not Phase.FAILED and again.asked.memory_bytes == 1000
    world.live_on(8)
    assert world.state.phase is Phase.TRAINING and len(world.state.membership.members) == 4
    world.kill(again.name)
    (again,) = [member for member in world.state.membership.members.values() if not member.is_registered]
    world.handle(events.PodRefused(time=world.time, pod=again.name, reason="no node is that large"))
    assert world.state.phase is Phase.FAILED


def test_a_refused_replacement_of_a_worker_that_the_job_had_fails_it():
    world = long_job()
    ask(world, workers=4)
    (lost,) = [worker for worker in world.state.membership.workers() if worker.index == 0]
    world.kill(lost.name)
    (again,) = [worker for worker in world.state.membership.workers() if worker.index == 0]
    world.handle(events.PodRefused(time=world.time, pod=again.name, reason="no node is that large"))
    assert world.state.phase is Phase.FAILED


def test_the_end_of_the_job_ends_a_request():
    world = long_job()
    ask(world, workers=4)
    world.handle(events.StopAsked(time=world.time, reason="enough"))
    assert last(world).outcome is ShapeOutcome.SUPERSEDED and last(world).reason == "the job was stopped"


def test_the_outcome_of_a_request_is_reported_and_logged(stage: Callable[..., Stage]):  # noqa: F811
    s = stage(rows=20_000)
    s.wait_for(Phase.TRAINING)
    assert not s.call(GetStatus(), Status).shape_requests
    refused = s.call(ChangeShape(change=change(workers=0)), ShapeAnswer)
    assert not refused.accepted and "allowed: 1 to 10000" in refused.reason
    asked = s.call(ChangeShape(change=change(workers=3)), ShapeAnswer)
    assert asked.request_id == "shape-2"
    s.wait(lambda: s.call(GetStatus(), Status).shape_requests[-1].outcome is ShapeOutcome.DONE)
    late = s.call(CancelShape(request_id="shape-2"))
    assert not late.accepted and "has ended: done" in late.reason
    unknown = s.call(CancelShape(request_id="shape-7"))
    assert not unknown.accepted and "allowed: none is open" in unknown.reason
    story = [entry.what for entry in s.call(GetExplanation(), Explanation).timeline]
    assert "another shape was requested (request 2): 3 workers" in story
    assert "request 2 for another shape: done" in story


def test_a_cancelled_plan_may_be_requested_again_by_its_caller(stage: Callable[..., Stage]):  # noqa: F811
    s = stage(rows=20_000)
    s.wait_for(Phase.TRAINING)
    s.cluster.on_create = lambda spec: None  # the third worker never starts, so that the requests stay open
    plan = ChangeShape(change=change(workers=3), plan_id="plan-7")
    first = s.call(plan, ShapeAnswer).request_id
    assert s.call(CancelShape(request_id=first)).accepted
    assert s.call(plan, ShapeAnswer).request_id == first
    other = msgspec.structs.replace(plan, plan_id="plan-8")
    begun = s.call(other, ShapeAnswer).request_id
    assert s.call(CancelShape(request_id=begun, frees_plan=True)).accepted
    assert s.call(other, ShapeAnswer).request_id not in (first, begun)


def test_only_workers_and_servers_can_be_requested():
    world = long_job()
    evaluators = {Role.EVALUATOR: PlacesChange(count=2)}
    assert "role 'evaluator' is not allowed" in refusal(world.state, ChangeShape(change=evaluators))
    assert "at least 0.01" in refusal(world.state, ChangeShape(change=change(worker_cores=float("nan"))))


def test_so_few_servers_that_the_rows_do_not_fit_are_refused():
    world = long_job()
    fewer, rows = change(parameter_servers=1), {"j-ps-0": 700, "j-ps-1": 600}
    assert refusal(world.state, ChangeShape(change=fewer), row_bytes=rows) == (
        "parameter_servers: 1 is not allowed: all rows together have 1300, and a server has 1000; allowed: at least 2, "
        "or more memory per server"
    )
    assert not refusal(world.state, ChangeShape(change=change(parameter_servers=2)), row_bytes=rows)
    assert not refusal(world.state, ChangeShape(change=fewer), row_bytes={"j-ps-0": 700, "j-ps-1": 300})
    assert not refusal(world.state, ChangeShape(change=fewer), row_bytes={"j-ps-0": 1300})
    larger = change(parameter_servers=1, parameter_server_memory_bytes=2**27)
    assert not refusal(world.state, ChangeShape(change=larger), row_bytes=rows)


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        (ChangeShape(change=change(parameter_servers=3)), "parameter_servers: 3"),
        (ChangeShape(change=change(parameter_server_cores=2.5)), "parameter_server_cores: 2.5"),
        (ChangeShape(moves=[PodMove(pod="j-ps-0")]), "moves: j-ps-0"),
    ],
)
def test_servers_cannot_be_replaced_while_the_job_saves_its_last_record(asked: ChangeShape, field: str):
    world = long_job(most_server_cores=2.0)
    world.state.phases.phase = Phase.SAVING
    reason = refusal(world.state, asked)
    assert (
        reason
        == f"{field} is not allowed while the job is saving its final record; allowed: until its training is over"
    )
    assert not refusal(world.state, ChangeShape(change=change(parameter_server_cores=2.0)))


def test_a_job_that_evaluates_while_servers_wait_for_more_cores_gets_workers_and_refuses_sizes_of_servers():
    world = long_job(most_server_cores=2.0)
    ask(world, parameter_server_cores=3.0)
    assert all(server.outgoing for server in world.state.owners())
    world.state.phases.phase = Phase.EVALUATING
    assert not refusal(world.state, ChangeShape(change=change(workers=3)))
    larger = ChangeShape(change=change(parameter_server_memory_bytes=2**27))
    assert refusal(world.state, larger) == (
        "parameter_server_memory_bytes: 128Mi is not allowed while the job is evaluating; allowed: until its training "
        "is over"
    )


def test_a_dry_run_says_that_a_pod_ended_while_the_cluster_was_asked_for_its_nodes():
    world = long_job()
    moves = ChangeShape(moves=[PodMove(pod="j-ps-0"), PodMove(pod="j-worker-0")])
    assert not refusal(world.state, moves)
    world.kill("j-ps-0")
    gone, moved = prospects(world.state, moves, [], {})
    assert gone == "j-ps-0: not moved: it has just ended"
    assert moved == "j-worker-0: moved: another worker starts, then this one leaves"
