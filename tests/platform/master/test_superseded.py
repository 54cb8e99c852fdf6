"""Two live processes with the same pod name: the one that registered last continues, the other one ends."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from elastrec.platform.master.service.journal import encode_state
from elastrec.platform.specs.metrics import Phase, Role
from elastrec.platform.transport.messages.directive import Mode
from elastrec.platform.transport.messages.job import Answer, Heartbeat, Leased, LeaseShards, Register, Registered
from elastrec.trainers.worker.identity import Identity
from elastrec.trainers.worker.session import Session
from tests.platform.master import world
from tests.platform.master.fakes import job
from tests.platform.master.service.test_service import stage  # noqa: F401
from tests.platform.master.stage import Stage
from tests.splits import progress_of

pytestmark = pytest.mark.usefixtures("fleet")

POD, OTHER = "clicks-1-worker-0", "clicks-1-worker-1"


def session(s: Stage) -> Session:
    return Session(Identity(job_id="clicks-1", pod=POD, node="", master_address=s.address, token="secret", tls=None))


@pytest.fixture
def two(stage: Callable[..., Stage]):  # type: ignore[no-untyped-def]  # noqa: F811
    """A stage on which worker 0 is played by real sessions: the earlier and the later one."""
    s = stage(job(faults={"heartbeat_interval": 0.02, "heartbeat_timeout": 30, "pod_restarts": 3}), begin=False)
    play = s.cluster.on_create
    s.cluster.on_create = lambda spec: None if spec.name == POD else play(spec)
    s.start()
    earlier, later = session(s), session(s)
    yield s, earlier, later
    earlier.close()
    later.close()


def test_the_superseded_process_ends_and_the_job_continues(two: tuple[Stage, Session, Session]) -> None:
    s, earlier, later = two
    earlier.register()
    s.wait(lambda: earlier.directive.mode is Mode.TRAIN)
    later.register()
    s.wait(lambda: earlier.directive.mode is Mode.EXIT)
    seen = later.directive
    # Both go on to beat: neither takes the place from the other.
    beats = s.service.journal.last
    s.wait(lambda: s.service.state.phase is Phase.SUCCEEDED or s.service.journal.last > beats + 20)
    assert seen.mode is Mode.TRAIN and earlier.directive.mode is Mode.EXIT
    state = s.service.state
    assert state.phase is not Phase.FAILED, state.failure
    assert state.membership.losses == {Role.WORKER: 1}
    s.wait_for(Phase.SUCCEEDED)
    assert s.service.state.training.samples == s.request.training_rows


def test_a_process_that_registers_learns_the_masters_time_even_if_its_clock_is_set(
    two: tuple[Stage, Session, Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    s, earlier, _ = two
    before, clock = time.time(), time.time
    for step_seconds in (0.0, 3600.0):
        monkeypatch.setattr(time, "time", lambda step_seconds=step_seconds: clock() + step_seconds)
        registered = s.call(Register(pod=POD, role=Role.WORKER, incarnation=earlier.identity.incarnation), Registered)
        assert registered.wall_seconds is not None and before <= registered.wall_seconds <= clock()


def test_nothing_of_the_superseded_process_counts_and_it_never_wins_again(two: tuple[Stage, Session, Session]) -> None:
    s, earlier, later = two
    earlier.register()
    s.wait(lambda: earlier.directive.mode is Mode.TRAIN)
    leased = earlier.lease(earlier.directive.generation, "train", 1, lambda: False)
    assert leased is not None
    (shard,) = leased.shards
    later.register()
    old, generation = earlier.identity.incarnation, earlier.directive.generation
    progress = progress_of(shard, 10)
    # Its answer was lost: it asks again, late.
    again = s.call(Register(pod=POD, role=Role.WORKER, incarnation=old), Registered)
    assert again.directive.mode is Mode.EXIT
    beat = Heartbeat(pod=POD, incarnation=old, generation=generation, reached_version=0, progress=[progress])
    answer = s.call(beat, Answer)
    assert answer.known and answer.directive.mode is Mode.EXIT
    request = LeaseShards(
        pod=POD, incarnation=old, generation=generation, request_id="r", count=1, kind="train", progress=[progress]
    )
    refused = s.call(request, Leased)
    assert not refused.shards and refused.directive.mode is Mode.EXIT
    member = s.service.state.membership.members[POD]
    assert member.incarnation == later.identity.incarnation
    assert POD not in s.service.state.training.held


@pytest.mark.parametrize("pod", ["j-worker-0", "j-ps-0"])
def test_a_late_registration_of_a_superseded_process_changes_nothing(pod: str) -> None:
    w = world.running()
    first = dict(w.up[pod])
    w.up[pod] |= {"incarnation": "second"}
    w.register(pod)
    before = encode_state(w.state), w.state.membership.losses[w.up[pod]["role"]]
    second, w.up[pod] = w.up[pod], first
    w.register(pod)
    assert encode_state(w.state) == before[0] and w.state.membership.losses[first["role"]] == before[1] == 1
    assert w.directive(pod).mode is Mode.EXIT
    w.up[pod] = second
    assert w.directive(pod).mode is not Mode.EXIT


def test_a_process_that_is_unknown_to_its_master_registers(stage: Callable[..., Stage]) -> None:  # noqa: F811
    s = stage(begin=False)
    s.cluster.on_create = lambda spec: None
    s.start()
    answer = s.call(Heartbeat(pod=POD, incarnation="a", generation=0, reached_version=0), Answer)
    assert not answer.known and answer.directive is None
