"""The time after which a silent pod counts as dead."""

from __future__ import annotations

import pytest

from elastrec.platform.master.pods.heartbeats import Heartbeats, Silence
from elastrec.platform.master.pods.membership import Member
from elastrec.platform.master.pods.pace import heartbeat_seconds, look_seconds, silence_seconds
from elastrec.platform.specs.job import FaultTolerance
from elastrec.platform.specs.metrics import Role
from elastrec.platform.specs.shape import PodSize

TIMEOUT_SECONDS = 15.0
START_SECONDS = 60.0
FAULTS = FaultTolerance(
    heartbeat_interval=0.5, heartbeat_timeout=TIMEOUT_SECONDS, start_timeout=START_SECONDS, lease=600.0
)


def up() -> set[str]:
    return {"w"}


def nobody_is_up() -> set[str]:
    return set()


def worker(incarnation: str = "") -> Member:
    size = PodSize(1.0, 1)
    member = Member(
        name="w", role=Role.WORKER, index=0, restart=0, cores=size.cores, memory_bytes=size.memory_bytes, asked=size,
        created=0.0,
    )  # fmt: skip
    member.incarnation = incarnation
    return member


def test_a_worker_with_a_slow_start_is_not_silent_when_it_registers() -> None:
    signs, member = Heartbeats(FAULTS), worker()
    for now in (0.0, 10.0, 30.0):
        assert signs.silent({"w": member}, up, now) == []
    member.incarnation = "1"  # registered, but its first heartbeat is not noted yet
    assert signs.silent({"w": member}, up, 31.0) == []


def test_a_pod_that_runs_and_never_registers_is_reported_after_its_time() -> None:
    signs, members = Heartbeats(FAULTS), {"w": worker()}
    # While it waits for room, or its image is fetched, nothing is expected of it.
    assert signs.silent(members, nobody_is_up, 0.0) == signs.silent(members, nobody_is_up, 1000.0) == []
    assert signs.silent(members, up, 1000.0) == signs.silent(members, up, 1000.0 + START_SECONDS) == []
    assert signs.silent(members, up, 1060.1) == [Silence("w", "", pytest.approx(60.1))]
    # After a stall of the master, or of the cluster's news, its time begins anew.
    signs.forget_all()
    assert signs.silent(members, up, 1061.0) == []


def test_a_registered_worker_that_is_silent_is_reported_after_the_time_limit() -> None:
    signs, members = Heartbeats(FAULTS), {"w": worker("1")}
    signs.record("w", 0.0)
    assert signs.silent(members, up, TIMEOUT_SECONDS) == []
    assert signs.silent(members, up, TIMEOUT_SECONDS + 0.1) == [Silence("w", "1", TIMEOUT_SECONDS + 0.1)]
    signs.record("w", TIMEOUT_SECONDS + 0.2)
    assert signs.silent(members, up, TIMEOUT_SECONDS + 0.3) == []


def test_a_pod_is_judged_by_the_pace_it_was_given_until_it_gets_another() -> None:
    signs, members = Heartbeats(FAULTS), {"w": worker("1")}
    assert signs.pace("w", 1500) == 10.0
    signs.record("w", 0.0)
    assert signs.silent(members, up, 30.0) == []
    assert len(signs.silent(members, up, 30.1)) == 1
    assert signs.pace("w", 10) == 0.5
    assert len(signs.silent(members, up, 16.0)) == 1


def test_pods_beat_faster_while_workers_pause_for_a_save_and_shortly_before() -> None:
    signs = Heartbeats(FAULTS)
    assert signs.pace("w", 10, 60.0) == 0.5
    assert [signs.pace("w", 10, seconds) for seconds in (1.0, 0.0)] == [10 / 150, 10 / 150]
    assert signs.pace("w", 1500, 0.0) == 10.0
    assert signs.pace("w", 10) == 0.5


def test_after_a_stall_of_the_master_all_timeouts_restart() -> None:
    signs, members = Heartbeats(FAULTS), {"w": worker("1")}
    signs.record("w", 0.0)
    signs.forget_all()
    assert signs.silent(members, up, 100.0) == []
    assert len(signs.silent(members, up, 100.0 + TIMEOUT_SECONDS + 0.1)) == 1


def test_the_heartbeats_of_a_former_member_are_removed() -> None:
    signs = Heartbeats(FAULTS)
    signs.record("w", 0.0)
    assert signs.silent({}, up, 1.0) == []
    assert signs.silent({"w": worker("2")}, up, 100.0) == [], "a namesake's time begins when it is first seen"


def test_silence_checks_get_rarer_with_more_pods_down_to_a_floor() -> None:
    looks = {}
    for pods in (3, 1000):
        signs = Heartbeats(FAULTS)
        looks[pods] = sum(signs.is_look_due(pods, tick / 10) for tick in range(100))
    assert looks == {3: 100, 1000: 20}
    # A silence is noticed within a small part of itself, however large the job is.
    for pods in (1, 1000, 20_000):
        assert look_seconds(pods) < silence_seconds(FAULTS, heartbeat_seconds(FAULTS, pods)) / 10
