"""From when on a pod that says nothing is taken for dead."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from elastrec.platform.master.events import PodSilent
from elastrec.platform.master.membership import Member
from elastrec.platform.master.service import JobService
from elastrec.platform.specs.metrics import Role

TIMEOUT_SECONDS = 15.0


@pytest.fixture
def service() -> SimpleNamespace:
    """What `_check_silence` knows, of a job with one worker that has not registered."""
    worker = Member(name="w", role=Role.WORKER, index=0, restart=0, cores=1.0, memory_bytes=1, created=0.0)
    told: list[PodSilent] = []
    return SimpleNamespace(
        _lock=threading.Lock(),
        _last_seen={},
        _timeout_seconds=TIMEOUT_SECONDS,
        _monitor=SimpleNamespace(pods={}),
        state=SimpleNamespace(membership=SimpleNamespace(members={"w": worker}), phase=SimpleNamespace(is_final=False)),
        now=lambda: 0.0,
        submit=lambda make: told.append(make(0.0)),
        worker=worker,
        told=told,
    )


def test_a_worker_that_took_long_to_come_up_is_not_silent_at_the_moment_it_registers(service: SimpleNamespace) -> None:
    for now in (0.0, 10.0, 30.0):
        JobService._check_silence(service, now)
    service.worker.incarnation = "1"  # registered, but its first life sign is not noted yet
    JobService._check_silence(service, 31.0)
    assert service.told == []


def test_a_registered_worker_that_says_nothing_is_told_after_the_time_limit(service: SimpleNamespace) -> None:
    JobService._check_silence(service, 0.0)
    service.worker.incarnation = "1"
    JobService._check_silence(service, TIMEOUT_SECONDS)
    assert service.told == []
    JobService._check_silence(service, TIMEOUT_SECONDS + 0.1)
    assert [event.pod for event in service.told] == ["w"]
