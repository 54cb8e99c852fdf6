"""Two real node agents are one cluster: for callers, for a job's master, and for the pods, which find the backend."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.common.nodes import NodesConfig, started_nodes
from elastrec.platform.clusters import Fleet, Launcher, connect_fleet, connect_launcher, decode_config, encode_config
from elastrec.platform.clusters.backends import installed_backends
from elastrec.platform.clusters.local import find_agent
from elastrec.platform.clusters.nodes import NodeCondition
from elastrec.platform.clusters.pods import Placement, PodPhase, PodSize, PodSpec
from elastrec.platform.clusters.protocol import snapshot
from elastrec.platform.specs.errors import ClusterError, SpecError
from elastrec.platform.specs.metrics import Role
from tests.processes import wait_for

pytestmark = pytest.mark.services

SIZE = PodSize(1.0, 512 << 20)
# Prints which backends the pod knows.
PROGRAM = """
import signal
from elastrec.platform.clusters.backends import load_backend
print(load_backend('local-nodes').config.__name__, flush=True)
signal.pause()
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("nodes")


@pytest.fixture(scope="module")
def nodes(home: Path) -> Iterator[NodesConfig]:
    with started_nodes(home, {"a": SIZE, "b": SIZE}, limits="threads") as config:
        yield config


@pytest.fixture
def launcher(nodes: NodesConfig) -> Iterator[Launcher]:
    """Of both nodes, which are empty again afterwards."""
    launcher = connect_launcher(nodes)
    yield launcher
    for pod in launcher.pods():
        launcher.remove(pod.job)


@pytest.fixture
def fleet(nodes: NodesConfig, launcher: Launcher) -> Fleet:
    return connect_fleet(nodes, "job")


def spec(name: str, program: str = "import signal; signal.pause()", **fields: Any) -> PodSpec:
    values: dict[str, Any] = {
        "name": name, "job": "job", "role": Role.WORKER, "command": ("python", "-c", program),
        "size": PodSize(0.4, 64 << 20), "grace_seconds": 1.0,
    }  # fmt: skip
    return PodSpec(**{**values, **fields})


def test_pods_are_on_both_nodes_and_one_that_avoids_a_node_is_on_the_other(fleet: Fleet) -> None:
    first, second = fleet.create(spec("one")), fleet.create(spec("two"))
    assert (first.node, second.node) == ("a", "b")
    away = Placement(avoid_node_names=("b",), is_required=True)
    third = fleet.create(spec("three", placement=away))
    assert (third.node == "a" and third.address != first.address) or not third.address
    assert fleet.create(spec("two", placement=away)).uid == second.uid, "the one that is there"
    assert {pod.name for pod in snapshot(fleet)} == {"one", "two", "three"}
    assert {node.name: round(node.free.cores, 1) for node in fleet.nodes()} == {"a": 0.2, "b": 0.6}
    fleet.resize("two", second.uid, PodSize(0.9, 64 << 20))
    assert next(pod for pod in snapshot(fleet) if pod.name == "two").size.cores == 0.9
    fleet.delete("two", second.uid)
    wait_for(lambda: {pod.name for pod in snapshot(fleet)} == {"one", "three"}, 20.0, "the second pod is gone")


def test_a_pod_finds_the_backend_and_its_log_is_read_from_its_node(fleet: Fleet) -> None:
    fleet.create(spec("first"))
    second = fleet.create(spec("second", PROGRAM))
    assert second.node == "b"
    wait_for(lambda: list(fleet.logs("second")), 30.0, "the pod's output")
    assert list(fleet.logs("second")) == ["NodesConfig"]
    with pytest.raises(ClusterError, match="pod nobody is not there"):
        fleet.logs("nobody")


def test_a_job_is_found_and_removed_wherever_its_pods_are(launcher: Launcher, fleet: Fleet) -> None:
    master = launcher.submit(spec("m", role=Role.MASTER, secrets={"token": "t"}))
    assert launcher.submit(spec("m", role=Role.MASTER)).uid == master.uid
    fleet.create(spec("w-0"))
    fleet.create(spec("w-1"))
    assert {pod.node for pod in launcher.pods("job")} == {"a", "b"}
    assert launcher.find("job") == launcher.jobs()[0] and launcher.jobs()[0].uid == master.uid
    assert launcher.secrets("m", master.uid) == {"token": "t"} and launcher.secrets("m", "other") is None
    assert launcher.remove("job") == ["m", "w-0", "w-1"]
    assert launcher.pods() == [] and launcher.remove("job") == []


def test_a_node_that_takes_no_pods_keeps_those_that_it_has(nodes: NodesConfig, launcher: Launcher) -> None:
    cordoned = connect_launcher(msgspec.structs.replace(nodes, unschedulable=("a",)))
    ended = launcher.submit(spec("m", "pass", role=Role.MASTER))
    running = launcher.submit(spec("other", role=Role.MASTER, job="other"))
    assert (ended.node, running.node) == ("a", "a"), "of different jobs"
    wait_for(lambda: launcher.find("job").phase is PodPhase.SUCCEEDED, 20.0, "its end")  # type: ignore[union-attr]
    again = cordoned.submit(spec("m", role=Role.MASTER))
    assert again.node == "b" and again.uid != ended.uid
    assert {pod.uid for pod in launcher.pods()} == {running.uid, again.uid}
    (closed,) = [node for node in cordoned.nodes() if NodeCondition.UNSCHEDULABLE in node.conditions]
    assert closed.name == "a" and not closed.takes_pods and closed.free == PodSize(0.0, 0)


def test_the_configuration_is_text_and_errors_name_the_field(nodes: NodesConfig) -> None:
    assert decode_config(encode_config(nodes), "the file") == nodes
    wrong = encode_config(msgspec.structs.replace(nodes, unschedulable=("c",)))
    with pytest.raises(SpecError, match=r"unschedulable: \['c'\] is not allowed; allowed: names among a, b"):
        decode_config(wrong, "the file")


def test_nothing_is_left_of_nodes_that_were_needed_for_a_while(tmp_path: Path) -> None:
    before = os.environ.get("PYTHONPATH"), installed_backends()
    with started_nodes(tmp_path, {"a": SIZE}, limits="threads") as config:
        assert "local-nodes" in installed_backends()
        connect_fleet(config, "job").create(spec("left"))
    assert (os.environ.get("PYTHONPATH"), installed_backends()) == before
    assert find_agent(tmp_path / "a") is None
