"""After SIGTERM, a server serves until another one has its buckets, its time is over, or no master answers."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest

from elastrec.checkpoints import open_store
from elastrec.platform.specs import environment
from elastrec.platform.transport.messages.directive import Directive, Mode, RestoreOrder
from elastrec.trainers.parameter_server.notice import ALONE_SECONDS, Notice
from elastrec.trainers.parameter_server.pod import PodSettings, ServerPod
from tests.trainers.parameter_server.running import TOKEN, ScriptedMaster, routing_of, training_job
from tests.trainers.parameter_server.test_pod import connected_client, everything, push_steps, server_process

ENDS_SECONDS = 60.0


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_a_notice_ends_after_its_grace_period_or_without_an_answering_master() -> None:
    clock = Clock()
    notice = Notice(20.0, clock)
    clock.seconds += 1000.0
    assert not notice.is_over, "nobody has given it"
    notice.give()
    for _ in range(19):
        clock.seconds += 1.0
        notice.answered()
        assert not notice.is_over
    clock.seconds += 1.0
    assert notice.is_over
    alone = Notice(20.0, clock)
    alone.give()
    clock.seconds += ALONE_SECONDS - 0.1
    assert not alone.is_over
    clock.seconds += 0.1
    assert alone.is_over


def test_a_server_without_buckets_ends_at_the_first_signal_and_any_other_at_the_second() -> None:
    def pod_in(routing_of_pods: list[str], moving: str = "") -> ServerPod:
        pod = ServerPod(PodSettings("ps-0", "node", "127.0.0.1:1", "127.0.0.1", 0, TOKEN, grace_seconds=60.0))
        routing = routing_of(["here:1"] * len(routing_of_pods))
        assert routing.servers == routing_of_pods
        pod._orders.take(Directive(version=1, mode=Mode.TRAIN, generation=0, routing=routing, moving=moving))
        return pod

    unregistered = ServerPod(PodSettings("ps-0", "node", "127.0.0.1:1", "127.0.0.1", 0, TOKEN, grace_seconds=60.0))
    unregistered.give_notice()
    assert unregistered._stopped.is_set()
    owner = pod_in(["ps-0"])
    owner.give_notice()
    assert not owner._stopped.is_set() and owner._notice.is_given
    owner.give_notice()
    assert owner._stopped.is_set()
    other = pod_in(["ps-0"])
    other._settings = PodSettings("ps-7", "node", "127.0.0.1:1", "127.0.0.1", 0, TOKEN, grace_seconds=60.0)
    other.give_notice()
    assert other._stopped.is_set()
    giver = pod_in(["ps-0"], moving="move-1")
    giver._settings = other._settings
    giver.give_notice()
    assert not giver._stopped.is_set(), "others may still fetch what it owned until now"


@pytest.mark.services
def test_a_server_with_notice_serves_until_the_master_lets_it_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environment.GRACE, "60")
    master = ScriptedMaster(training_job(), servers=1)
    try:
        open_store(tmp_path / "store").create()
        with server_process(master, 0, tmp_path) as process:
            addresses = master.wait_for_registrations(1)
            directive = master.direct(generation=1, addresses=addresses, restore=RestoreOrder("r1", ""))
            master.wait_until_reached(directive, ["ps-0"])
            client = connected_client(master)
            client.init_dense(np.linspace(-1, 1, 18).astype(np.float32))
            push_steps(client, steps=3, seed=1)
            assert master.heartbeats["ps-0"].ends_in_seconds is None
            process.send_signal(signal.SIGTERM)
            master.wait(lambda: master.heartbeats["ps-0"].ends_in_seconds, "the server reports its notice")
            before = everything(client)
            push_steps(client, steps=3, seed=2)
            assert not np.array_equal(everything(client)[0], before[0]), "it takes pushes as before"
            assert process.poll() is None
            client.close()
            master.direct(mode=Mode.EXIT)
            assert process.wait(ENDS_SECONDS) == 0
    finally:
        master.close()


@pytest.mark.services
def test_a_server_with_notice_ends_without_an_answer_of_its_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environment.GRACE, "600")
    master = ScriptedMaster(training_job(), servers=1)
    try:
        open_store(tmp_path / "store").create()
        with server_process(master, 0, tmp_path) as process:
            addresses = master.wait_for_registrations(1)
            directive = master.direct(generation=1, addresses=addresses, restore=RestoreOrder("r1", ""))
            master.wait_until_reached(directive, ["ps-0"])
            master.close()
            process.send_signal(signal.SIGTERM)
            assert process.wait(ENDS_SECONDS) == 0
    finally:
        master.close()
