"""Orders of single pods: beside the directive, with a version, acknowledged by the process that has them."""

from __future__ import annotations

import msgspec
import pytest

from elastrec.platform.master import events
from elastrec.platform.master.answers import Answers
from elastrec.platform.master.orders import refusal
from elastrec.platform.specs.job import Training
from elastrec.platform.specs.metrics import Phase
from elastrec.platform.transport.job_messages import Answer, Done, Heartbeat, PodOrders
from elastrec.platform.transport.observer_messages import OrderWorker
from elastrec.trainers.worker.session import Session
from tests.platform.master.stage import Stage
from tests.platform.master.test_service import stage  # noqa: F401
from tests.platform.master.test_superseded import OTHER, POD, two  # noqa: F401
from tests.platform.master.world import World, running


def order(world: World, pod: str = "j-worker-0", **wanted: object) -> PodOrders | None:
    world.tell(events.PodOrdered(time=world.time, pod=pod, **wanted))  # type: ignore[arg-type]
    return world.state.orders_of(pod, world.up[pod]["incarnation"])


def test_the_version_of_orders_rises_with_what_they_say():
    world = running()
    assert world.state.orders_of("j-worker-0", world.up["j-worker-0"]["incarnation"]) is None
    assert order(world, batch_size=256) == PodOrders(version=1, batch_size=256)
    assert order(world, batch_size=256) == PodOrders(version=1, batch_size=256)
    assert order(world, is_dropped=True) == PodOrders(version=2, is_dropped=True)
    # As before all of them, and still a change that the pod has to hear of.
    assert order(world) == PodOrders(version=3)


def test_orders_of_one_pod_are_nothing_to_the_others_and_change_no_directive():
    world = running()
    version, answers = world.state.phases.version, Answers()
    incarnations = {pod: world.up[pod]["incarnation"] for pod in ("j-worker-0", "j-worker-1")}

    def answer(pod: str) -> Answer:
        encoded = answers.of(pod, incarnations[pod], world.state, 2.0)
        return msgspec.msgpack.decode(encoded.message, type=Answer)

    before = answer("j-worker-0")
    assert answer("j-worker-1") == before and before.orders is None
    for scale in (0.5, 0.25):
        given = order(world, learning_rate_scale=scale)
        assert world.state.phases.version == version
        assert answer("j-worker-0") == msgspec.structs.replace(before, orders=given)
        assert answer("j-worker-1") == before
    assert world.state.orders_of("j-worker-1", incarnations["j-worker-1"]) is None


def test_only_workers_have_orders_of_their_own():
    world = running()
    assert order(world, pod="j-ps-0", batch_size=1) is None
    world.tell(events.PodOrdered(time=world.time, pod="nobody", batch_size=1))


def test_a_new_process_of_the_pod_has_to_hear_its_orders_again():
    world = running()
    order(world, batch_size=256)
    pod = world.up["j-worker-0"]
    report = events.PodReported(
        time=world.time, pod="j-worker-0", incarnation=pod["incarnation"], generation=0, reached_version=0,
        orders_version=1,
    )  # fmt: skip
    assert world.state.is_news(report)
    world.tell(report)
    member = world.state.membership.members["j-worker-0"]
    assert member.orders_version == 1 and not world.state.is_news(report)
    pod |= {"incarnation": "another", "shards": []}
    world.register("j-worker-0")
    assert member.orders_version == 0
    assert world.state.orders_of("j-worker-0", "another") == PodOrders(version=1, batch_size=256)
    assert world.state.orders_of("j-worker-0", report.incarnation) is None


def test_an_answer_without_orders_is_no_longer_for_it():
    assert b"orders" not in msgspec.msgpack.encode(Answer(directive=None))
    answer = msgspec.msgpack.encode(Answer(directive=None, orders=PodOrders(version=2, is_dropped=True)))
    assert msgspec.msgpack.decode(answer, type=Answer).orders == PodOrders(version=2, is_dropped=True)


def test_a_real_session_gets_its_orders_and_the_master_hears_that_it_has_them(
    two: tuple[Stage, Session, Session],  # noqa: F811
) -> None:
    s, worker, _ = two
    worker.register()
    s.wait_for(Phase.TRAINING)
    assert worker.orders is None
    s.service.submit(lambda now: events.PodOrdered(time=now, pod=POD, batch_size=128, learning_rate_scale=0.5))
    s.wait(lambda: worker.orders == PodOrders(version=1, batch_size=128, learning_rate_scale=0.5))
    member = s.service.state.membership.members[POD]
    s.wait(lambda: member.orders_version == 1)
    assert s.service.state.membership.members[OTHER].orders is None


def test_orders_survive_a_restart_of_the_master_and_of_the_worker(
    two: tuple[Stage, Session, Session],  # noqa: F811
) -> None:
    s, worker, later = two
    worker.register()
    s.wait_for(Phase.TRAINING)
    s.service.submit(lambda now: events.PodOrdered(time=now, pod=POD, is_dropped=True))
    s.wait(lambda: worker.orders is not None)
    s.stop()
    s.start()
    member = s.service.state.membership.members[POD]
    assert member.orders == PodOrders(version=1, is_dropped=True)
    answer = s.call(
        Heartbeat(pod=POD, incarnation=worker.identity.incarnation, generation=0, reached_version=0), Answer
    )
    assert answer.orders == member.orders
    later.register()
    assert later.orders == PodOrders(version=1, is_dropped=True)


def test_a_worker_can_be_given_orders_from_outside(
    two: tuple[Stage, Session, Session],  # noqa: F811
) -> None:
    s, worker, _ = two
    worker.register()
    s.wait_for(Phase.TRAINING)
    assert s.call(OrderWorker(pod=POD, batch_size=16, learning_rate_scale=0.25), Done) == Done()
    s.wait(lambda: worker.orders == PodOrders(version=1, batch_size=16, learning_rate_scale=0.25))


@pytest.mark.parametrize(
    ("order", "field", "allowed"),
    [
        (OrderWorker(pod="j-ps-0"), "pod: 'j-ps-0'", "j-worker-0"),
        (OrderWorker(pod="j-worker-0", batch_size=0), "batch_size: 0", "1 to the rows of a shard"),
        (OrderWorker(pod="j-worker-0", batch_size=10**9), "batch_size: 1000000000", "1 to the rows of a shard"),
        (OrderWorker(pod="j-worker-0", learning_rate_scale=0.0), "learning_rate_scale: 0.0", "above 0"),
        (OrderWorker(pod="j-worker-0", learning_rate_scale=float("nan")), "learning_rate_scale: nan", "above 0"),
    ],
)
def test_an_order_that_nobody_could_obey_is_refused_with_its_field(
    order: OrderWorker, field: str, allowed: str
) -> None:
    reason = refusal(running().state, Training(), order)
    assert reason.startswith(f"{field} is not allowed; allowed: ") and allowed in reason
    assert not refusal(running().state, Training(), OrderWorker(pod="j-worker-0", batch_size=1))
