"""Every fault has a cost, and the costs of all faults sum to the losses of the job."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.platform.master.machine import events
from elastrec.platform.master.machine.effects import Decided
from elastrec.platform.master.measuring.fault_profile import FAULT_ENDED
from elastrec.platform.master.measuring.time_profile import IDLE, RECOVERING, REDOING
from elastrec.platform.master.service.journal import decode_state, encode_state
from elastrec.platform.specs.metrics import FaultCost, Phase
from tests.platform.master.disturbing import disturb
from tests.platform.master.world import World, plan, running

pytestmark = pytest.mark.usefixtures("some_fleet")


def decided(world: World, decision: str) -> list[dict[str, object]]:
    return [each.inputs for each in world.effects if isinstance(each, Decided) and each.decision == decision]


def costs(world: World) -> dict[int, FaultCost]:
    """Of the faults that are over, by their numbers."""
    return {inputs["fault"]: msgspec.convert(inputs, FaultCost) for inputs in decided(world, FAULT_ENDED)}  # type: ignore[misc]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), acts=st.integers(0, 300))
def test_the_costs_of_all_faults_add_up_to_the_losses_of_the_job(seed: int, acts: int):
    chance = random.Random(seed)
    world = World(plan())
    for _ in range(acts):
        disturb(world, chance)
        world.time += chance.random()
    world.run_fairly()
    state, known = world.state, costs(world)
    lost, rolled_back = decided(world, "pod_replaced"), decided(world, "rollback")
    numbers = [inputs["fault"] for inputs in lost + rolled_back]
    assert sorted(numbers) == sorted(known) and not state.faults.open  # type: ignore[type-var]
    total = FaultCost.total([FaultCost(paused_seconds=0, repeated_rows=0, repeated_seconds=0), *known.values()])
    assert total.repeated_rows == state.training.samples - state.training.covered_rows()
    assert total.repeated_seconds == pytest.approx(state.times.seconds.get(REDOING, 0.0))
    of_workers = [known[inputs["fault"]].paused_seconds or 0.0 for inputs in lost if "worker" in str(inputs["pod"])]  # type: ignore[index]
    assert total.paused_seconds is not None
    recovering = state.times.seconds.get(RECOVERING, 0.0)
    assert total.paused_seconds - sum(of_workers) == pytest.approx(recovering)
    assert sum(of_workers) <= state.times.seconds.get(IDLE, 0.0) + 1e-9


def test_the_cost_of_a_lost_server_is_pause_held_cores_and_repeated_rows():
    world = running()
    trained = world.state.training.samples
    assert trained > 0
    world.kill("j-ps-0")
    held = [member for member in world.state.membership.members.values() if member.is_registered]
    assert world.state.phase is Phase.RECOVERING and len(held) == 3
    world.time += 8.0
    world.live_on(3)
    assert world.state.phase is Phase.TRAINING
    (rollback,), (lost,) = decided(world, "rollback"), decided(world, "pod_replaced")
    cost = costs(world)[rollback["fault"]]  # type: ignore[index]
    assert cost.paused_seconds == 8.0 and cost.repeated_rows == trained and cost.vacant_seconds is None
    assert cost.core_seconds == pytest.approx(8.0 * sum(member.cores for member in held))
    assert cost.byte_seconds == pytest.approx(8.0 * sum(member.memory_bytes for member in held))
    assert costs(world)[lost["fault"]] == FaultCost(vacant_seconds=8.0), "the rest is the rollback's"  # type: ignore[index]


def test_training_pauses_for_a_lost_worker_only_while_there_is_no_other():
    world = running()
    world.kill("j-worker-0")
    world.time += 5.0
    world.kill("j-worker-1")
    world.time += 3.0
    first, second = (inputs["fault"] for inputs in decided(world, "pod_replaced"))
    so_far = world.state.faults.costs_at(world.state, world.time)
    assert (so_far[first].paused_seconds, so_far[first].vacant_seconds) == (0.0, 8.0)  # type: ignore[index]
    assert (so_far[second].paused_seconds, so_far[second].vacant_seconds) == (3.0, 3.0)  # type: ignore[index]
    assert not so_far[second].is_over and so_far[second].repeated_rows == 0  # type: ignore[index]
    assert world.state.faults.costs_at(world.state, world.time) == so_far, "a look changes nothing"
    world.live_on(2)
    ended = costs(world)
    assert ended[second].paused_seconds == 3.0 and ended[second].is_over  # type: ignore[index]


def test_how_much_longer_a_start_took_is_unknown():
    world = World(plan())
    world.start_pod()
    world.kill(next(iter(world.up)))
    world.time += 4.0
    world.run_fairly()
    ((_, cost),) = costs(world).items()
    assert cost.paused_seconds is None and cost.core_seconds is None and cost.vacant_seconds is not None


def test_an_open_fault_survives_the_end_of_the_master():
    world = running()
    world.kill("j-ps-0")
    world.time += 2.0
    before = world.state.faults.costs_at(world.state, world.time)
    world.state = decode_state(encode_state(world.state))
    world.handle(events.Restarted(time=world.time, away_seconds=30.0))
    # On YARN, the requests of a lost master end with it, so that the successor of the server is replaced itself.
    after = costs(world) | world.state.faults.costs_at(world.state, world.time)
    assert after[2] == before[2] and before[2].paused_seconds == 2.0, "the time without a master is no pause of it"
    assert after[1].vacant_seconds == before[1].vacant_seconds == 2.0
    world.run_fairly()
    assert max(cost.paused_seconds or 0.0 for cost in costs(world).values()) >= 2.0


def test_unknown_costs_of_several_faults_stay_unknown_and_known_ones_are_added():
    known, unknown = FaultCost(paused_seconds=2.0, repeated_rows=5), FaultCost(repeated_rows=3, is_over=False)
    assert FaultCost.total([known, unknown]) == FaultCost(paused_seconds=2.0, repeated_rows=8, is_over=False)
    assert FaultCost.total([FaultCost(), FaultCost()]) == FaultCost()
