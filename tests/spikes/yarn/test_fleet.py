"""Properties of the fleet of an ApplicationMaster, on a real cluster and on the fake one."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import msgspec
import psutil
import pytest

from elastrec.platform.clusters.pods import (
    EndReason,
    PodEvent,
    PodEventKind,
    PodPhase,
    PodSpec,
    PodStatus,
    ResizeState,
)
from elastrec.platform.clusters.protocol import Fleet, snapshot
from elastrec.platform.specs.errors import ClusterError
from elastrec.platform.specs.metrics import Role
from elastrec.platform.specs.shape import PodSize
from tests.platform.clusters.fake_yarn import FakeYarn
from tests.spikes.yarn.sizes import MEGABYTE
from tests.spikes.yarn.surroundings import missing
from tools.yarn.cluster import YarnCluster
from tools.yarn.configuration import MOST_MB, NODE_CORES, NODE_MB, STEP_MB

pytestmark = pytest.mark.services

ROOT = Path(__file__).resolve().parents[3]
# Ends as the file of its name says.
_PROGRAM = """
import os, pathlib, time
print("first")
print("last", flush=True)
word = pathlib.Path(os.environ["FOLDER"]) / os.environ["ELASTREC_POD"]
while not word.exists() or not (text := word.read_text()):
    time.sleep(0.05)
if text == "hog":
    hoard = bytearray(400 << 20)
    hoard[::4096] = b"x" * len(hoard[::4096])
    time.sleep(60)
os._exit(int(text))
"""
_SECONDS = 60.0


class Stand(Protocol):
    """A fleet, and the hands that reach behind it."""

    fleet: Fleet

    def pass_time(self) -> None: ...
    def end(self, pod: PodStatus, end: EndReason, exit_code: int | None) -> None: ...
    def add_node(self) -> None: ...
    def lose_node(self, pod: PodStatus) -> None: ...
    def spec(self, name: str, memory_mb: int, cores: float) -> PodSpec: ...


class FakeStand:
    """What a node does is done here."""

    def __init__(self) -> None:
        self.fleet = FakeYarn()
        self.fleet.step_bytes = STEP_MB * MEGABYTE
        self.fleet.largest = PodSize(NODE_CORES, MOST_MB * MEGABYTE)
        self.fleet.node = PodSize(NODE_CORES, NODE_MB * MEGABYTE)

    def pass_time(self) -> None:
        for uid, pod in list(self.fleet.pods.items()):
            if pod.phase is PodPhase.PENDING and self.fleet.has_room(uid, self.fleet.rounded(pod.asked_size)):
                self.fleet.start(uid)
                self.fleet.logs_of[pod.name] = "first\nlast"
                return

    def end(self, pod: PodStatus, end: EndReason, exit_code: int | None) -> None:
        self.fleet.end(pod.uid, end, exit_code)

    def add_node(self) -> None:
        self.fleet.node = PodSize(2 * NODE_CORES, 2 * NODE_MB * MEGABYTE)

    def lose_node(self, pod: PodStatus) -> None:
        self.fleet.lose_node(pod.uid)

    @staticmethod
    def spec(name: str, memory_mb: int, cores: float) -> PodSpec:
        return PodSpec(name=name, job="j", role=Role.WORKER, command=("x",), size=PodSize(cores, memory_mb * MEGABYTE))


class RealStand:
    """Pods are processes of this machine."""

    def __init__(self, yarn: YarnCluster, fleet: Fleet, folder: Path) -> None:
        self.fleet, self._yarn, self._folder = fleet, yarn, folder

    def pass_time(self) -> None:
        time.sleep(0.05)

    def end(self, pod: PodStatus, end: EndReason, exit_code: int | None) -> None:
        if end is EndReason.KILLED:
            self._process(pod.name).kill()
            return
        (self._folder / pod.name).write_text("hog" if end is EndReason.OUT_OF_MEMORY else str(exit_code))

    def add_node(self) -> None:
        self._yarn.start_node(1)

    def lose_node(self, pod: PodStatus) -> None:
        self._yarn.kill_node(1)

    def spec(self, name: str, memory_mb: int, cores: float) -> PodSpec:
        return msgspec.structs.replace(
            FakeStand.spec(name, memory_mb, cores),
            command=("python", "-c", _PROGRAM),
            environment={"FOLDER": str(self._folder), "ELASTREC_POD": name},
        )

    def _process(self, name: str) -> psutil.Process:
        deadline = time.monotonic() + _SECONDS
        while not (found := self._yarn.processes("ELASTREC_POD", name)):
            assert time.monotonic() < deadline, f"{name} has no process"
            time.sleep(0.05)
        return found[0]


@pytest.fixture(scope="module")
def real_fleet(yarn: YarnCluster, staging: Path) -> Iterator[Fleet]:
    # Java is loaded where it is needed alone: these modules can be imported without it.
    from tests.spikes.yarn.application.hadoop import start_java
    from tests.spikes.yarn.application.launching import Site
    from tests.spikes.yarn.application.unmanaged import unmanaged_fleet
    from tests.spikes.yarn.rest import Rest

    start_java(yarn.jars)
    site = Site(
        attempt=1,
        staging=staging,
        step_mb=STEP_MB,
        command=(sys.executable, "-m", "tests.spikes.yarn.application.container"),
        environment={"PYTHONPATH": str(ROOT)},
    )
    fleet, _ = unmanaged_fleet(yarn.client_configuration, Rest(yarn.url, yarn.user), site, "default")
    yield fleet
    fleet.finish(succeeded=True, message="the tests are over")


@pytest.fixture(params=["fake", "real"])
def stand(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stand]:
    if request.param == "fake":
        yield FakeStand()
        return
    if reason := missing():
        pytest.skip(reason)
    made = RealStand(request.getfixturevalue("yarn"), request.getfixturevalue("real_fleet"), tmp_path)
    yield made
    for pod in snapshot(made.fleet):
        made.fleet.delete(pod.name, pod.uid)
    wait(made, lambda: not snapshot(made.fleet))


def wait(stand: Stand, condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + _SECONDS
    while not condition():
        assert time.monotonic() < deadline, snapshot(stand.fleet)
        stand.pass_time()


def now(stand: Stand, name: str) -> PodStatus:
    return next(pod for pod in snapshot(stand.fleet) if pod.name == name)


def running(stand: Stand, name: str, memory_mb: int = 100, cores: float = 0.5) -> PodStatus:
    stand.fleet.create(stand.spec(name, memory_mb, cores))
    wait(stand, lambda: now(stand, name).phase is PodPhase.RUNNING)
    return now(stand, name)


def token(stand: Stand) -> str:
    """From which a watch reports what happens from now on."""
    return list(stand.fleet.watch("", 0.0))[-1].resume


def events_until(stand: Stand, resume: str, until: Callable[[PodEvent], bool]) -> list[PodEvent]:
    """The events from a token up to one."""
    events: list[PodEvent] = []

    def is_there() -> bool:
        events.extend(stand.fleet.watch(events[-1].resume if events else resume, 0.0))
        return any(until(event) for event in events)

    wait(stand, is_there)
    return events


def test_a_request_is_accepted_immediately_and_granted_later_in_steps(stand: Stand) -> None:
    answer = stand.fleet.create(stand.spec("first", 100, 0.5))
    assert (answer.phase, answer.waits_for_room, answer.asked_size) == (
        PodPhase.PENDING, True, PodSize(0.5, 100 * MEGABYTE)
    )  # fmt: skip
    assert stand.fleet.create(stand.spec("first", 100, 0.5)).uid == answer.uid
    wait(stand, lambda: now(stand, "first").phase is PodPhase.RUNNING)
    pod = now(stand, "first")
    assert (pod.uid, pod.size, pod.asked_size) == (answer.uid, PodSize(1.0, 128 * MEGABYTE), answer.asked_size)
    assert pod.resize is ResizeState.DONE and not pod.waits_for_room


def test_a_pod_larger_than_any_container_is_refused_permanently(stand: Stand) -> None:
    pod = running(stand, "first")
    for ask in (
        lambda: stand.fleet.create(stand.spec("large", MOST_MB + 1, 1.0)),
        lambda: stand.fleet.resize(pod.name, pod.uid, PodSize(NODE_CORES + 1.0, 64 * MEGABYTE)),
    ):
        with pytest.raises(ClusterError, match="allowed: at most") as refused:
            ask()
        assert not refused.value.retryable
    assert [each.name for each in snapshot(stand.fleet)] == ["first"]


def test_a_full_cluster_accepts_resizes_and_grants_them_when_there_is_room(stand: Stand) -> None:
    first = [running(stand, f"large-{number}", 1900, 1.0) for number in range(2)]
    waiting = stand.fleet.create(stand.spec("waiting", 1900, 1.0))
    taken_back = stand.fleet.create(stand.spec("taken-back", 1900, 1.0))
    for _ in range(20):
        stand.pass_time()
    assert now(stand, "waiting").waits_for_room
    # A request that is taken back is gone at once.
    begin = token(stand)
    stand.fleet.delete("taken-back", taken_back.uid)
    (gone,) = stand.fleet.watch(begin, 0.0)
    assert gone.kind is PodEventKind.DELETED and gone.pod is not None and gone.pod.end is EndReason.DELETED
    stand.fleet.delete(first[0].name, first[0].uid)
    wait(stand, lambda: now(stand, "waiting").phase is PodPhase.RUNNING)
    assert now(stand, "waiting").uid == waiting.uid


@pytest.mark.parametrize(
    ("end", "exit_code"),
    [
        (EndReason.COMPLETED, 0),
        (EndReason.ERROR, 3),
        (EndReason.BAD_INPUT, 2),
        (EndReason.KILLED, 137),
        (EndReason.OUT_OF_MEMORY, None),
    ],
)
def test_an_end_is_reported_once_with_its_reason(stand: Stand, end: EndReason, exit_code: int | None) -> None:
    pod, begin = running(stand, "ends"), token(stand)
    wait(stand, lambda: list(stand.fleet.logs("ends")) == ["first", "last"])
    stand.end(pod, end, exit_code)
    events = events_until(stand, begin, lambda event: event.pod is not None and event.pod.phase.is_final)
    for _ in range(20):
        stand.pass_time()
    events += stand.fleet.watch(events[-1].resume, 0.0)
    (final,) = [event.pod for event in events if event.pod is not None and event.pod.phase.is_final]
    assert (final.uid, final.end, final.exit_code) == (pod.uid, end, exit_code)
    assert final.phase is (PodPhase.SUCCEEDED if end is EndReason.COMPLETED else PodPhase.FAILED)
    # It stays known until it is deleted.
    assert now(stand, "ends").end is end
    assert list(stand.fleet.logs("ends", tail_lines=1)) == ["last"]
    stand.fleet.delete("ends", pod.uid)
    assert snapshot(stand.fleet) == []


def test_a_deletion_returns_immediately_and_is_reported_after_the_end_of_the_process(stand: Stand) -> None:
    pod, begin = running(stand, "deleted"), token(stand)
    stand.fleet.delete("deleted", "another uid")
    stand.fleet.delete("another name", "another uid")
    assert not now(stand, "deleted").is_ending
    begin = token(stand)
    stand.fleet.delete("deleted", pod.uid)
    stand.fleet.delete("deleted", pod.uid)
    events = events_until(stand, begin, lambda event: event.kind is PodEventKind.DELETED)
    ending, gone = (event.pod for event in events)
    assert ending is not None and ending.is_ending and not ending.phase.is_final
    assert gone is not None and (gone.uid, gone.end) == (pod.uid, EndReason.DELETED)
    assert snapshot(stand.fleet) == []


@pytest.mark.parametrize(
    ("cores", "memory_mb"), [(2.0, 300), (0.5, 64), (1.5, 100), (3.0, 64)], ids=["more", "less", "rounded", "both"]
)
def test_a_running_pod_gets_another_size_in_place(stand: Stand, cores: float, memory_mb: int) -> None:
    pod, begin = running(stand, "resized", 120, 1.0), token(stand)
    asked = PodSize(cores, memory_mb * MEGABYTE)
    stand.fleet.resize("resized", pod.uid, asked)
    events = events_until(stand, begin, lambda e: e.pod is not None and e.pod.resize is ResizeState.DONE)
    first, last = events[0].pod, events[-1].pod
    assert first is not None and last is not None
    if cores > 1.0 or memory_mb <= 64:
        assert (first.asked, first.resize, first.size) == (asked, ResizeState.IN_PROGRESS, pod.size)
    whole = {0.5: 1.0, 1.5: 2.0, 2.0: 2.0, 3.0: 3.0}[cores]
    granted = PodSize(whole, -(-memory_mb // STEP_MB) * STEP_MB * MEGABYTE)
    assert (last.uid, last.size, last.asked_size, last.phase) == (pod.uid, granted, asked, PodPhase.RUNNING)


def test_a_size_without_room_is_deferred_until_there_is_room_or_it_is_cancelled(stand: Stand) -> None:
    other = running(stand, "other", 2000, 1.0)
    pods = [running(stand, f"small-{number}", 600, 1.0) for number in range(2)]
    larger = PodSize(1.0, 1900 * MEGABYTE)
    for pod in pods:
        stand.fleet.resize(pod.name, pod.uid, larger)
    wait(stand, lambda: all(now(stand, pod.name).resize is ResizeState.DEFERRED for pod in pods))
    assert {now(stand, pod.name).size for pod in pods} == {pods[0].size}
    stand.fleet.resize(pods[1].name, pods[1].uid, PodSize(1.0, 600 * MEGABYTE))
    wait(stand, lambda: now(stand, pods[1].name).resize is ResizeState.DONE)
    assert now(stand, pods[1].name).size == pods[1].size
    stand.fleet.delete(other.name, other.uid)
    wait(stand, lambda: now(stand, pods[0].name).resize is ResizeState.DONE)
    assert now(stand, pods[0].name).size == PodSize(1.0, 1920 * MEGABYTE)
    assert now(stand, pods[1].name).size == pods[1].size


def test_a_watch_continues_at_its_token_and_restarts_with_an_unknown_one(stand: Stand) -> None:
    running(stand, "first")
    begin = token(stand)
    second = running(stand, "second")
    names = {event.pod.name for event in stand.fleet.watch(begin, 0.0) if event.pod is not None}
    assert names == {"second"}
    anew = list(stand.fleet.watch("999.999" if "." in begin else "", 0.0))
    assert [event.kind for event in anew] == [PodEventKind.SEEN, PodEventKind.SEEN, PodEventKind.SYNCED]
    assert anew[1].pod is not None and anew[1].pod.uid == second.uid


def test_containers_end_with_their_node_and_others_do_not(stand: Stand) -> None:
    others = [running(stand, f"other-{number}", 2048, 1.0) for number in range(2)]
    stand.fleet.create(stand.spec("lost", 100, 1.0))
    stand.add_node()
    wait(stand, lambda: now(stand, "lost").phase is PodPhase.RUNNING)
    stand.lose_node(now(stand, "lost"))
    wait(stand, lambda: now(stand, "lost").phase is PodPhase.FAILED)
    assert now(stand, "lost").end is EndReason.NODE_LOST
    assert all(now(stand, pod.name).phase is PodPhase.RUNNING for pod in others)
