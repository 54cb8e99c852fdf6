"""Moves of dense buckets change neither the values that a worker pulls nor those of the servers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from elastrec.checkpoints import commit_record, open_record
from elastrec.platform.specs.buckets import balanced_owners
from elastrec.platform.transport.messages.directive import RoutingTable
from elastrec.trainers.embedding.client import ParameterClient
from elastrec.trainers.parameter_server.dense.store import DenseBucket
from elastrec.trainers.parameter_server.messages import InitDense, Parameter
from elastrec.trainers.parameter_server.plan import plan_of_job
from elastrec.trainers.parameter_server.records.share import restore, save_part
from elastrec.trainers.parameter_server.serving.server import ParameterServer, Place
from elastrec.trainers.parameter_server.warm_up import warm_kernels
from tests.splits import origin_of
from tests.trainers.parameter_server.calls import applied, push, server_of, stamp
from tests.trainers.parameter_server.moving import hand_over
from tests.trainers.parameter_server.running import TOKEN, routing_of, running_servers, training_job

JOB = training_job(
    optimizers={"rows": {"kind": "adagrad"}, "dense": {"kind": "adam", "learning_rate": 0.05}},
    resources={"virtual_buckets": 64},
)
LAYOUT = [Parameter("over.weight", (29, 7)), Parameter("over.bias", (29,)), Parameter("scale", (1,))]
START = np.linspace(-1, 1, 29 * 8 + 1).astype(np.float32)
IDS = np.arange(60)
SHAPES = (1, 2, 3, 1)
"""Numbers of servers, one after the other."""


@pytest.fixture(autouse=True, scope="module")
def _warm() -> None:
    """A kernel that compiles in the middle of a request would look like a server out of reach."""
    warm_kernels()


def client_of() -> ParameterClient:
    return ParameterClient(plan_of_job(JOB.spec), worker="w", incarnation="i", token=TOKEN, layout=LAYOUT)


def step(client: ParameterClient, place: int) -> np.ndarray:
    """One push whose gradient follows from what was pulled; returns the dense values."""
    routed = client.router.route(IDS, np.array([0, 30]), np.array([30, 60]), np.arange(2))
    pulled = client.pull(routed, dense=True)
    dense = pulled.dense()
    gradient = np.sin(dense) + place
    rows = [np.ones_like(part) for part in pulled.rows()]
    client.push(pulled, rows, [gradient[:100], gradient[100:]], 20, origin_of(place))
    return dense


def held(servers: Sequence[ParameterServer]) -> list[DenseBucket]:
    stores = [server.dense for server in servers if server.dense is not None]
    found = [bucket for store in stores for bucket in store.copies(np.flatnonzero(store.owned).tolist())]
    return sorted(found, key=lambda bucket: bucket.number)


def routings(before: RoutingTable, *, interleaved: bool) -> list[RoutingTable]:
    """Tables for SHAPES, of the servers of one table."""
    owners: list[int] = []
    tables = []
    for epoch, count in enumerate(SHAPES, start=1):
        owners = (
            [bucket % count for bucket in range(64)]
            if interleaved
            else balanced_owners(64, count, [owner if owner < count else None for owner in owners])
        )
        tables.append(
            RoutingTable(
                epoch=epoch, owners=[bucket % count for bucket in range(64)], servers=before.servers[:count],
                addresses=before.addresses[:count], dense_owners=owners,
            )
        )  # fmt: skip
    return tables


def train(*, moves: bool, interleaved: bool = False) -> tuple[list[np.ndarray], list[DenseBucket], list[int]]:
    """Two steps under each routing; without moves under the first one alone."""
    with running_servers(JOB.spec, max(SHAPES), start=False) as (all_servers, servers):
        tables = routings(all_servers, interleaved=interleaved)
        servers[0].start_empty(tables[0], 1)
        client = client_of()
        client.connect(tables[0], 1)
        client.init_dense(START)
        pulled, most = [], []
        for number, table in enumerate(tables):
            if number and moves:
                hand_over(servers, table)
                client.connect(table, 1)
            pulled += [step(client, 2 * number), step(client, 2 * number + 1)]
            client.flush()
            most.append(max(len(server.dense.values) for server in servers if server.dense is not None))
        client.close()
        return pulled, held(servers), most


@pytest.mark.parametrize("interleaved", [False, True], ids=["contiguous", "interleaved"])
def test_changes_of_servers_keep_dense_training_bit_for_bit(interleaved: bool) -> None:
    still, moved = train(moves=False), train(moves=True, interleaved=interleaved)
    for mine, theirs in zip(moved[0], still[0], strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert len(moved[1]) == 64
    for mine, theirs in zip(moved[1], still[1], strict=True):
        assert (mine.number, mine.steps) == (theirs.number, theirs.steps) == (mine.number, 2 * len(SHAPES))
        np.testing.assert_array_equal(mine.values, theirs.values)
        np.testing.assert_array_equal(mine.state, theirs.state)
    largest = len(START) // 64 + 1
    assert all(size <= -(-64 // count) * largest for size, count in zip(moved[2], SHAPES, strict=True))


def test_a_push_is_applied_only_to_dense_buckets_that_lack_it() -> None:
    """One element lies in the last dense bucket of the first half, the other in the last of all."""
    server = server_of()
    push(server, "a", 0, [1], 1.0)
    (marks,) = server.freeze().marks
    routing = routing_of(["here:1"])
    place = Place.under(routing, "ps-0")
    marks = msgspec.structs.replace(marks, dense_buckets=list(range(128)))
    server.become(place, routing, 1, server.empty_stores(place), marks=[marks])
    layout = [Parameter("w", (2,))]
    server.init_dense(InitDense(stamp=stamp("a"), layout=layout), [np.zeros(2, np.float32)])
    assert server.dense is not None
    assert push(server, "a", 0, [1], 1.0)[0] == applied(0)
    np.testing.assert_array_equal(server.dense.values, [0.0, -1.0])
    assert [bucket.steps for bucket in server.dense.copies([127, 255])] == [0, 1]
    assert push(server, "a", 1, [1], 1.0)[0] == applied(1)
    np.testing.assert_array_equal(server.dense.values, [-1.0, -2.0])


def test_a_bsp_step_applies_to_each_dense_bucket_the_pushes_that_it_lacks() -> None:
    server = server_of("bsp", workers=2)
    there = server_of()
    push(there, "a", 0, [1], 1.0)
    (marks,) = there.freeze().marks
    routing = routing_of(["here:1"])
    place = Place.under(routing, "ps-0")
    marks = msgspec.structs.replace(marks, buckets=[], dense_buckets=list(range(128)))
    server.become(place, routing, 1, server.empty_stores(place), marks=[marks])
    server.init_dense(InitDense(stamp=stamp("a"), layout=[Parameter("w", (2,))]), [np.zeros(2, np.float32)])
    assert server.dense is not None
    push(server, "a", 0, [1], 2.0)
    push(server, "a", 1, [1], 4.0)
    # The mean of both pushes for the second element; half of the second push for the first.
    np.testing.assert_array_equal(server.dense.values, [-2.0, -3.0])


@pytest.mark.parametrize("before", [1, 3])
@pytest.mark.parametrize("after", [1, 2])
def test_a_record_of_scattered_dense_buckets_is_restored_by_any_servers(
    tmp_path: Path, before: int, after: int
) -> None:
    uri = str(tmp_path / "record")
    scattered = [(bucket * 7) % 11 % before for bucket in range(64)]
    with running_servers(JOB.spec, before, start=False) as (routing, servers):
        routing = msgspec.structs.replace(routing, dense_owners=scattered)
        for server in servers:
            server.start_empty(routing, 1)
        client = client_of()
        client.connect(routing, 1)
        client.init_dense(START)
        step(client, 0)
        client.flush()
        client.close()
        expected = held(servers)
        assert {bucket.steps for bucket in expected} == {1}
        parts = [save_part(server, uri) for server in servers]
    commit_record(uri, parts[::-1], b"{}", job=JOB, job_id="job-1", kind="periodic", step=1, generation=1)
    record = open_record(uri)
    assert [dense.name for dense in record.manifest.model.dense] == [parameter.name for parameter in LAYOUT]
    np.testing.assert_array_equal(
        np.concatenate([record.dense(parameter.name)["value"].reshape(-1) for parameter in LAYOUT]),
        np.concatenate([bucket.values for bucket in expected]),
    )
    with running_servers(JOB.spec, after, start=False) as (routing, servers):
        for server in servers:
            restore(server, uri, routing, 2)
        found = held(servers)
        client = client_of()
        client.connect(routing, 2)
        assert client.init_dense(START * 0) == 1
        client.close()
        assert [bucket.number for bucket in found] == list(range(64)) == [bucket.number for bucket in held(servers)]
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.steps == theirs.steps
        np.testing.assert_array_equal(mine.values, theirs.values)
        np.testing.assert_array_equal(mine.state, theirs.state)
