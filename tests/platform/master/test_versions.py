"""The version of a directive is derived from its contents."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.platform.master.machine import events
from elastrec.platform.master.machine.effects import Effect
from elastrec.platform.master.service.journal import decode_state, encode_state
from elastrec.platform.specs.metrics import Role
from tests.platform.master.disturbing import disturb
from tests.platform.master.world import World, plan, running

pytestmark = pytest.mark.usefixtures("some_fleet")


class Comparing(World):
    """A world that compares what every pod is ordered before and after every event."""

    def said(self) -> dict[tuple[str, str], Any]:
        pods = [(name, pod["incarnation"]) for name, pod in self.up.items()]
        directives = {pod: self.state.directive(*pod) for pod in pods}
        return {pod: msgspec.structs.replace(directive, version=0) for pod, directive in directives.items()}

    def handle(self, event: events.Event) -> list[Effect]:
        before, version = self.said(), self.state.phases.version
        effects = super().handle(event)
        return effects if self.state.phases.version > version else self._check(before, effects)

    def _check(self, before: dict[tuple[str, str], Any], effects: list[Effect]) -> list[Effect]:
        after = self.said()
        changed = [pod for pod in before.keys() & after.keys() if before[pod] != after[pod]]
        assert not changed, f"{changed} get another directive under the same version"
        return effects


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), synchronous=st.booleans())
def test_whatever_changes_a_directive_raises_its_version(seed: int, synchronous: bool):
    chance = random.Random(seed)
    world = Comparing(plan(is_synchronous=synchronous))
    for _ in range(200):
        disturb(world, chance)


def test_an_event_that_changes_no_directive_leaves_its_version():
    world = running(plan(training_rows=20_000, save_interval_seconds=0.0))
    version = world.state.phases.version
    for _ in range(20):
        for name in list(world.up):
            world.act(name)
    world.handle(events.Measured(time=world.time, waiting_share=0.5))
    world.handle(events.OwnerChanged(time=world.time, owner="a"))
    assert world.state.training.samples > 100 and world.state.phases.version == version


def test_one_event_raises_the_version_once_whatever_it_changes():
    world = running()
    version = world.state.phases.version
    incarnation = world.up["j-ps-0"]["incarnation"]
    world.state.handle(events.PodSilent(time=0.0, pod="j-ps-0", incarnation=incarnation, silent_seconds=15.0))
    assert world.state.phases.version == version + 1 and world.state.recovery.rollbacks == 1


def test_a_state_that_was_read_from_a_snapshot_counts_on_alike():
    world = running()
    copy = decode_state(encode_state(world.state))
    event = events.PodReported(
        time=world.time, pod="j-ps-0", incarnation=world.up["j-ps-0"]["incarnation"], generation=0, reached_version=1
    )
    for state in (world.state, copy):
        state.handle(event)
        state.handle(events.SaveAsked(time=world.time))
    assert encode_state(copy) == encode_state(world.state)


def test_a_worker_without_data_changes_orders_of_servers_only_in_bsp_and_ssp():
    for is_synchronous in (True, False):
        world = running(plan(is_synchronous=is_synchronous, training_rows=20, save_interval_seconds=0.0), rounds=2)
        idle = next(n for n, p in world.up.items() if p["role"] is Role.WORKER and not p["shards"])
        world.state.membership.members[idle].starved = False
        version = world.state.phases.version
        world.act(idle)
        assert (world.state.phases.version > version) is is_synchronous
