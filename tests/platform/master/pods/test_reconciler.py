"""A real master with its threads on a cluster that is unreachable, slow, full or has lost state."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from elastrec.platform.clusters.pods import EndReason, PodPhase, PodSize, PodSpec
from elastrec.platform.master.pods.reconciler import Reconciler
from elastrec.platform.master.pods.wanted import Wanted
from elastrec.platform.specs.errors import ClusterError
from elastrec.platform.specs.metrics import Phase, Role
from elastrec.platform.transport.messages.job import Done
from elastrec.platform.transport.messages.ledger import Explanation, GetExplanation
from elastrec.platform.transport.messages.observer import CancelShape, ChangeShape, SaveNow, ShapeAnswer, ShapeOutcome
from elastrec.platform.transport.messages.profile import GetProfile, Profile
from tests.platform.master.fakes import FakeCluster, job
from tests.platform.master.stage import Stage
from tests.shapes import change

pytestmark = pytest.mark.usefixtures("fleet")

WORKER = "clicks-1-worker-1"
PATIENT = {"heartbeat_interval": 0.02, "heartbeat_timeout": 60, "lease": 60}


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A job that would train for a long time."""
    with contextlib.ExitStack() as stack:
        made = Stage(tmp_path, job(faults=PATIENT), rows=200_000)
        stack.callback(made.close)
        yield made


def training(stage: Stage) -> Stage:
    stage.start()
    stage.wait_for(Phase.TRAINING)
    stage.wait(lambda: all(member.uid for member in stage.service.state.membership.members.values()))
    return stage


def worker_of(stage: Stage) -> Callable[[], object]:
    return lambda: stage.service.state.membership.members.get(WORKER)


def story(stage: Stage) -> str:
    timeline = stage.call(GetExplanation(), Explanation).timeline
    return "\n".join(f"{entry.what}: {entry.cause}" for entry in timeline)


def test_an_unreachable_cluster_affects_neither_records_nor_training(stage: Stage) -> None:
    s = training(stage)

    def away(operation: str, name: str) -> None:
        raise ClusterError("the API is away", retryable=True)

    s.cluster.before = away
    assert s.call(ChangeShape(change=change(workers=12)), ShapeAnswer).accepted
    s.wait(lambda: "the API is away" in s.metrics().reason)
    assert s.call(SaveNow()).accepted
    s.wait(lambda: s.service.state.recovery.record is not None)
    trained = s.service.state.training.samples
    s.wait(lambda: s.service.state.training.samples > trained + 500)
    assert len(s.cluster.pods) == 4 and s.service.state.phase is Phase.TRAINING
    s.cluster.before = lambda operation, name: None
    s.wait(lambda: len(s.cluster.pods) == 14)
    s.wait(lambda: "the API is away" not in s.metrics().reason)


def test_a_pod_over_quota_waits_and_status_shows_it(stage: Stage) -> None:
    s, full = training(stage), [True]

    def quota(operation: str, name: str) -> None:
        if operation == "create" and full[0]:
            raise ClusterError("exceeded quota: cpu", retryable=True)

    s.cluster.before = quota
    s.call(ChangeShape(change=change(workers=3)), ShapeAnswer)
    s.wait(lambda: s.metrics().reason == "clicks-1-worker-2 is not created: exceeded quota: cpu (tried again)")
    full[0] = False
    s.wait(lambda: "clicks-1-worker-2" in s.cluster.pods)


def test_a_late_report_about_an_earlier_pod_of_a_name_replaces_no_pod(stage: Stage) -> None:
    s = training(stage)
    healthy = s.cluster.pods[WORKER]
    earlier = msgspec.structs.replace(healthy, uid="an-earlier-pod", phase=PodPhase.FAILED, end=EndReason.KILLED)
    with s.cluster.changed:
        s.cluster.plane.report_late(earlier)
        s.cluster.changed.notify_all()
    # Later events were heard, so this one was, too.
    s.call(ChangeShape(change=change(workers=3)), ShapeAnswer)
    s.wait(lambda: "clicks-1-worker-2" in s.pods)
    s.wait(lambda: "clicks-1-worker-2" in s.service._reconciler.running())
    assert s.service.state.membership.losses == {}
    assert s.cluster.pods[WORKER].uid == healthy.uid and not s.cluster.pods[WORKER].is_ending


def test_a_refused_resize_does_not_change_the_job(stage: Stage) -> None:
    s = training(stage)

    def too_large(operation: str, name: str) -> None:
        if operation == "resize" or (operation == "create" and name not in s.cluster.pods):
            raise ClusterError("no node has 4 cores")

    s.cluster.before = too_large
    cores = s.service.state.membership.members[WORKER].cores
    s.call(ChangeShape(change=change(worker_cores=4.0)), ShapeAnswer)
    s.wait(lambda: not s.service.state.shape_requests[-1].is_open)
    assert {worker.cores for worker in s.service.state.membership.workers()} == {cores} != {4.0}
    assert s.call(GetProfile(), Profile).configuration[Role.WORKER].size.cores == cores
    assert "4 cores were refused: no node has 4 cores" in {pod.reason for pod in s.metrics().pods}
    request = s.service.state.shape_requests[-1]
    assert request.outcome is ShapeOutcome.REFUSED and "no node has 4 cores" in request.reason
    assert f"{WORKER} keeps {cores:g} cores instead of 4: no node has 4 cores" in story(s)


def test_a_deferred_resize_costs_and_counts_when_it_is_granted(stage: Stage) -> None:
    s = training(stage)
    if not s.cluster.plane.can_defer:
        pytest.skip("this cluster refuses what has no room")
    s.cluster.plane.defers_resizes = True
    membership = s.service.state.membership
    cores = membership.members[WORKER].cores
    s.call(ChangeShape(change=change(worker_cores=4.0)), ShapeAnswer)
    words = f"has {cores:g} cores, 4 cores requested: the node is full"
    s.wait(lambda: [pod.reason for pod in s.metrics().pods].count(words) == 2)
    assert {worker.cores for worker in membership.workers()} == {cores}
    assert s.call(GetProfile(), Profile).configuration[Role.WORKER].size.cores == cores
    with s.cluster.changed:
        s.cluster.plane.defers_resizes = False
        s.cluster.plane.settle()
        s.cluster.changed.notify_all()
    s.wait(lambda: {worker.cores for worker in membership.workers()} == {4.0})
    assert s.call(GetProfile(), Profile).configuration[Role.WORKER].size.cores == 4.0
    assert words not in {pod.reason for pod in s.metrics().pods}


def test_a_resize_that_cannot_be_taken_back_is_tried_again_after_pauses(stage: Stage) -> None:
    s, asked = training(stage), list[str]()
    if not s.cluster.plane.can_defer:
        pytest.skip("this cluster refuses what has no room")
    s.cluster.plane.defers_resizes = True
    request = s.call(ChangeShape(change=change(worker_cores=4.0)), ShapeAnswer).request_id
    s.wait(lambda: len(s.cluster.resized) == 2)

    def gone(operation: str, name: str) -> None:
        if operation == "resize":
            asked.append(name)
            raise ClusterError(f"{name} is not there")

    s.cluster.before = gone
    assert s.call(CancelShape(request_id=request), Done).accepted
    s.wait(lambda: f"{WORKER} is not resized: {WORKER} is not there (tried again)" in s.metrics().reason)
    s.wait(lambda: asked.count(WORKER) == 4)
    assert story(s).count("is not there") == 0, "each refusal was an event, which led to the next request"


def test_a_pod_that_vanished_between_two_watches_is_replaced(stage: Stage) -> None:
    play = stage.cluster.on_create

    def never_speaks(spec: PodSpec) -> None:
        if spec.name != WORKER:
            play(spec)

    stage.cluster.on_create = never_speaks
    s = training(stage)
    with s.cluster.changed:
        s.cluster.plane.vanish(s.cluster.plane.named(WORKER).uid)  # type: ignore[union-attr]
    s.wait(lambda: f"{WORKER}-r1" in s.pods)
    assert f"lost {WORKER}, replaced by {WORKER}-r1: ended (Vanished)" in story(s)


def test_a_deletion_that_is_refused_for_the_moment_is_repeated(stage: Stage) -> None:
    s, refusals = training(stage), [3]

    def conflict(operation: str, name: str) -> None:
        if operation == "delete" and refusals[0]:
            refusals[0] -= 1
            raise ClusterError("conflict", retryable=True)

    s.cluster.before = conflict
    s.call(ChangeShape(change=change(parameter_servers=1)), ShapeAnswer)
    s.wait(lambda: "clicks-1-ps-1" not in s.cluster.pods)
    assert refusals == [0] and s.service.state.phase is not Phase.FAILED


def test_the_name_of_a_pod_is_never_used_again(stage: Stage) -> None:
    s = training(stage)
    s.call(ChangeShape(change=change(workers=1)), ShapeAnswer)
    s.wait(lambda: worker_of(s)() is None)
    first = {name for name in s.cluster.specs if name.startswith(WORKER)}
    s.call(ChangeShape(change=change(workers=2)), ShapeAnswer)
    s.wait(lambda: f"{WORKER}-r1" in s.pods)
    assert first == {WORKER}
    s.call(ChangeShape(change=change(workers=1)), ShapeAnswer)
    s.wait(lambda: len(s.service.state.membership.workers()) == 1)
    s.call(ChangeShape(change=change(workers=2)), ShapeAnswer)
    s.wait(lambda: f"{WORKER}-r2" in s.pods)


def test_a_master_that_restarts_at_another_address_keeps_its_pods(stage: Stage) -> None:
    s = training(stage)
    before, asked = {name: pod.uid for name, pod in s.cluster.pods.items()}, list[str]()
    s.stop()
    s.cluster.before = lambda operation, name: asked.append(f"{operation} {name}")
    s.address = ""
    s.start()
    s.call(ChangeShape(change=change(workers=3)), ShapeAnswer)
    s.wait(lambda: "clicks-1-worker-2" in s.pods)
    assert s.service.state.phase is not Phase.FAILED, s.service.state.failure
    assert {name: s.cluster.pods[name].uid for name in before} == before
    assert [what for what in asked if not what.startswith("watch")] == ["create clicks-1-worker-2"]


@pytest.mark.parametrize("is_superseded", [True, False])
def test_a_superseded_master_touches_no_pod_that_only_the_other_one_wants(is_superseded: bool) -> None:
    cluster = FakeCluster()
    of_the_other = PodSpec(name=WORKER, job="clicks-1", role=Role.WORKER, command=("x",), size=PodSize(1.0, 1))
    cluster.create(of_the_other)
    nothing = Wanted(pods={}, leaving=(), kept=frozenset())
    reconciler = Reconciler(
        cluster, lambda: nothing, lambda pod: of_the_other, lambda make: None, lambda: is_superseded
    )
    reconciler.start()
    try:
        if is_superseded:
            reconciler._threads[1].join(30.0)
            assert not reconciler._threads[1].is_alive()
        else:
            with cluster.changed:
                assert cluster.changed.wait_for(lambda: bool(cluster.deleted), 30.0)
    finally:
        reconciler.close()
    assert cluster.deleted == ([] if is_superseded else [WORKER])
