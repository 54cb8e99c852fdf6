"""The client with real servers, and edge cases of the embedding module."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor

from elastrec.platform.specs.errors import SpecError
from elastrec.platform.specs.job import TableSpec
from elastrec.platform.transport import RpcServer
from elastrec.trainers.embedding.client import ParameterClient, RoutingChangedError
from elastrec.trainers.embedding.module import RemoteEmbeddingBagCollection
from elastrec.trainers.embedding.routing import Router
from elastrec.trainers.parameter_server.hashing import buckets_of
from elastrec.trainers.parameter_server.messages import Parameter, Push
from elastrec.trainers.parameter_server.plan import make_plan, plan_of_job
from elastrec.trainers.parameter_server.warm_up import warm_kernels
from tests.splits import origin_of
from tests.trainers.parameter_server.running import DIMENSION, TOKEN, job_spec, running_servers

SPEC = job_spec(tables={"item": {"hash_size": 10}})
LAYOUT = [Parameter("w", (7,))]
DENSE = [np.ones(3, np.float32), np.ones(4, np.float32)]


@pytest.fixture(autouse=True, scope="module")
def _warm() -> None:
    """A kernel that compiles in the middle of a request would look like a server out of reach."""
    warm_kernels()


def client_of(patience_seconds: float = 10.0) -> ParameterClient:
    return ParameterClient(
        plan_of_job(SPEC),
        worker="w",
        incarnation="i",
        token=TOKEN,
        layout=LAYOUT,
        patience_seconds=patience_seconds,
    )


def configs() -> list[EmbeddingBagConfig]:
    return [
        EmbeddingBagConfig(name=name, embedding_dim=DIMENSION, num_embeddings=1, feature_names=[name])
        for name in ("user", "item")
    ]


def features(user: list[int], item: list[int]) -> KeyedJaggedTensor:
    return KeyedJaggedTensor(
        keys=["item", "user"],
        values=torch.tensor(item + user),
        lengths=torch.tensor([len(item), 0, 0, len(user)]),
    )


@settings(max_examples=60, deadline=None)
@given(
    data=st.lists(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 5), max_size=40), min_size=3, max_size=3),
    servers=st.integers(1, 4),
    buckets=st.sampled_from([64, 60]),
)
def test_routing_sends_each_distinct_id_once_to_its_owner_and_finds_it_again(
    data: list[list[int]], servers: int, buckets: int
) -> None:
    dimensions = {"a": 4, "b": 4, "c": 2}
    plan = make_plan(dimensions, settings={"b": TableSpec(admit_after=2)}, virtual_buckets=buckets)
    names = [table.name for table in plan.tables]
    values = np.array([key for ids in data for key in ids], np.int64)
    ends = np.cumsum([len(ids) for ids in data])
    starts = ends - [len(ids) for ids in data]
    owners = np.arange(buckets) % servers
    routed = Router(plan, owners.tolist(), servers, 0, 0).route(values, starts, ends, np.arange(3))
    assert len(routed.ids) == sum(len(set(ids)) for ids in data)
    assert routed.sightings.sum() == len(values)
    group_starts = np.concatenate(([0], np.cumsum(routed.group_sizes.sum(1))))
    for table, ids in enumerate(data):
        group = next(g for g in plan.groups if g.first_table <= table < g.end_table)
        places = routed.inverse[starts[table] : ends[table]]
        np.testing.assert_array_equal(routed.ids[group_starts[group.index] + places], ids)
    for server, share in enumerate(routed.shares(routed.of_groups(routed.ids))):
        mine, at = np.frombuffer(b"".join(share), np.int64), 0
        for table, count in enumerate(routed.counts[server]):
            ids = mine[at : at + count]
            at += count
            assert (owners[buckets_of(ids, names[table], buckets)] == server).all()
        assert at == len(mine)


def test_a_pull_after_a_push_sees_it_and_evaluation_answers_zero_for_unknown_rows() -> None:
    with running_servers(SPEC, 2) as (routing, _):
        client = client_of()
        client.connect(routing, 1)
        client.init_dense(np.arange(7, dtype=np.float32))
        collection = RemoteEmbeddingBagCollection(configs(), client)
        pulled = collection.prefetch(batch := features([1, 2], [23]), dense=True)
        np.testing.assert_array_equal(pulled.dense(), np.arange(7))
        before = collection(batch).values()
        before.sum().backward()
        left = collection.take_row_gradients()
        client.push(left.pulled, left.gradients, DENSE, 2, origin_of(0))
        after = collection(features([1, 2], [3])).values()
        # Adagrad's first step is the learning rate in each number; id 23 is id 3 modulo the table's hash size.
        np.testing.assert_allclose((before - after)[0, DIMENSION:].detach(), 0.02, atol=1e-4)
        np.testing.assert_allclose((before - after)[1, :DIMENSION].detach(), 0.04, atol=1e-4)
        collection.eval()
        unknown = collection(features([77], [13])).values()
        assert not unknown[1, :DIMENSION].any()
        assert unknown[0, DIMENSION:].any()
        client.flush()
        assert client.pushes_applied == 1
        client.close()


def push_once(client: ParameterClient, place: int) -> None:
    collection = RemoteEmbeddingBagCollection(configs(), client)
    collection(features([1, 2], [3])).values().sum().backward()
    left = collection.take_row_gradients()
    client.push(left.pulled, left.gradients, DENSE, 2, origin_of(place))
    client.flush()


def test_a_push_counts_as_applied_once_it_is_in_the_parameters_of_every_server() -> None:
    training = {"batch_size": 2, "consistency": {"mode": "bsp"}}
    spec = job_spec(tables={"item": {"hash_size": 10}}, training=training, resources={"worker": {"count": 2}})
    with running_servers(spec, 2) as (routing, servers):
        client = client_of()
        client.connect(routing, 1)
        client.init_dense(np.zeros(7, np.float32))
        push_once(client, 0)
        assert client.pushes_applied == 0 and not servers[0].dense.values.any()
        servers[0]._step(servers[0].pushes._batch.take())
        push_once(client, 1)
        # The second push makes a whole step of one server, and waits at the other.
        assert [server.pushes.marks.offset(origin_of(0).split) for server in servers] == [20, 40]
        assert client.pushes_applied == 1
        client.leave()
        assert client.pushes_applied == 2
        client.close()


def test_a_held_push_travels_with_the_next_pull_to_every_server() -> None:
    with running_servers(SPEC, 2) as (routing, servers):
        client = client_of()
        client.connect(routing, 1)
        client.init_dense(np.zeros(7, np.float32))
        collection = RemoteEmbeddingBagCollection(configs(), client)
        before = collection(features([1, 2], [3])).values()
        before.sum().backward()
        left = collection.take_row_gradients()
        client.push(left.pulled, left.gradients, DENSE, 2, origin_of(0), hold=True)
        assert client.pushes_applied == 0
        assert [server._pushes for server in servers] == [0, 0]
        pulled = collection.prefetch(batch := features([1, 2], [3]), dense=True)
        after = collection(batch).values()
        np.testing.assert_allclose((before - after)[0, DIMENSION:].detach(), 0.02, atol=1e-4)
        assert (pulled.dense() < 0).all()
        assert client.pushes_applied == 1
        assert [server._pushes for server in servers] == [1, 1]
        client.close()


@pytest.mark.parametrize("action", ["release", "flush", "leave", "push", "forget"])
def test_a_held_push_is_sent_before_the_next_request_and_dropped_by_forget(action: str) -> None:
    with running_servers(SPEC) as (routing, servers):
        client = client_of()
        client.connect(routing, 1)
        collection = RemoteEmbeddingBagCollection(configs(), client)
        collection(features([1], [2])).values().sum().backward()
        left = collection.take_row_gradients()
        client.push(left.pulled, left.gradients, None, 1, origin_of(0), hold=True)
        if action == "push":
            client.push(left.pulled, left.gradients, None, 1, origin_of(1), hold=True)
        else:
            getattr(client, action)()
        client.connect(routing, 1) if action == "forget" else client.flush()
        client.join()
        assert servers[0]._pushes == {"push": 2, "forget": 0}.get(action, 1)
        client.close()


def test_empty_bags_are_zero_and_keys_have_the_order_of_tables() -> None:
    with running_servers(SPEC) as (routing, _):
        client = client_of()
        client.connect(routing, 1)
        collection = RemoteEmbeddingBagCollection(configs(), client)
        pooled = collection(features([], []))
        assert pooled.keys() == ["user", "item"]
        assert pooled.values().shape == (2, 2 * DIMENSION)
        assert not pooled.values().any()
        client.close()


def test_keys_may_come_in_another_order_with_every_batch() -> None:
    with running_servers(SPEC) as (routing, _):
        client = client_of()
        client.connect(routing, 1)
        collection = RemoteEmbeddingBagCollection(configs(), client)
        before = features([5, 5, 8], [3])
        after = KeyedJaggedTensor(
            keys=["user", "item"], values=torch.tensor([5, 5, 8, 3]), lengths=torch.tensor([0, 3, 1, 0])
        )
        pooled = []
        for batch in (before, after, before):
            output = collection(batch).values()
            output.sum().backward()
            gradients = collection.take_row_gradients()
            assert sum(float(part.sum()) for part in gradients.gradients) == 4.0 * DIMENSION
            pooled.append(output.detach())
        assert pooled[0].abs().sum() > 0
        assert torch.equal(pooled[0], pooled[1]) and torch.equal(pooled[0], pooled[2])
        with pytest.raises(ValueError, match=r"features \['user'\] are not among"):
            collection(KeyedJaggedTensor(keys=["item"], values=torch.tensor([1]), lengths=torch.tensor([1])))
        client.close()


def test_a_server_of_a_newer_generation_makes_the_worker_wait_for_a_directive() -> None:
    with running_servers(SPEC) as (routing, servers):
        client = client_of()
        client.connect(routing, 1)
        servers[0].start_empty(msgspec.structs.replace(routing, epoch=5), 2)
        with pytest.raises(RoutingChangedError) as caught:
            client.join()
        assert (caught.value.epoch, caught.value.generation) == (5, 2)
        client.connect(msgspec.structs.replace(routing, epoch=5), 2)
        client.join()
        client.leave()
        client.close()


def test_a_push_whose_connection_broke_is_applied_once() -> None:
    with running_servers(SPEC) as (routing, servers):
        client = client_of()
        client.connect(routing, 1)
        collection = RemoteEmbeddingBagCollection(configs(), client)
        collection(features([1], [2])).values().sum().backward()
        left = collection.take_row_gradients()
        # The answer is lost after the push was applied: the handler fails the transport once.
        real = servers[0].push
        lost: list[int] = []

        def lossy(message, arrays):  # type: ignore[no-untyped-def]
            answer = real(message, arrays)
            if not lost:
                lost.append(message.origin.end)
                client._lanes["ps-0"]._watched.stream.cut()
            return answer

        second = RpcServer({}, token=TOKEN, array_handlers={**servers[0].array_handlers(), Push: lossy})
        second.serve_in_background()
        client.connect(msgspec.structs.replace(routing, addresses=[second.address]), 1)
        client.push(left.pulled, left.gradients, None, 1, origin_of(0))
        client.flush()
        assert lost == [20]
        assert servers[0]._pushes == 1
        client.close()
        second.shutdown()


def test_an_unreachable_server_is_reported_within_the_patience() -> None:
    with running_servers(SPEC) as (routing, _):
        pass
    client = client_of(patience_seconds=0.3)
    client.connect(routing, 1)
    with pytest.raises(RoutingChangedError, match="out of reach"):
        client.join()
    client.close()


def test_all_tables_that_differ_from_the_jobs_are_reported_together() -> None:
    wrong = [
        EmbeddingBagConfig(name="user", embedding_dim=DIMENSION + 1, num_embeddings=1, feature_names=["user"]),
        EmbeddingBagConfig(name="query", embedding_dim=DIMENSION, num_embeddings=1, feature_names=["query"]),
    ]
    with pytest.raises(SpecError) as caught:
        RemoteEmbeddingBagCollection(wrong, client_of())
    assert len(caught.value.problems) == 2


def test_the_number_of_rows_does_not_depend_on_the_number_of_servers() -> None:
    held = []
    for count in (1, 3):
        with running_servers(SPEC, count) as (routing, servers):
            client = client_of()
            client.connect(routing, 1)
            collection = RemoteEmbeddingBagCollection(configs(), client)
            collection(features(list(range(50)), list(range(30)))).values().sum().backward()
            left = collection.take_row_gradients()
            client.push(left.pulled, left.gradients, None, 2, origin_of(0))
            client.flush()
            held.append(sum(usage.rows for server in servers for usage in server.usage()))
            client.close()
    assert held == [60, 60]
