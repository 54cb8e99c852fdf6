"""Jobs as applications, from the view of a client; none of them has a running master."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from elastrec.platform.clusters.nodes import NodeCondition
from elastrec.platform.clusters.pods import PodPhase, PodSpec
from elastrec.platform.master.pods.launch import master_pod
from elastrec.platform.specs.errors import ClusterError
from elastrec.platform.specs.metrics import Role
from elastrec.platform.specs.shape import PodSize
from tests.platform.master.fakes import job, launch
from tests.spikes.yarn.backend import YarnConfig
from tests.spikes.yarn.launcher import YarnLauncher
from tests.spikes.yarn.sizes import MEGABYTE
from tools.yarn.configuration import NODE_CORES, NODE_MB, SMALL_QUEUE

pytestmark = pytest.mark.services


@pytest.fixture
def launcher(config: YarnConfig) -> Iterator[YarnLauncher]:
    made = YarnLauncher(config)
    yield made
    for first in made.jobs():
        made.remove(first.job)


@pytest.fixture
def master(config: YarnConfig, tmp_path: Path) -> PodSpec:
    """One that is larger than its queue."""
    resources = {"master": {"memory": "800Mi"}, "worker": {}, "parameter_server": {}}
    made = master_pod(launch(str(tmp_path / "store"), job(resources=resources)), config, "the token")
    return msgspec.structs.replace(made, queue=SMALL_QUEUE)


def test_a_pod_waits_for_a_full_queue_and_can_be_removed(launcher: YarnLauncher, master: PodSpec) -> None:
    accepted = launcher.submit(master)
    deadline = time.monotonic() + 2.0
    while time.monotonic() < deadline:
        first = launcher.find(master.job)
        assert first is not None and first.phase is PodPhase.PENDING
    assert first.waits_for_room and launcher.address(first) == ""
    # Submitted again, it is the same.
    assert launcher.submit(master).uid == accepted.uid
    assert [each.name for each in launcher.jobs()] == [master.name]
    assert launcher.secrets(master.name, first.uid) == master.secrets
    assert launcher.secrets("another", first.uid) is None
    assert launcher.remove(master.job) == [master.name]
    assert launcher.find(master.job) is None and launcher.secrets(master.name, first.uid) is None
    assert launcher.remove(master.job) == []


def test_a_job_that_cannot_run_is_refused_or_fails_with_the_reason(launcher: YarnLauncher, master: PodSpec) -> None:
    with pytest.raises(ClusterError, match="role: evaluator is not allowed; allowed: master"):
        launcher.submit(msgspec.structs.replace(master, role=Role.EVALUATOR))
    failed = launcher.submit(msgspec.structs.replace(master, queue="nowhere"))
    deadline = time.monotonic() + 30.0
    while not failed.phase.is_final:
        assert time.monotonic() < deadline
        found = launcher.find(master.job)
        assert found is not None
        failed = found
    assert failed.phase is PodPhase.FAILED and "nowhere" in failed.message
    # One that has ended is replaced.
    assert launcher.submit(master).uid != failed.uid


def test_a_dry_run_shows_the_request_without_secrets(launcher: YarnLauncher, master: PodSpec) -> None:
    request = launcher.dry_run(master)
    assert request["queue"] == SMALL_QUEUE and request["resource"] == {"memory": 832, "vCores": 1}
    assert "the token" not in str(request)


def test_nodes_have_sizes_and_say_whether_they_answer(launcher: YarnLauncher) -> None:
    well = [node for node in launcher.nodes() if node.takes_pods]
    assert [node.size for node in well] == [PodSize(float(NODE_CORES), NODE_MB * MEGABYTE)]
    assert well[0].free == well[0].size and well[0].name.startswith("127.0.0.2:")
    others = [node for node in launcher.nodes() if not node.takes_pods]
    assert all(NodeCondition.NOT_READY in node.conditions for node in others)
