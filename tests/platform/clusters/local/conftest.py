"""A node agent with real pods; waits use watches, and everything is removed after a test."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from elastrec.platform.clusters.local import LocalCluster, start_agent, stop_agent
from elastrec.platform.clusters.nodes import limits_enforced
from elastrec.platform.clusters.pods import PodEventKind, PodPhase, PodSize, PodSpec, PodStatus
from elastrec.platform.specs.metrics import Role
from tests.processes import wait_for

MIB = 1 << 20
_numbers = itertools.count()

MakePod = Callable[..., PodSpec]
Until = Callable[..., PodStatus]


@pytest.fixture(scope="session")
def make_pod() -> MakePod:
    """A pod that runs a Python program; every other field can be given."""

    def make(program: str = "import signal; signal.pause()", **fields: Any) -> PodSpec:
        cores, memory = fields.pop("cores", 0.5), fields.pop("memory", 128 * MIB)
        defaults: dict[str, Any] = {
            "name": f"pod-{next(_numbers)}",
            "job": "job",
            "role": Role.WORKER,
            "command": ("python", "-c", program),
            "size": PodSize(cores, memory),
        }
        return PodSpec(**{**defaults, **fields})

    return make


@pytest.fixture(scope="session")
def until() -> Until:
    """Waits, by watching, until a pod satisfies a condition (default: it is final)."""

    def wait(
        cluster: LocalCluster,
        name: str,
        condition: Callable[[PodStatus], bool] = lambda status: status.phase.is_final,
        seconds: float = 30.0,
    ) -> PodStatus:
        last = cluster.get(name)
        assert last is not None
        for event in cluster.fleet(last.job).watch("", seconds):
            if event.pod is not None and event.pod.name == name and event.kind is not PodEventKind.DELETED:
                last = event.pod
                if condition(last):
                    return last
        raise AssertionError(f"{name} did not get there within {seconds} s; last seen: {last}")

    return wait


@pytest.fixture(scope="session")
def until_true() -> Callable[[Callable[[], bool]], None]:
    """Waits for a fact that no event announces."""

    def wait(fact: Callable[[], bool], seconds: float = 20.0) -> None:
        wait_for(fact, seconds, "what was expected")

    return wait


@pytest.fixture(scope="session")
def first_line() -> Callable[[LocalCluster, str], str]:
    """The first line of a pod's log, as soon as there is one."""

    def read(cluster: LocalCluster, name: str) -> str:
        return next(iter(cluster.logs(name, follow=True)))

    return read


@pytest.fixture(scope="session")
def is_alive() -> Callable[[int], bool]:
    """Whether a process exists and is no zombie."""

    def alive(pid: int) -> bool:
        try:
            state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
        except OSError:
            return False
        return state != b"Z"

    return alive


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """A folder for an agent; whatever runs there is ended."""
    folder = tmp_path / "agent"
    yield folder
    stop_agent(folder)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One cluster of 4 nominal cores and 2 GiB for all tests of a module."""
    folder = tmp_path_factory.mktemp("agent")
    yield start_agent(folder, cores=4.0, memory_bytes=2048 * MIB, node="node-a")
    stop_agent(folder)


@pytest.fixture
def cluster(shared: LocalCluster) -> Iterator[LocalCluster]:
    """The shared cluster, empty again after the test."""
    yield shared
    for pod in shared.list():
        shared.delete(pod.name, grace_seconds=0.0)


@pytest.fixture
def has_cgroups(cluster: LocalCluster) -> None:
    """Leaves a test out where no limits can be enforced."""
    if not limits_enforced(cluster.nodes()):
        pytest.skip("no writable cgroup here")


@pytest.fixture(scope="session")
def running() -> Callable[[PodStatus], bool]:
    return lambda status: status.phase is PodPhase.RUNNING
