"""Nodes that are added and removed: losses of jobs, their recovery, and no resource that is allocated twice."""

from __future__ import annotations

import math

import msgspec
import pytest

from elastrec.platform.scaling.policies.static import Static
from elastrec.platform.simulator.node_changes import NodeChange
from elastrec.platform.simulator.nodes import Nodes
from elastrec.platform.simulator.report import Report
from elastrec.platform.simulator.settings import Settings
from elastrec.platform.simulator.simulation import Simulation
from elastrec.platform.specs.errors import ScalingError
from tests.platform.simulator.cluster import NODE, PRICES, QUIET, asked, job, run
from tests.platform.simulator.made_up import synthetic

SMALL = msgspec.structs.replace(NODE, cores=8.0)
"""Room for four pods of two cores; `job` has six."""


def on_small_nodes(nodes: int, *changes: NodeChange, seconds: float = 3600.0) -> Simulation:
    return Simulation([job(seconds=seconds)], Nodes(nodes, SMALL), Static(), PRICES, QUIET, node_changes=changes)


def test_a_job_waits_for_an_added_node() -> None:
    (ended,) = on_small_nodes(1, NodeChange(900.0, 1)).run().jobs
    assert ended.placed_seconds == 900.0
    assert ended.failures == 0


def test_a_job_that_is_too_large_for_all_nodes_is_reported_immediately() -> None:
    report = on_small_nodes(1).run()
    assert report.unfinished == ("one",)
    assert report.seconds < QUIET.until_seconds


def test_a_removed_node_ends_its_pods_and_the_job_continues_on_others() -> None:
    calm = on_small_nodes(3).run().jobs[0]
    hit = on_small_nodes(3, NodeChange(1800.0, -1), NodeChange(1801.0, -1), NodeChange(1802.0, 2)).run().jobs[0]
    assert hit.failures >= 2
    assert calm.completion_seconds < hit.completion_seconds < calm.completion_seconds + 1200.0


def test_a_job_waits_until_its_lost_pods_fit_again() -> None:
    changes = NodeChange(1800.0, -2), NodeChange(9000.0, 2)
    (ended,) = on_small_nodes(2, *changes).run().jobs
    assert ended.ended_seconds > 9000.0
    assert ended.failures == 6
    # The last checkpoint is at most ten minutes old: less than what had been trained is trained again.
    assert ended.ended_seconds < 9000.0 + 60.0 + 3600.0 - 1000.0


def test_lost_workers_are_replaced_as_soon_as_there_is_room() -> None:
    large = job(seconds=7200.0, allocation=asked(workers=8, servers=1))
    # With this seed, a node of workers is removed, not the one of the server.
    given = msgspec.structs.replace(QUIET, seed=2)

    def changed(*changes: NodeChange) -> Report:
        return Simulation([large], Nodes(3, SMALL), Static(), PRICES, given, node_changes=changes).run()

    gone = NodeChange(600.0, -1)
    calm, half, never = changed(), changed(gone, NodeChange(1200.0, 1)), changed(gone)
    times = [each.jobs[0].completion_seconds for each in (calm, half, never)]
    assert times == sorted(times)
    assert half.jobs[0].allocation.workers == 8


def test_pods_are_lost_once_with_nodes_that_are_removed_together() -> None:
    for seed in range(20):
        # Nine pods on three of eight nodes: at most all of them are lost.
        large = job(allocation=asked(workers=8, servers=1))
        given, changes = msgspec.structs.replace(QUIET, seed=seed), [NodeChange(1800.0, -3)]
        (ended,) = Simulation([large], Nodes(8, SMALL), Static(), PRICES, given, node_changes=changes).run().jobs
        assert ended.failures <= 9, seed


def test_every_job_ends_although_spot_nodes_change_all_day() -> None:
    jobs = synthetic(10, mean_seconds=1800.0)
    changes = [NodeChange(600.0 * step, 3 if step % 2 else -3) for step in range(1, 60)]
    given = Settings(seed=1, hours_between_failures=20.0)
    for policy in ("static", "three-stage"):
        one, again = (run(policy, jobs, nodes=8, given=given, node_changes=changes) for _ in range(2))
        assert one == again
        assert len(one.jobs) == 10
        assert not one.problems
        assert sum(each.failures for each in one.jobs) > 0


def test_every_core_is_free_again_at_the_end() -> None:
    nodes = Nodes(8, NODE)
    changes = [NodeChange(600.0 * step, 2 if step % 2 else -2) for step in range(1, 40)]
    report = Simulation(synthetic(10), nodes, Static(), PRICES, QUIET, node_changes=changes).run()
    assert not report.unfinished
    assert nodes.free.cores == pytest.approx(nodes.count * NODE.cores, abs=1e-6)
    assert nodes.free.memory_bytes == pytest.approx(nodes.count * NODE.memory_bytes, abs=10.0)


def test_shares_of_the_cluster_count_the_nodes_that_were_there() -> None:
    one = run("static", [job()], nodes=1)
    twice = run("static", [job()], nodes=1, node_changes=[NodeChange(0.0, 1)])
    assert twice.figures()["cores_held"] == pytest.approx(one.figures()["cores_held"] / 2, rel=1e-6)
    assert one.figures()["makespan_seconds"] == one.jobs[0].ended_seconds


@pytest.mark.parametrize("change", [(-1.0, 1), (math.inf, 1), (0.0, 0)])
def test_a_change_that_means_nothing_is_refused(change: tuple[float, int]) -> None:
    with pytest.raises(ScalingError, match="node_changes"):
        NodeChange(*change)
