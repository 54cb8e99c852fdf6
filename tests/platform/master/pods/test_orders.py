"""Orders for single pods: separate from the directive, versioned, and acknowledged by the process."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from elastrec.platform.master.machine import events
from elastrec.platform.master.machine.effects import AnswerLease, Decided, RecordAttempt
from elastrec.platform.master.machine.leasing import answer_unchanged
from elastrec.platform.master.measuring.speed_profile import is_settled
from elastrec.platform.master.pods.orders import refusal
from elastrec.platform.master.reporting.status import training_metrics
from elastrec.platform.master.service.answers import Answers
from elastrec.platform.master.service.journal import decode_state, encode_state
from elastrec.platform.specs.job import Training
from elastrec.platform.specs.metrics import Phase, PodMetrics, Role
from elastrec.platform.specs.shape import PlacesChange
from elastrec.platform.transport.messages.directive import Mode, PodOrders
from elastrec.platform.transport.messages.job import Answer, Heartbeat, LeaseShards, LeaseState
from elastrec.platform.transport.messages.observer import OrderedWorker, OrdersAnswer, OrderWorkers, WorkerOrder
from elastrec.trainers.worker.session import Session
from tests.platform.master.service.test_service import stage  # noqa: F401
from tests.platform.master.stage import Stage
from tests.platform.master.test_superseded import OTHER, POD, two  # noqa: F401
from tests.platform.master.world import World, plan, running


def order(world: World, pod: str = "j-worker-0", **wanted: Any) -> PodOrders | None:
    """What is not named is as in the job file again."""
    world.handle(events.PodOrdered(time=world.time, pod=pod, order=WorkerOrder(resets=True, **wanted)))
    return world.state.orders_of(pod, world.up[pod]["incarnation"])


def order_all(world: World, **wanted: Any) -> None:
    world.handle(events.WorkersOrdered(time=world.time, order=WorkerOrder(**wanted)))


def orders_of_all(world: World) -> list[PodOrders | None]:
    return [worker.orders for worker in world.state.membership.workers()]


def test_the_version_of_orders_rises_with_every_change():
    world = running()
    assert world.state.orders_of("j-worker-0", world.up["j-worker-0"]["incarnation"]) is None
    assert order(world, batch_size=256) == PodOrders(version=1, batch_size=256)
    assert order(world, batch_size=256) == PodOrders(version=1, batch_size=256)
    assert order(world, is_idle=True) == PodOrders(version=2, is_idle=True)
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


def resize(world: World, pod: str, cores: float) -> PodOrders | None:
    member = world.state.membership.members[pod]
    size = {"cores": cores, "memory_bytes": member.memory_bytes}
    # Not by way of the world, whose cluster would change the size back to what is asked for.
    world.state.handle(events.PodResized(time=world.time, pod=pod, uid=member.uid, **size))
    return world.state.orders_of(pod, world.up[pod]["incarnation"])


def test_a_pod_resized_in_place_is_always_ordered_to_use_its_cores():
    world = running()
    cores = world.state.membership.members["j-worker-0"].cores
    assert resize(world, "j-worker-0", cores) is None
    assert resize(world, "j-worker-0", 3.0) == PodOrders(version=1, cores=3.0)
    world.state.handle(events.PodOrdered(time=world.time, pod="j-worker-0", order=WorkerOrder(batch_size=256)))
    assert resize(world, "j-worker-0", 2.0) == PodOrders(version=3, batch_size=256, cores=2.0)
    world.state.handle(events.PodOrdered(time=world.time, pod="j-worker-0", order=WorkerOrder(resets=True)))
    assert world.state.membership.members["j-worker-0"].orders == PodOrders(version=4, cores=2.0)
    assert world.state.orders_of("j-worker-1", world.up["j-worker-1"]["incarnation"]) is None
    server = next(iter(world.state.membership.servers())).name
    assert resize(world, server, 3.0) == PodOrders(version=1, cores=3.0)


def test_speed_is_not_measured_before_a_worker_has_its_orders():
    world = running()
    resize(world, "j-worker-0", 3.0)
    member = world.state.membership.members["j-worker-0"]
    member.awaits_size = False
    assert not is_settled(world.state)
    member.orders_version = 1
    assert is_settled(world.state)


def test_only_workers_are_ordered_by_observers():
    world = running()
    assert order(world, pod="j-ps-0", batch_size=1) is None
    world.handle(events.PodOrdered(time=world.time, pod="nobody", order=WorkerOrder(batch_size=1)))


def test_a_new_process_of_the_pod_gets_its_orders_again():
    world = running()
    order(world, batch_size=256)
    pod = world.up["j-worker-0"]
    report = events.PodReported(
        time=world.time, pod="j-worker-0", incarnation=pod["incarnation"], generation=0, reached_version=0,
        orders_version=1,
    )  # fmt: skip
    assert world.state.changes_state(report)
    world.handle(report)
    member = world.state.membership.members["j-worker-0"]
    assert member.orders_version == 1 and not world.state.changes_state(report)
    pod |= {"incarnation": "another", "shards": []}
    world.register("j-worker-0")
    assert member.orders_version == 0
    assert world.state.orders_of("j-worker-0", "another") == PodOrders(version=1, batch_size=256)
    assert world.state.orders_of("j-worker-0", report.incarnation) is None


def test_an_answer_without_orders_has_no_field_for_them():
    assert b"orders" not in msgspec.msgpack.encode(Answer(directive=None))
    answer = msgspec.msgpack.encode(Answer(directive=None, orders=PodOrders(version=2, is_idle=True)))
    assert msgspec.msgpack.decode(answer, type=Answer).orders == PodOrders(version=2, is_idle=True)


def test_a_real_session_gets_its_orders_and_the_master_hears_that_it_has_them(
    two: tuple[Stage, Session, Session],  # noqa: F811
) -> None:
    s, worker, _ = two
    worker.register()
    s.wait_for(Phase.TRAINING)
    assert worker.orders is None
    wanted = WorkerOrder(batch_size=128, learning_rate_scale=0.5)
    s.service.submit(lambda now: events.PodOrdered(time=now, pod=POD, order=wanted))
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
    # The last one that trains is never idle.
    s.wait(lambda: all(member.is_registered for member in s.service.state.membership.workers()))
    s.service.submit(lambda now: events.PodOrdered(time=now, pod=POD, order=WorkerOrder(is_idle=True)))
    s.wait(lambda: worker.orders is not None)
    s.stop()
    s.start()
    member = s.service.state.membership.members[POD]
    assert member.orders == PodOrders(version=1, is_idle=True)
    answer = s.call(
        Heartbeat(pod=POD, incarnation=worker.identity.incarnation, generation=0, reached_version=0), Answer
    )
    assert answer.orders == member.orders
    later.register()
    assert later.orders == PodOrders(version=1, is_idle=True)


def test_a_worker_can_be_given_orders_from_outside(
    two: tuple[Stage, Session, Session],  # noqa: F811
) -> None:
    s, worker, _ = two
    worker.register()
    s.wait_for(Phase.TRAINING)
    wanted = OrderWorkers(pods=[POD], order=WorkerOrder(batch_size=16, learning_rate_scale=0.25))
    given = OrderedWorker(pod=POD, batch_size=16, learning_rate_scale=0.25, is_idle=False)
    assert s.call(msgspec.structs.replace(wanted, dry_run=True), OrdersAnswer) == OrdersAnswer(workers=[given])
    assert s.service.state.membership.members[POD].orders is None
    assert s.call(wanted, OrdersAnswer) == OrdersAnswer(workers=[given])
    s.wait(lambda: worker.orders == PodOrders(version=1, batch_size=16, learning_rate_scale=0.25))
    leased = s.service.lease(
        LeaseShards(
            pod=POD, incarnation=worker.identity.incarnation, generation=0, request_id="x", count=1, kind="train"
        )
    )
    assert leased.orders == worker.orders
    refused = s.call(OrderWorkers(pods=["nobody"], order=WorkerOrder(batch_size=16)), OrdersAnswer)
    assert refused.reason.startswith("pod: 'nobody' is not allowed") and not refused.workers


def test_an_order_for_all_workers_reaches_them_through_the_service(
    two: tuple[Stage, Session, Session],  # noqa: F811
) -> None:
    s, worker, _ = two
    worker.register()
    s.wait_for(Phase.TRAINING)
    wanted = OrderWorkers(order=WorkerOrder(batch_size=16))
    answer = s.call(wanted, OrdersAnswer)
    assert {each.pod for each in answer.workers} == {POD, OTHER} and {each.batch_size for each in answer.workers} == {
        16
    }
    s.wait(lambda: worker.orders == PodOrders(version=1, batch_size=16))


def test_orders_that_are_not_named_stay() -> None:
    world = running()
    order(world, batch_size=256)
    for wanted, given in (
        (WorkerOrder(learning_rate_scale=0.5), PodOrders(version=2, batch_size=256, learning_rate_scale=0.5)),
        (WorkerOrder(batch_size=64), PodOrders(version=3, batch_size=64, learning_rate_scale=0.5)),
        (WorkerOrder(resets=True, batch_size=8), PodOrders(version=4, batch_size=8)),
    ):
        world.handle(events.PodOrdered(time=world.time, pod="j-worker-0", order=wanted))
        assert world.state.membership.members["j-worker-0"].orders == given


def test_an_order_for_all_workers_is_given_once_none_is_within_a_step() -> None:
    """Whatever is trained before it is under the old orders, whatever follows under the new ones."""
    world = lively()
    order(world, pod="j-worker-1", learning_rate_scale=0.25)
    version = world.state.phases.version
    order_all(world, batch_size=64)
    assert world.state.saves.is_paused and world.state.phases.version > version
    world.act("j-worker-0")
    assert orders_of_all(world) == [None, PodOrders(version=1, learning_rate_scale=0.25)]
    world.act("j-worker-1")
    given = [PodOrders(version=1, batch_size=64), PodOrders(version=2, batch_size=64, learning_rate_scale=0.25)]
    assert orders_of_all(world) == given and world.state.saves.is_paused
    assert world.directive("j-worker-0").mode is Mode.PAUSE
    story = [e.inputs for e in world.effects if isinstance(e, Decided) and e.decision == "workers_ordered"]
    assert story == [{"batch_size": 64}]


def test_an_order_for_all_workers_outlives_a_rollback_and_the_master_and_holds_for_those_that_join() -> None:
    world = lively()
    order_all(world, learning_rate_scale=0.5)
    world.kill("j-ps-0")
    world.state = decode_state(encode_state(world.state))
    world.live_on(5)
    assert world.state.phase is Phase.TRAINING
    assert [given and given.learning_rate_scale for given in orders_of_all(world)] == [0.5, 0.5]
    world.handle(events.ShapeAsked(time=world.time, change={Role.WORKER: PlacesChange(count=3)}))
    world.live_on(5)
    assert [given and given.learning_rate_scale for given in orders_of_all(world)] == [0.5] * 3
    order_all(world, resets=True)
    world.live_on(5)
    assert {given and given.learning_rate_scale for given in orders_of_all(world)} == {1.0}


def test_workers_of_the_same_orders_share_one_answer() -> None:
    world = lively()
    order_all(world, batch_size=64)
    for pod in ("j-worker-0", "j-worker-1"):
        world.act(pod)
    answers = Answers()
    first, second = (
        answers.of(pod, world.up[pod]["incarnation"], world.state, 2.0) for pod in ("j-worker-0", "j-worker-1")
    )
    assert first is second


def lively() -> World:
    """Two workers that hold shards of a job with much left to train."""
    return running(plan(training_rows=20_000, save_interval_seconds=0.0))


def attempts(world: World, outcome: str) -> list[tuple[str, int, int]]:
    """Pod, and from which row to which."""
    ended = [effect.ended for effect in world.effects if isinstance(effect, RecordAttempt)]
    return [(one.pod, one.begin, one.end) for one in ended if one.outcome == outcome]


def test_the_shards_of_an_idle_worker_continue_with_others():
    world = lively()
    held = {number: lease.offset for number, lease in world.state.training.doing.items() if lease.pod == "j-worker-0"}
    assert held and any(held.values())
    order(world, is_idle=True)
    # Until it has let go, its shards are its own, and what it has pushed may still count.
    assert "j-worker-0" in world.state.training.held
    world.act("j-worker-0")
    assert "j-worker-0" not in world.state.training.held
    assert {number: world.state.training.returned[number].offset for number in held} == held
    assert {pod for pod, _, _ in attempts(world, "given back")} == {"j-worker-0"}
    assert not world.state.training.failures and not world.state.membership.losses
    for _ in range(500):
        world.act("j-worker-0")
        world.act("j-worker-1")
    assert "j-worker-0" not in world.state.training.held and not world.state.membership.members["j-worker-0"].starved
    # Nor does a request that was under way when the order came.
    asked = events.ShardsAsked(
        time=world.time, pod="j-worker-0", incarnation=world.up["j-worker-0"]["incarnation"], generation=0,
        request_id="late", count=1, kind="train",
    )  # fmt: skip
    assert answer_unchanged(world.state, asked) == AnswerLease(state=LeaseState.WAIT)
    world.handle(asked)
    assert world.effects[-1] == AnswerLease(state=LeaseState.WAIT) and "j-worker-0" not in world.state.training.held
    order(world)
    world.act("j-worker-0")
    assert "j-worker-0" in world.state.training.held


def test_a_late_word_of_letting_go_takes_no_shard_that_was_leased_since():
    world = lively()
    order(world, is_idle=True)
    world.act("j-worker-0")
    (word,) = [e for e in world.events if isinstance(e, events.PodReported) and e.let_go_version == 1]
    order(world)
    world.act("j-worker-0")
    held = world.state.training.held["j-worker-0"]
    assert not world.state.changes_state(word)
    world.handle(word)
    # Nor one of orders that this master never gave.
    strange = msgspec.structs.replace(word, let_go_version=9)
    assert not world.state.changes_state(strange)
    world.handle(strange)
    assert world.state.training.held["j-worker-0"] == held


def test_a_worker_ordered_back_early_still_returns_its_shards():
    world = lively()
    order(world, is_idle=True)
    order(world)
    word = events.PodReported(
        time=world.time, pod="j-worker-0", incarnation=world.up["j-worker-0"]["incarnation"], generation=0,
        reached_version=0, orders_version=1, let_go_version=1,
    )  # fmt: skip
    assert world.state.changes_state(word)
    world.handle(word)
    assert "j-worker-0" not in world.state.training.held


def test_the_last_training_worker_cannot_be_idle_and_idle_ones_train_after_its_loss():
    world = lively()
    training = Training()
    idle = WorkerOrder(is_idle=True)
    assert not refusal(world.state, training, OrderWorkers(pods=["j-worker-0"], order=idle))
    both = refusal(world.state, training, OrderWorkers(pods=["j-worker-0", "j-worker-1"], order=idle))
    assert "no other worker would train" in both
    assert "name the workers" in refusal(world.state, training, OrderWorkers(order=idle))
    order(world, is_idle=True)
    reason = refusal(world.state, training, OrderWorkers(pods=["j-worker-1"], order=idle))
    assert reason.startswith("is_idle: True is not allowed for j-worker-1; allowed: False") and "more workers" in reason
    world.kill("j-worker-1")
    member = world.state.membership.members["j-worker-0"]
    assert member.orders == PodOrders(version=2)
    decided = [e.inputs for e in world.effects if isinstance(e, Decided) and e.decision == "pod_ordered"]
    assert decided[-1]["pod"] == "j-worker-0" and decided[-1]["reason"] == "no other worker is left to train"


def test_two_orders_that_met_leave_one_worker_at_work():
    """Each was allowed when it was asked for."""
    world = lively()
    order(world, is_idle=True)
    order(world, pod="j-worker-1", is_idle=True)
    assert not any(worker.is_idle for worker in world.state.membership.workers())


def test_a_job_with_an_idle_worker_is_evaluated_by_the_others_and_ends():
    world = running(plan(save_interval_seconds=0.0))
    order(world, is_idle=True)
    for _ in range(200):
        world.time += 1.0
        for name in list(world.up):
            world.act(name)
        world.commit(succeed=True)
    assert world.state.phase is Phase.SUCCEEDED
    trained = {pod for pod, begin, end in attempts(world, "done") if end > begin}
    assert "j-worker-1" in trained and world.state.evaluation.is_done


def test_status_shows_an_idle_worker_and_the_reason():
    world = lively()
    order(world, is_idle=True)

    def pod() -> PodMetrics:
        metrics = training_metrics(world.state, "j", world.time, None, {}, {})
        return next(pod for pod in metrics.pods if pod.name == "j-worker-0")

    assert pod().state == "Running" and pod().reason == "was ordered to be idle"
    world.act("j-worker-0")
    assert pod().state == "Idle"
    order(world)
    assert pod().state == "Running" and not pod().reason
    order(world, batch_size=64, learning_rate_scale=0.5)
    assert pod().reason == "was ordered: batch size 64, learning rates × 0.5"


def test_a_job_with_an_idle_worker_teaches_the_throughput_model_nothing():
    world = lively()
    world.act("j-worker-0")
    assert is_settled(world.state)
    order(world, is_idle=True)
    assert not is_settled(world.state)


@pytest.mark.parametrize(
    ("pods", "order", "field", "allowed"),
    [
        (["j-ps-0"], WorkerOrder(), "pod: 'j-ps-0'", "j-worker-0"),
        ([], WorkerOrder(batch_size=0), "batch_size: 0", "1 to the rows of a shard"),
        (["j-worker-0"], WorkerOrder(batch_size=10**9), "batch_size: 1000000000", "1 to the rows of a shard"),
        ([], WorkerOrder(learning_rate_scale=0.0), "learning_rate_scale: 0.0", "above 0"),
        ([], WorkerOrder(learning_rate_scale=float("nan")), "learning_rate_scale: nan", "above 0"),
    ],
)
def test_an_order_that_cannot_be_followed_is_refused_with_its_field(
    pods: list[str], order: WorkerOrder, field: str, allowed: str
) -> None:
    reason = refusal(running().state, Training(), OrderWorkers(pods=pods, order=order))
    assert reason.startswith(f"{field} is not allowed; allowed: ") and allowed in reason
    assert not refusal(running().state, Training(), OrderWorkers(pods=["j-worker-0"], order=WorkerOrder(batch_size=1)))


def test_all_workers_of_a_job_that_trains_no_more_take_no_order() -> None:
    world = running(plan(save_interval_seconds=0.0))
    world.live_on(200)
    world.state.phases.phase = Phase.EVALUATING
    reason = refusal(world.state, Training(), OrderWorkers(order=WorkerOrder(batch_size=1)))
    assert reason == "the job is evaluating: no worker trains any more"
