"""The reconciliation of wanted and observed pods, case by case."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from elastrec.platform.clusters.pods import EndReason, PodEvent, PodEventKind, PodPhase, PodSize, PodStatus, ResizeState
from elastrec.platform.master.machine import events
from elastrec.platform.master.machine.state import JobState
from elastrec.platform.master.pods.observed import Observed
from elastrec.platform.master.pods.wanted import (
    Action,
    Create,
    Delete,
    Found,
    Granted,
    Infeasible,
    Lost,
    Resize,
    compare,
    wanted,
)
from elastrec.platform.specs.metrics import Role
from tests.platform.master.world import plan
from tests.shapes import change, shape

SIZE, LARGE = PodSize(1.0, 1000), PodSize(2.0, 1000)
RUNNING = PodStatus(name="j-worker-0", uid="a", job="j", role=Role.WORKER, phase=PodPhase.RUNNING, size=SIZE)
SERVER = PodStatus(name="j-ps-0", uid="s", job="j", role=Role.PARAMETER_SERVER, phase=PodPhase.RUNNING, size=SIZE)


def of(pod: PodStatus = RUNNING, **changes: Any) -> PodStatus:
    return msgspec.structs.replace(pod, **changes)


def job(*given: events.Event, uid: str = "a") -> JobState:
    """One worker, whose uid is known, and one server, which is of no interest here."""
    state = JobState.new(plan(shape=shape(1, 1)))
    known = [events.PodSeen(time=0.0, pod="j-ps-0", uid="s"), events.PodSeen(time=0.0, pod="j-worker-0", uid=uid)]
    for event in (events.Begun(time=0.0), *known[: 2 if uid else 1], *given):
        state.handle(event)
    return state


def actions(state: JobState, *pods: PodStatus, synced: bool = True) -> list[Action]:
    observed = Observed()
    observed.begin_watch()
    for pod in (SERVER, *pods):
        observed.take(PodEvent(PodEventKind.SEEN, pod))
    if synced:
        observed.take(PodEvent(PodEventKind.SYNCED, resume="t"))
    return compare(wanted(state), observed)


def test_pods_of_the_wanted_shape_are_left_alone() -> None:
    assert actions(job(), RUNNING) == []


def test_a_missing_pod_is_created_only_after_a_complete_snapshot() -> None:
    (create,) = actions(job(uid=""))
    assert isinstance(create, Create) and create.name == "j-worker-0" and create.pod.size == SIZE
    assert actions(job(uid=""), synced=False) == []


def test_an_existing_pod_with_a_wanted_name_is_adopted() -> None:
    assert actions(job(uid=""), of(size=LARGE)) == [Found("j-worker-0", "a")]


@pytest.mark.parametrize("ended", [of(phase=PodPhase.FAILED, end=EndReason.ERROR), of(is_ending=True)])
def test_an_ended_pod_under_a_wanted_name_makes_room_for_another_one(ended: PodStatus) -> None:
    assert actions(job(uid=""), ended) == ([] if ended.is_ending else [Delete("j-worker-0", "a")])


def test_the_end_of_a_pod_is_reported_with_its_reason() -> None:
    ended = of(phase=PodPhase.FAILED, end=EndReason.EVICTED)
    assert actions(job(), ended) == [Lost("j-worker-0", "a", EndReason.EVICTED, ended)]
    assert actions(job()) == [Lost("j-worker-0", "a", EndReason.VANISHED, None)]
    assert actions(job(), synced=False) == []


def test_another_pod_of_a_name_is_deleted_and_no_end_of_ours() -> None:
    assert actions(job(), RUNNING, of(uid="b", phase=PodPhase.FAILED)) == [Delete("j-worker-0", "b")]


def test_a_size_is_requested_until_the_cluster_accepts_or_refuses_it() -> None:
    larger = job(events.ShapeAsked(time=1.0, change=change(worker_cores=2.0)))
    assert actions(larger, RUNNING) == [Resize("j-worker-0", "a", LARGE)]
    assert actions(larger, of(asked=LARGE, resize=ResizeState.DEFERRED)) == []
    infeasible = of(asked=LARGE, resize=ResizeState.INFEASIBLE, resize_message="too large")
    assert actions(larger, infeasible) == [Infeasible("j-worker-0", "a", LARGE, "too large")]
    assert actions(larger, of(size=LARGE)) == [Granted("j-worker-0", "a", LARGE, LARGE)]


def test_a_size_that_the_cluster_rounds_up_counts_as_granted() -> None:
    rounded = PodSize(3.0, 1024)
    state = job(events.ShapeAsked(time=1.0, change=change(worker_cores=2.0)))
    # What came of the larger size is not known before the cluster says so.
    assert actions(state, of(size=rounded, asked=LARGE, resize=ResizeState.IN_PROGRESS)) == [
        Granted("j-worker-0", "a", rounded)
    ]
    given = events.PodResized(time=2.0, pod="j-worker-0", uid="a", cores=3.0, memory_bytes=1024)
    state.handle(given)
    member = state.membership.members["j-worker-0"]
    assert (member.cores, member.awaits_size) == (3.0, True)
    assert actions(state, of(size=rounded, asked=LARGE)) == [Granted("j-worker-0", "a", rounded, LARGE)]
    state.handle(msgspec.structs.replace(given, outcome_of=LARGE))
    assert not member.awaits_size and member.asked == LARGE
    assert actions(state, of(size=rounded, asked=LARGE)) == []
    # The word about a size that was asked for before is none about the next one.
    state.handle(events.ShapeAsked(time=3.0, change=change(worker_cores=4.0)))
    state.handle(msgspec.structs.replace(given, outcome_of=LARGE))
    assert member.awaits_size
    assert actions(state, of(size=rounded, asked=LARGE)) == [Resize("j-worker-0", "a", PodSize(4.0, 1000))]


def test_a_refused_request_restores_the_earlier_shape() -> None:
    refused = events.ResizeRefused(
        time=2.0, pod="j-worker-0", uid="a", cores=2.0, memory_bytes=1000, reason="too large"
    )
    state = job(events.ShapeAsked(time=1.0, change=change(worker_cores=2.0)), refused)
    resize, create = actions(state, of(asked=LARGE, resize=ResizeState.INFEASIBLE))
    assert resize == Resize("j-worker-0", "a", SIZE)
    # Another pod of that size is to take its place.
    assert isinstance(create, Create) and create.pod.size == LARGE
    assert actions(state, RUNNING) == [create]


def test_a_later_pod_is_not_made_with_a_size_that_the_cluster_gives_no_pod() -> None:
    in_place = events.ResizeRefused(
        time=2.0, pod="j-worker-0", uid="a", cores=2.0, memory_bytes=1000, reason="too large"
    )
    at_all = events.PodRefused(time=2.0, pod="j-worker-1", reason="no node is that large")
    larger, more = change(worker_cores=2.0), change(workers=2)
    state = job(events.ShapeAsked(time=1.0, change=larger), in_place, at_all)
    state.handle(events.ShapeAsked(time=3.0, change=more))
    create, _ = actions(state, RUNNING)
    assert isinstance(create, Create) and create.pod.size == SIZE


def test_a_size_that_was_not_requested_is_noticed_and_reverted() -> None:
    state = job()
    assert actions(state, of(size=LARGE)) == [Granted("j-worker-0", "a", LARGE, LARGE)]
    state.handle(events.PodResized(time=1.0, pod="j-worker-0", uid="a", cores=2.0, memory_bytes=1000))
    assert actions(state, of(size=LARGE)) == [Resize("j-worker-0", "a", SIZE)]
    assert state.membership.members["j-worker-0"].cores == 2.0


def test_pods_without_a_place_are_deleted_once_and_those_of_other_roles_never() -> None:
    stray = of(name="j-worker-7", uid="b")
    assert actions(job(), RUNNING, stray) == [Delete("j-worker-7", "b")]
    assert actions(job(), RUNNING, of(stray, is_ending=True)) == []
    assert actions(job(), RUNNING, of(name="j-master", uid="m", role=Role.MASTER)) == []


def test_a_pod_that_has_failed_is_kept_for_its_log_until_the_job_succeeds() -> None:
    gone = events.PodGone(time=1.0, pod="j-worker-0", uid="a", end=EndReason.ERROR, exit_code=1)
    ended = of(phase=PodPhase.FAILED, end=EndReason.ERROR)
    (create,) = actions(job(gone), ended)
    assert isinstance(create, Create) and create.name == "j-worker-0-r1"
    failed = job(gone, events.PodRefused(time=2.0, pod="j-worker-0-r1", reason="no"))
    assert Delete("j-worker-0", "a") not in actions(failed, ended)
    stopped = job(gone, events.StopAsked(time=2.0, reason="enough"))
    assert Delete("j-worker-0", "a") in actions(stopped, ended)
