"""Readers also get the figures of heartbeats that were not added up yet."""

from __future__ import annotations

import pytest

from elastrec.platform.history import metric_names as names
from elastrec.platform.master.machine import events
from elastrec.platform.master.machine.effects import Effect
from elastrec.platform.master.measuring.hot_servers import COOL_DOWN_SECONDS
from elastrec.platform.master.measuring.observations import Observations
from elastrec.platform.master.measuring.speed_profile import is_settled
from elastrec.platform.master.service.journal import decode_state, encode_state
from elastrec.platform.specs.metrics import Role
from elastrec.platform.transport.messages.job import BucketLoad, Heartbeat, ServerLoad, TableUsage, WindowMetrics
from tests.platform.master.machine.test_migration import ask, go_on, long_job
from tests.platform.master.world import World, running


def report(world: World, seen: Observations, number: int, steps: int = 2) -> None:
    """A worker's heartbeat with a window of some steps."""
    metrics = WindowMetrics(number=number, samples=64 * steps, steps=steps, compute_seconds=0.6, wait_seconds=0.2)
    beat = Heartbeat(
        pod="j-worker-0", incarnation="i", generation=0, reached_version=1, metrics=metrics, cpu_seconds=2.0 * number
    )
    seen.heartbeat(beat, world.state, world.time)


def test_every_reader_finds_the_heartbeats_that_came_before() -> None:
    world = running()
    seen = Observations(world.time)
    report(world, seen, 1)
    assert seen.monitor.pods["j-worker-0"].samples == 128
    report(world, seen, 2)
    assert seen.monitor.take_waiting_share() == 0.25
    seen.starts._asked["j-worker-0"] = (Role.WORKER, world.time - 3.0, True)
    report(world, seen, 3)
    assert seen.starts.medians() == {names.WORKER_START_SECONDS: 3.0, names.WORKER_START_CORE_SECONDS: 6.0}
    report(world, seen, 4)
    assert seen.close_window(world.state, world.time + 60.0)
    assert seen.window is not None and seen.window.samples == 4 * 128


def test_a_heartbeat_waits_for_its_readers_half_a_second_at_most() -> None:
    world = running()
    seen = Observations(world.time)
    report(world, seen, 1)
    seen.settle_late(world.time + 0.4)
    assert not seen._monitor.pods
    seen.settle_late(world.time + 0.5)
    assert seen._monitor.pods["j-worker-0"].samples == 128


def test_only_few_of_many_heartbeats_are_kept() -> None:
    world = running()
    seen = Observations(world.time)
    for number in range(5000):
        report(world, seen, 1 + number)
        assert len(seen._unread) < 1024
    assert seen.monitor.pods["j-worker-0"].samples == 5000 * 128


def test_seconds_of_a_window_wait_for_rows_only_where_the_job_trained_when_it_came() -> None:
    world = running()
    seen = Observations(world.time)
    report(world, seen, 1)
    world.run_fairly()
    assert world.state.phase.is_final
    report(world, seen, 2)
    assert seen.monitor.take_waiting_share() == 0.25
    assert seen.monitor._worked == 0.0
    report(world, seen, 3)
    assert seen.monitor.take_waiting_share() is None, "after the end nobody trains"


def test_a_job_with_constant_changes_still_measures_growth_and_speed():
    """It saves all the time, so that no speed of its configuration is ever measured."""
    world = running()
    seen = Observations(world.time)
    world.handle(events.SaveAsked(time=world.time))
    for second in range(1, 5):
        world.state.training.samples = 128 * second
        tables = [TableUsage(table="user", rows=50 * second, bytes=4000 * second)]
        for server in ("j-ps-0", "j-ps-1"):
            beat = Heartbeat(pod=server, incarnation="i", generation=0, reached_version=1, tables=tables)
            seen.heartbeat(beat, world.state, world.time)
        report(world, seen, second)
        assert not is_settled(world.state)
        assert seen.close_window(world.state, world.time + second)
    (user,) = seen.growth.tables()
    assert len(user.samples) >= 3 and user.rows[-1] == 400
    assert seen.speed.samples_per_second == pytest.approx(128.0)
    assert seen.profile.measured() == []


def rows_of(world: World, seen: Observations, counts: dict[str, int]) -> list[int]:
    """The counted rows of all servers together, after reports of some of them and a window of training."""
    for server, rows in counts.items():
        tables = [TableUsage(table="user", rows=rows, bytes=80 * rows)]
        beat = Heartbeat(pod=server, incarnation="i", generation=0, reached_version=1, tables=tables)
        seen.heartbeat(beat, world.state, world.time)
    world.state.training.samples *= 2
    world.time += 5.0
    assert seen.close_window(world.state, world.time)
    return [rows for table in seen.growth.tables() for rows in table.rows]


def test_rows_that_have_moved_count_once_although_servers_report_one_after_the_other() -> None:
    world = long_job()
    seen = Observations(world.time)
    note = world.note

    def note_and_measure(event: events.Event, effects: list[Effect]) -> None:
        note(event, effects)
        seen.handled(world.state, effects, world.time)

    world.note = note_and_measure  # type: ignore[method-assign]
    assert rows_of(world, seen, {"j-ps-0": 300, "j-ps-1": 300}) == [600]
    ask(world, 3)
    go_on(world)
    # The new server's rows are still in the last reports of the two others.
    assert rows_of(world, seen, {"j-ps-2": 200}) == [600]
    assert not seen.is_current(world.state)
    assert rows_of(world, seen, {"j-ps-0": 200, "j-ps-1": 200}) == [600, 600]
    assert seen.is_current(world.state)


def test_a_restarted_master_counts_no_rows_before_all_servers_have_reported() -> None:
    world = long_job()
    seen = Observations(world.time)
    assert rows_of(world, seen, {"j-ps-0": 300}) == [] and not seen.is_current(world.state)
    assert rows_of(world, seen, {"j-ps-1": 300}) == [600]


@pytest.mark.parametrize("trouble", ["", "a server is resized", "nothing is trained", "the job is nearly done"])
def test_a_hot_server_is_found_while_the_job_trains_and_its_servers_are_settled(trouble: str):
    world = long_job()
    seen, found = Observations(world.time), list[str]()
    world.state.membership.members["j-ps-1"].awaits_size = trouble == "a server is resized"
    samples = world.state.training.splits.total_rows if trouble == "the job is nearly done" else 64
    for number in range(1, 10):
        if trouble != "nothing is trained" or number == 1:
            metrics = WindowMetrics(number=number, samples=samples, steps=2, compute_seconds=0.1, pull_seconds=0.9)
            beat = Heartbeat(pod="j-worker-0", incarnation="i", generation=0, reached_version=1, metrics=metrics)
            seen.heartbeat(beat, world.state, world.time)
        for server, rows in (("j-ps-0", 9000.0), ("j-ps-1", 3000.0)):
            load = ServerLoad(rows_per_second=rows, hottest=[BucketLoad(bucket, 500.0) for bucket in range(8)])
            beat = Heartbeat(pod=server, incarnation="i", generation=0, reached_version=1, load=load)
            seen.heartbeat(beat, world.state, world.time)
        world.time += 5.0
        assert seen.close_window(world.state, world.time)
        relief = seen.relief(world.state, world.time)
        found += [relief.server] if relief is not None else []
    assert found == ([] if trouble else ["j-ps-0"])


def test_a_restarted_master_waits_as_long_for_the_next_relief_as_the_one_before() -> None:
    world = long_job()

    def seconds_until_relief() -> float:
        """By a master that has just started."""
        began, seen = world.time, Observations(world.time)
        seen.recall_changes(world.state)
        for number in range(1, 60):
            metrics = WindowMetrics(number=number, samples=64, steps=2, compute_seconds=0.1, pull_seconds=0.9)
            beat = Heartbeat(pod="j-worker-0", incarnation="i", generation=0, reached_version=1, metrics=metrics)
            seen.heartbeat(beat, world.state, world.time)
            for server, rows in (("j-ps-0", 9000.0), ("j-ps-1", 3000.0)):
                load = ServerLoad(
                    rows_per_second=rows, hottest=[BucketLoad(bucket, 500.0) for bucket in range(0, 16, 2)]
                )
                beat = Heartbeat(pod=server, incarnation="i", generation=0, reached_version=1, load=load)
                seen.heartbeat(beat, world.state, world.time)
            world.time += 5.0
            assert seen.close_window(world.state, world.time)
            if (relief := seen.relief(world.state, world.time)) is not None:
                world.handle(
                    events.ServerHot(
                        time=world.time, server=relief.server, ratio=relief.ratio, ratio_after=relief.ratio_after,
                        moves=relief.moves, ownership_epoch=world.state.ownership.epoch,
                    )
                )  # fmt: skip
                return world.time - began
        raise AssertionError("no server was relieved")

    assert seconds_until_relief() < 30.0
    go_on(world)
    world.state = decode_state(encode_state(world.state))
    assert seconds_until_relief() == COOL_DOWN_SECONDS


def test_a_window_with_steps_and_without_samples_has_no_losses() -> None:
    world = running()
    seen = Observations(world.time)
    metrics = WindowMetrics(number=1, steps=1, compute_seconds=0.5, losses={"click": 0.0})
    beat = Heartbeat(pod="j-worker-0", incarnation="i", generation=0, reached_version=1, metrics=metrics)
    seen.heartbeat(beat, world.state, world.time)
    assert seen.close_window(world.state, world.time + 60.0) and seen.window is None


def test_the_last_window_ends_at_once_however_short_it_was() -> None:
    world = running()
    seen = Observations(world.time)
    report(world, seen, 1)
    assert not seen.close_window(world.state, world.time) and seen.window is None
    seen.close_last_window(world.state, world.time)
    assert seen.window is not None and seen.window.samples == 128
    seen.close_last_window(world.state, world.time)
    assert seen.window.samples == 128
