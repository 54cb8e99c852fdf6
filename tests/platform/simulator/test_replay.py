from __future__ import annotations

import msgspec
import pytest

from elastrec.platform.specs.errors import ScalingError
from tests.platform.simulator.cluster import QUIET, asked, job, run


def seconds(*workers_up: tuple[float, int], start: float = 10.0) -> float:
    return replayed(*((at, workers, job().allocation.parameter_servers) for at, workers in workers_up), start=start)


def replayed(*pods_up: tuple[float, int, int], start: float = 10.0, pause: float = 0.0) -> float:
    recorded = job(start_seconds=start, pods_up=pods_up)
    given = msgspec.structs.replace(QUIET, straggler_share=1.0, migration_pause_seconds=pause)
    (ended,) = run("static", [recorded], given=given).jobs
    return ended.completion_seconds


def test_a_recorded_start_replaces_a_drawn_one_without_other_faults() -> None:
    assert seconds((0.0, 4)) == pytest.approx(10.0 + 3600.0)
    assert seconds((0.0, 4), start=90.0) == pytest.approx(90.0 + 3600.0)


def test_late_and_lost_workers_are_missing_for_their_recorded_time() -> None:
    fewer = job().samples_per_second(asked(4)) * 3 / 4
    missed = 600.0 * (job().samples_per_second(asked(4)) - fewer) / job().samples_per_second(asked(4))
    assert seconds((0.0, 4), (1000.0, 3), (1600.0, 4)) == pytest.approx(10.0 + 3600.0 + missed, rel=0.02)
    assert seconds((0.0, 3), (600.0, 4)) == pytest.approx(10.0 + 3600.0 + missed, rel=0.02)


def test_workers_that_were_added_train_from_their_moment_on() -> None:
    speed = {workers: job().samples_per_second(asked(workers)) for workers in (4, 8)}
    expected = 10.0 + 1000.0 + (job().samples - 1000.0 * speed[4]) / speed[8]
    assert seconds((0.0, 4), (1000.0, 8)) == pytest.approx(expected)


@pytest.mark.parametrize("servers", [1, 3])
def test_servers_that_were_added_or_removed_serve_after_a_pause(servers: int) -> None:
    speed = {
        of: job().samples_per_second(msgspec.structs.replace(asked(4), parameter_servers=of)) for of in (servers, 2)
    }
    expected = 10.0 + 1000.0 + 45.0 + (job().samples - 1000.0 * speed[2]) / speed[servers]
    assert job().allocation.parameter_servers == 2
    assert replayed((0.0, 4, 2), (1000.0, 4, servers), pause=45.0) == pytest.approx(expected)


def test_joining_workers_cause_no_pause() -> None:
    assert replayed((0.0, 4, 2), (1000.0, 8, 2), pause=45.0) == replayed((0.0, 4, 2), (1000.0, 8, 2))


def test_more_pods_than_the_nodes_hold_are_refused() -> None:
    with pytest.raises(ScalingError, match="pods_up: 40 workers and 2 servers are not allowed"):
        run("static", [job(pods_up=((0.0, 40, 2),))], nodes=1)


@pytest.mark.parametrize("wrong", [((5.0, 1, 1), (1.0, 2, 1)), ((-1.0, 1, 1),)])
def test_moments_that_do_not_rise_are_refused(wrong: tuple[tuple[float, int, int], ...]) -> None:
    with pytest.raises(ScalingError, match="pods_up"):
        job(pods_up=wrong)
