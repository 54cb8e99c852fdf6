"""Changes of servers before the first worker has sent the dense parameters of its network to all of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from elastrec.platform.transport.messages.directive import RoutingTable
from elastrec.trainers.embedding.client import ParameterClient
from elastrec.trainers.parameter_server.dense.layout import dense_runs, layout_size, run_size
from elastrec.trainers.parameter_server.messages import InitDense, Parameter, Stamp
from elastrec.trainers.parameter_server.plan import plan_of_job
from elastrec.trainers.parameter_server.records.share import restore
from elastrec.trainers.parameter_server.warm_up import warm_kernels
from tests.trainers.parameter_server.filled import save, servers_of
from tests.trainers.parameter_server.migration.moving import JOB, Cluster, cluster
from tests.trainers.parameter_server.running import TOKEN

KEPT, ADDED = Parameter("over.weight", (29, 7)), Parameter("tower.weight", (31, 3))


@pytest.fixture(autouse=True, scope="module")
def _warm() -> None:
    """A kernel that compiles in the middle of a request would look like a server out of reach."""
    warm_kernels()


def trained_values() -> np.ndarray:
    return np.linspace(1, 2, 29 * 7, dtype=np.float32)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A record with the values of KEPT."""
    (server,) = servers_of(JOB, 1)
    assert server.model is not None
    server.model.init_dense(InitDense(stamp=Stamp("w", "i", 1, 1), layout=[KEPT]), [trained_values()])
    return save([server], JOB, str(tmp_path / "record"))


def values_after_the_first_worker(moved: Cluster, layout: list[Parameter]) -> dict[str, np.ndarray]:
    """The values of each parameter in all servers, after a worker whose own are zeros has connected."""
    client = ParameterClient(plan_of_job(JOB.spec), worker="w", incarnation="i", token=TOKEN, layout=layout)
    try:
        client.connect(moved.routing, 1)
        client.init_dense(np.zeros(layout_size(layout), np.float32))
    finally:
        client.close()
    found = {each.name: np.full(int(np.prod(each.shape)), np.nan, np.float32) for each in layout}
    for name in moved.routing.servers:
        dense = moved.servers[name].dense
        assert dense is not None and dense.layout == layout
        for piece in dense.pieces():
            end = piece.start + piece.length
            found[piece.parameter.name][piece.start : end] = dense.values[piece.place : piece.place + piece.length]
    return found


def continue_from(uri: str, moved: Cluster, routing: RoutingTable) -> None:
    for name in routing.servers:
        restore(moved.servers[name], uri, routing, 1)


@pytest.mark.parametrize("counts", [(1, 2), (2, 3, 1), (2, 1, 4)], ids=str)
def test_recorded_parameters_are_kept_although_buckets_move_before_a_changed_network_comes(
    uri: str, counts: tuple[int, ...]
) -> None:
    with cluster(4, counts[0]) as moved:
        continue_from(uri, moved, moved.routing)
        for count in counts[1:]:
            moved.move(count)
        found = values_after_the_first_worker(moved, [ADDED, KEPT])
        np.testing.assert_array_equal(found["over.weight"], trained_values())
        assert not found["tower.weight"].any()


@pytest.mark.parametrize("is_continued", [False, True], ids=["from nothing", "from a record"])
def test_buckets_move_while_the_first_worker_has_reached_one_of_two_servers(uri: str, is_continued: bool) -> None:
    layout = [ADDED, KEPT]
    with cluster(3, 2) as moved:
        continue_from(uri if is_continued else "", moved, moved.routing)
        first = moved.servers["ps-0"]
        assert first.model is not None
        size = run_size(dense_runs(first.model.place.dense_owned, layout_size(layout)))
        request = InitDense(stamp=Stamp("w", "i", 1, 1), layout=layout)
        first.model.init_dense(request, [np.zeros(size, np.float32)])
        moved.move(3)
        found = values_after_the_first_worker(moved, layout)
        np.testing.assert_array_equal(found["over.weight"], trained_values() if is_continued else 0.0)
        assert not found["tower.weight"].any()
