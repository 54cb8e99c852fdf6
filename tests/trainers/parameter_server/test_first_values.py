"""First values of rows on real servers, in records and in exported models: first-order weights start at zero."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import numpy as np
import pytest

from elastrec.checkpoints import commit_record, open_record
from elastrec.platform.specs.job import FIRST_ORDER_MODELS, JobSpec
from elastrec.platform.transport.messages.directive import RoutingTable
from elastrec.trainers.embedding.client import ParameterClient, Pulled
from elastrec.trainers.export.artifact import Artifact, write_artifact
from elastrec.trainers.parameter_server.hashing import initial_rows
from elastrec.trainers.parameter_server.plan import plan_of_job
from elastrec.trainers.parameter_server.records.share import restore, save_part
from tests.splits import origin_of
from tests.trainers.parameter_server.running import DIMENSION, TOKEN, job_spec, running_servers, training_job

IDS = np.arange(40)
_SPLITS = count()
SGD = {"kind": "sgd", "learning_rate": 1.0}


def rules(architecture: str) -> dict[str, object]:
    """Plain steps of all numbers of a row."""
    return {"rows": SGD, "first_order": SGD} if architecture in FIRST_ORDER_MODELS else {"rows": SGD}


def connected(spec: JobSpec, routing: RoutingTable) -> ParameterClient:
    client = ParameterClient(plan_of_job(spec), worker="w", incarnation="i", token=TOKEN)
    client.connect(routing, 1)
    client.init_dense(np.empty(0, np.float32))
    return client


def pull(client: ParameterClient, *, read_only: bool = False) -> Pulled:
    """The rows of IDS of both tables."""
    both = np.tile(IDS, 2)
    count = len(IDS)
    routed = client.router.route(both, np.array([0, count]), np.array([count, 2 * count]), np.arange(2))
    return client.pull(routed, read_only=read_only)


def push(client: ParameterClient, gradient: float) -> None:
    pulled = pull(client)
    gradients = [np.full(rows.shape, gradient, np.float32) for rows in pulled.rows()]
    client.push(pulled, gradients, None, len(IDS), origin_of(0, number=next(_SPLITS), is_last=True))
    client.flush()


def values(client: ParameterClient, *, read_only: bool = False) -> np.ndarray:
    """[T * ids, R], in the order of the plan's tables; all tables have one group."""
    pulled = pull(client, read_only=read_only)
    return pulled.rows()[0][pulled.routed.inverse]


def oracle(spec: JobSpec) -> np.ndarray:
    """What the servers should answer, from the formula in hashing."""
    plan = plan_of_job(spec)
    return np.concatenate(
        [
            initial_rows(
                IDS,
                table.name,
                seed=spec.training.seed,
                initial_range=table.column_ranges,
                dimension=table.dimension,
            )
            for table in plan.tables
        ]
    )


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("architecture", ["wide_and_deep", "deepfm", "xdeepfm", "dlrm"])
def test_servers_answer_the_first_values_of_the_formula(architecture: str, servers: int) -> None:
    spec = job_spec(
        model={"architecture": architecture, "embedding_dimension": DIMENSION}, optimizers=rules(architecture)
    )
    has_weight = architecture in FIRST_ORDER_MODELS
    with running_servers(spec, servers) as (routing, _):
        client = connected(spec, routing)
        first = values(client)
        assert first.shape == (2 * len(IDS), DIMENSION + has_weight)
        assert first[:, int(has_weight) :].all()
        assert not has_weight or not first[:, 0].any()
        np.testing.assert_array_equal(first, oracle(spec))
        push(client, 0.5)
        # The rows that the push made began where the pull said.
        np.testing.assert_allclose(values(client), first - 0.5, atol=1e-6)
        client.close()


def test_the_range_of_the_job_reaches_every_server_and_that_of_a_table_wins() -> None:
    spec = job_spec(
        model={"architecture": "deepfm", "embedding_dimension": DIMENSION, "initial_range": 0.5},
        tables={"item": {"initial_range": 0.001}},
        optimizers=rules("deepfm"),
    )
    assert [table.initial_range for table in plan_of_job(spec).tables] == [0.5, 0.001]
    with running_servers(spec, 2) as (routing, _):
        client = connected(spec, routing)
        first = values(client)
        np.testing.assert_array_equal(first, oracle(spec))
        user, item = np.abs(first[: len(IDS), 1:]), np.abs(first[len(IDS) :, 1:])
        assert 0.4 < user.max() <= 0.5
        assert 0.0008 < item.max() <= 0.001
        push(client, 0.25)
        np.testing.assert_allclose(values(client), first - 0.25, atol=1e-6)
        client.close()


def test_a_row_admitted_late_begins_with_a_zero_weight() -> None:
    spec = job_spec(
        model={"architecture": "deepfm", "embedding_dimension": DIMENSION},
        tables={"user": {"admit_after": 2, "initial_range": 0.1}, "item": {"admit_after": 2, "initial_range": 0.1}},
        optimizers=rules("deepfm"),
    )
    with running_servers(spec, 1) as (routing, _):
        client = connected(spec, routing)
        push(client, 0.5)
        assert not values(client).any()
        push(client, 0.0)
        made = values(client)
        np.testing.assert_array_equal(made, oracle(spec))
        assert not made[:, 0].any() and made[:, 1:].all()
        client.close()


def test_a_record_and_an_exported_model_hold_weights_that_started_at_zero(tmp_path: Path) -> None:
    model = {"architecture": "wide_and_deep", "embedding_dimension": DIMENSION}
    job = training_job(model=model, optimizers=rules("wide_and_deep"))
    uri = str(tmp_path / "record")
    with running_servers(job.spec, 2) as (routing, servers):
        client = connected(job.spec, routing)
        push(client, 0.0)
        trained = values(client, read_only=True)
        parts = [save_part(server, uri) for server in servers]
        client.close()
    commit_record(uri, parts, b"{}", job=job, job_id="job-1", kind="final", step=1, generation=1)
    np.testing.assert_array_equal(trained, oracle(job.spec))
    assert not trained[:, 0].any()

    write_artifact(tmp_path / "model", job, "job-1", open_record(uri))
    exported = Artifact(tmp_path / "model")
    for index, table in enumerate(plan_of_job(job.spec).tables):
        rows, held = exported.rows(table.name, IDS)
        assert held.all()
        np.testing.assert_array_equal(rows, trained[index * len(IDS) : (index + 1) * len(IDS)])


def test_rows_of_a_record_keep_their_weights(tmp_path: Path) -> None:
    """Also those whose weights did not start at zero."""
    model = {"architecture": "wide_and_deep", "embedding_dimension": DIMENSION}
    job = training_job(model=model, optimizers=rules("wide_and_deep"))
    uri = str(tmp_path / "record")
    with running_servers(job.spec, 1) as (routing, servers):
        client = connected(job.spec, routing)
        push(client, 0.25)
        trained = values(client)
        parts = [save_part(server, uri) for server in servers]
        client.close()
    commit_record(uri, parts, b"{}", job=job, job_id="job-1", kind="final", step=1, generation=1)
    with running_servers(job.spec, 1, start=False) as (routing, servers):
        restore(servers[0], uri, routing, 1)
        client = connected(job.spec, routing)
        np.testing.assert_array_equal(values(client), trained)
        client.close()


def test_rows_without_a_first_order_weight_are_not_restored_into_rows_with_one(
    tmp_path: Path,
) -> None:
    old = training_job(model={"architecture": "dlrm", "embedding_dimension": DIMENSION + 1}, optimizers=rules("dlrm"))
    new = training_job(model={"architecture": "deepfm", "embedding_dimension": DIMENSION}, optimizers=rules("deepfm"))
    uri = str(tmp_path / "record")
    with running_servers(old.spec, 1) as (routing, servers):
        client = connected(old.spec, routing)
        push(client, 0.25)
        parts = [save_part(server, uri) for server in servers]
        client.close()
    commit_record(uri, parts, b"{}", job=old, job_id="job-1", kind="final", step=1, generation=1)
    with running_servers(new.spec, 1, start=False) as (routing, servers):
        restore(servers[0], uri, routing, 1)
        assert servers[0].stores[0].rows == 0


def test_rows_of_a_record_continue_under_another_rule_of_first_values(tmp_path: Path) -> None:
    """Embeddings with their state; weights from the values that they have, which FTRL does not undo."""
    model = {"architecture": "wide_and_deep", "embedding_dimension": DIMENSION}
    rows = {"kind": "adagrad", "learning_rate": 0.5}
    old = training_job(model=model, optimizers={"rows": rows, "first_order": SGD})
    ftrl = {"kind": "ftrl", "learning_rate": 0.5, "beta": 1.0}
    new = training_job(model=model, optimizers={"rows": rows, "first_order": ftrl})
    uri = str(tmp_path / "record")
    with running_servers(old.spec, 2) as (routing, servers):
        client = connected(old.spec, routing)
        push(client, 1.0)
        trained = values(client)
        parts = [save_part(server, uri) for server in servers]
        client.close()
    commit_record(uri, parts, b"{}", job=old, job_id="job-1", kind="final", step=1, generation=1)
    with running_servers(new.spec, 1, start=False) as (routing, servers):
        restore(servers[0], uri, routing, 1)
        client = connected(new.spec, routing)
        np.testing.assert_array_equal(values(client), trained)
        push(client, 1.0)
        second = values(client)
        # n = 0 before: w - lr g / (beta + |g|). The embeddings' accumulator was 1, and is 2 now.
        np.testing.assert_allclose(second[:, 0], trained[:, 0] - 0.5 * 1.0 / (1.0 + 1.0), rtol=1e-5)
        np.testing.assert_allclose(second[:, 1:], trained[:, 1:] - 0.5 / np.sqrt(2.0), rtol=1e-5)
        client.close()
