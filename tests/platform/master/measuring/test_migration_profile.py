"""Migrations, from the decisions of the master: stages, servers, costs, and reasons for giving up."""

from __future__ import annotations

import msgspec
import pytest

from elastrec.platform.history import metric_names as names
from elastrec.platform.master.machine import events
from elastrec.platform.master.machine.effects import Decided, Effect
from elastrec.platform.master.machine.migration import COPYING, HANDING_OVER
from elastrec.platform.master.measuring.migration_profile import MigrationProfile, migrations_of
from elastrec.platform.specs.shape import DONE, UNDER_WAY
from tests.platform.master.machine.test_migration import ask, go_on
from tests.platform.master.world import World, plan

pytestmark = pytest.mark.usefixtures("fleet")


class Written(World):
    """A job whose decisions are kept as its journal keeps them."""

    def __init__(self) -> None:
        self.lines: list[tuple[float, float, str, dict[str, object]]] = []
        super().__init__(plan(training_rows=20_000, save_interval_seconds=0.0))
        while len(self.state.training.held) < 2:
            self.start_pod()
            for name in list(self.up):
                self.act(name)

    def note(self, event: events.Event, effects: list[Effect]) -> None:
        super().note(event, effects)
        decided = [effect for effect in effects if isinstance(effect, Decided)]
        self.lines += [(event.time, 1e9 + event.time, each.decision, each.inputs) for each in decided]


def test_the_profile_of_a_migration_has_stages_servers_and_costs() -> None:
    world = Written()
    ask(world, 3)
    go_on(world)
    ask(world, 1)
    go_on(world)
    grown, shrunk = migrations_of(world.lines)
    assert (grown.servers_before, grown.servers_after, grown.outcome) == (2, 3, DONE)
    (new,) = [server for server in grown.servers if server.is_new]
    assert not any(server.leaves for server in grown.servers) and len(grown.servers) == 3
    stages = [grown.begun_seconds, new.up_seconds, grown.copying_seconds, grown.handing_over_seconds]
    assert None not in stages and stages == sorted(stages, key=lambda at: at or 0.0)
    assert grown.pause_seconds is not None and grown.copied_seconds is not None
    assert sum(server.leaves for server in shrunk.servers) == 2 and not any(s.is_new for s in shrunk.servers)
    profile = MigrationProfile([grown])
    assert profile.medians() == {
        names.MIGRATION_PAUSE_SECONDS: grown.pause_seconds,
        names.MIGRATION_COPY_SECONDS: grown.copied_seconds,
    }


def test_a_running_migration_shows_its_progress_and_no_cost() -> None:
    world = Written()
    ask(world, 3)
    go_on(world, until=COPYING)
    (seen,) = migrations_of(world.lines)
    assert seen.outcome == UNDER_WAY and seen.copying_seconds is not None and seen.handing_over_seconds is None
    assert MigrationProfile([seen]).medians() == {}


def test_a_migration_that_was_given_up_has_a_reason_and_is_not_measured() -> None:
    world = Written()
    ask(world, 3)
    go_on(world, until=HANDING_OVER)
    world.kill(next(iter(world.state.migration.sources)))  # type: ignore[union-attr]
    (seen,) = migrations_of(world.lines)
    assert seen.ended_seconds is not None and seen.outcome not in (DONE, UNDER_WAY)
    assert seen.pause_seconds is None and MigrationProfile([seen]).medians() == {}


def test_a_restarted_master_continues_the_running_change() -> None:
    world = Written()
    ask(world, 3)
    go_on(world, until=COPYING)
    profile = MigrationProfile(migrations_of(world.lines))
    before = len(world.lines)
    go_on(world)
    for line in world.lines[before:]:
        profile.decided(*line)
    assert [each.outcome for each in profile.seen] == [DONE]
    (whole,) = migrations_of(world.lines)
    assert msgspec.structs.replace(whole, servers=[]) == msgspec.structs.replace(profile.seen[0], servers=[])
