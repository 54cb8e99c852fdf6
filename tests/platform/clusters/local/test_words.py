"""Every field of a pod is either honoured by the local cluster or refused by name."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from elastrec.platform.clusters.local import LocalCluster
from elastrec.platform.clusters.local.launcher import LocalLauncher
from elastrec.platform.clusters.pods import BackendOptions, Placement, PodGroup, PodPhase
from elastrec.platform.specs.errors import ClusterError
from elastrec.platform.specs.metrics import Role
from elastrec.platform.transport.wire.channel import Channel, LostError

pytestmark = pytest.mark.services

LONG = "import time; time.sleep(600)"


class OtherOptions(BackendOptions, frozen=True, tag="other"):
    account: str = "me"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"queue": "ads"}, ("queue 'ads' is not allowed", "no queues", "leave it out")),
        ({"image": "clicks:1"}, ("image 'clicks:1' is not allowed", "interpreter", "leave it out")),
        ({"options": OtherOptions()}, ("options of 'other' are not allowed", "leave them out")),
        ({"group": PodGroup("all", 0)}, ("group", "least >= 1")),
        ({"group": PodGroup("", 1)}, ("group", "a name")),
        (
            {"placement": Placement(near_nodes={"disk": "fast"}, is_required=True)},
            ("placement.near_nodes {'disk': 'fast'}", "no labels", "is_required to false"),
        ),
        (
            {"placement": Placement(avoid_pods={"role": "ps"}, is_required=True)},
            ("placement.avoid_pods {'role': 'ps'}", "one node", "is_required to false"),
        ),
    ],
)
def test_fields_that_one_machine_cannot_honour_are_refused_by_name(
    cluster, make_pod, fields: dict[str, Any], says
) -> None:
    pod = make_pod(**fields)
    with pytest.raises(ClusterError) as refused:
        cluster.create(pod)
    assert [text for text in (pod.name, *says) if text not in str(refused.value)] == []
    assert not refused.value.retryable
    assert cluster.list() == []


def test_a_dry_run_refuses_other_backends_options_too(cluster, make_pod) -> None:
    with pytest.raises(ClusterError, match="options of 'other'"):
        LocalLauncher(cluster).dry_run(make_pod(options=OtherOptions()))


def test_a_preference_for_a_place_and_what_one_node_fulfils_anyway_are_taken(cluster, make_pod, until, running) -> None:
    kept = Placement(near_pods={"role": "ps"}, avoid_nodes={"disk": "slow"}, is_required=True)
    preferred = Placement(near_nodes={"disk": "fast"}, avoid_pods={"role": "ps"})
    for placement in (kept, preferred):
        until(cluster, cluster.create(make_pod(LONG, placement=placement)).name, running)


def test_pods_of_a_group_start_together_once_the_least_number_fits(cluster, make_pod, until, running) -> None:
    group = PodGroup("all", 2)
    in_the_way = cluster.create(make_pod(LONG, cores=3.0))
    until(cluster, in_the_way.name, running)
    first = cluster.create(make_pod(LONG, cores=1.0, group=group))
    assert (first.phase, first.waits_for_room) == (PodPhase.PENDING, True)
    assert "group all: 1 of 2 pods are there" in first.message
    second = cluster.create(make_pod(LONG, cores=1.0, group=group))
    assert "insufficient cpu: asked 2.0, free 1.0" in second.message, "one of them alone would fit"
    later = cluster.create(make_pod(LONG, cores=0.5))
    assert later.phase is PodPhase.RUNNING, "what does not wait for the group passes it"
    cluster.delete(later.name, grace_seconds=0.0)
    cluster.delete(in_the_way.name, grace_seconds=0.0)
    for pod in (first, second):
        until(cluster, pod.name, running)
    third = cluster.create(make_pod(LONG, cores=1.0, group=group))
    assert third.phase is PodPhase.RUNNING, "of a group that has started, each starts by itself"


def test_groups_of_different_jobs_have_nothing_to_do_with_each_other(cluster, make_pod) -> None:
    group = PodGroup("all", 2)
    pods = [cluster.create(make_pod(job=job, group=group)) for job in ("one", "other")]
    assert [pod.phase for pod in pods] == [PodPhase.PENDING, PodPhase.PENDING]


def test_a_group_has_one_least_number(cluster, make_pod) -> None:
    cluster.create(make_pod(group=PodGroup("all", 2)))
    with pytest.raises(ClusterError, match=r"group.least 3 is not allowed.*says 2"):
        cluster.create(make_pod(group=PodGroup("all", 3)))


def test_of_pods_that_wait_the_one_of_the_highest_priority_starts_first(cluster, make_pod, until, running) -> None:
    in_the_way = cluster.create(make_pod(LONG, cores=4.0))
    low, high = (cluster.create(make_pod(LONG, cores=3.0, priority=priority)) for priority in (0, 5))
    cluster.delete(in_the_way.name, grace_seconds=0.0)
    until(cluster, high.name, running)
    waiting = cluster.get(low.name)
    assert waiting is not None and waiting.phase is PodPhase.PENDING


def test_a_pod_that_is_being_deleted_has_a_deadline(cluster, make_pod, until, running) -> None:
    stubborn = make_pod(
        f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); {LONG}"
    )
    pod = until(cluster, cluster.create(stubborn).name, running)
    assert pod.ending_until_unix_seconds is None
    next(iter(cluster.logs(pod.name, follow=True)))
    cluster.fleet(pod.job).delete(pod.name, pod.uid, grace_seconds=300.0)
    ending = cluster.get(pod.name)
    assert ending is not None and ending.is_ending
    assert ending.ending_until_unix_seconds > pod.started_unix_seconds + 299.0


# The launcher


@pytest.fixture
def launcher(cluster: LocalCluster) -> LocalLauncher:
    return LocalLauncher(cluster)


def test_a_job_is_submitted_once_and_again_after_it_has_ended(launcher, cluster, make_pod, until, running) -> None:
    first = make_pod("import sys; sys.stdin.read(); import signal; signal.pause()", role=Role.MASTER)
    uid = launcher.submit(first).uid
    assert launcher.submit(first).uid == uid
    until(cluster, first.name, running)
    assert launcher.submit(first).uid == uid
    short = make_pod("print('done')", role=Role.MASTER, name="short", job="short")
    before = launcher.submit(short)
    until(cluster, short.name)
    after = launcher.submit(short)
    assert after.uid != before.uid
    assert after.phase in (PodPhase.PENDING, PodPhase.RUNNING)
    assert [pod.uid for pod in launcher.pods("short")] == [after.uid]


def test_a_submission_whose_answer_was_lost_makes_no_second_pod(
    launcher, cluster, make_pod, until, monkeypatch
) -> None:
    short = make_pod("print('done')", role=Role.MASTER)
    request, lost = Channel.request, []

    def lose_the_first_answer(channel: Channel, *arguments: Any) -> Any:
        answer = request(channel, *arguments)
        if lost:
            return answer
        lost.append(answer)
        until(cluster, short.name)
        raise LostError("the answer was lost")

    monkeypatch.setattr(Channel, "request", lose_the_first_answer)
    made = launcher.submit(short)
    assert lost and [pod.uid for pod in cluster.list()] == [made.uid]
    assert cluster.get(short.name).phase is PodPhase.SUCCEEDED, "no second pod has begun"


def test_a_job_is_found_by_its_first_pod(launcher, cluster, make_pod) -> None:
    assert launcher.find("job") is None
    worker = cluster.create(make_pod())
    assert launcher.find("job") is None
    master = launcher.submit(make_pod(role=Role.MASTER, serves=True))
    alone = launcher.submit(make_pod(role=Role.EVALUATOR, job="evaluation"))
    found = launcher.find("job")
    assert found is not None and found.uid == master.uid
    assert launcher.address(found) == master.address != ""
    assert [pod.uid for pod in launcher.jobs()] == [master.uid, alone.uid]
    assert [pod.uid for pod in launcher.pods("job")] == [worker.uid, master.uid]


def test_removing_a_job_ends_its_master_first_and_includes_late_pods(launcher, cluster, make_pod) -> None:
    worker = cluster.create(make_pod())
    master = launcher.submit(make_pod(role=Role.MASTER))
    other = cluster.create(make_pod(job="other"))
    delete, order = cluster.delete, []

    def deleting(name: str, **arguments: Any) -> None:
        order.append(name)
        if name == master.name:
            order.append(cluster.create(make_pod(name="made-meanwhile")).name)
        delete(name, **arguments)

    launcher.cluster = Deleting(cluster, deleting)
    assert launcher.remove("job") == [master.name, worker.name, "made-meanwhile"]
    assert order == [master.name, "made-meanwhile", worker.name, "made-meanwhile"]
    assert [pod.name for pod in cluster.list()] == [other.name]
    assert launcher.remove("job") == []


@dataclasses.dataclass
class Deleting:
    """A cluster whose deletions are seen."""

    cluster: LocalCluster
    delete: Any

    def list(self, job: str | None = None) -> Any:
        return self.cluster.list(job)


def test_the_nodes_are_this_machine_and_what_is_free_on_it(launcher, cluster, make_pod) -> None:
    cluster.create(make_pod(cores=1.0))
    (node,) = launcher.nodes()
    assert (node.name, node.size.cores, node.free.cores, node.takes_pods) == ("node-a", 4.0, 3.0, True)
    assert cluster.fleet("job").nodes() == launcher.nodes()
