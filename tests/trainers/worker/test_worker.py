"""A worker and parameter servers in one process with a scripted master: trained and acknowledged rows."""

from __future__ import annotations

from threading import Event
from typing import Any

import numpy as np
import pytest
import torch

from elastrec.platform.data.metrics.heads import HeadSketches
from elastrec.platform.specs.errors import TransportError
from elastrec.platform.specs.job import TableSpec
from elastrec.platform.specs.splits import TRAINING_STREAM
from elastrec.platform.transport.messages.directive import Mode, WorkerProcess
from elastrec.platform.transport.messages.job import ShardProgress
from elastrec.trainers.parameter_server.messages import GetStats
from elastrec.trainers.parameter_server.serving.server import ParameterServer
from elastrec.trainers.worker.predictions import read_predictions
from tests.heads import predicted
from tests.trainers.worker.setting import (  # noqa: F401
    BATCH,
    ROWS,
    SHARD,
    Setting,
    one_after_the_other,
    reference,
    setting_fixture,
    side_by_side,
    trained_samples,
)


@pytest.mark.parametrize(
    ("servers", "architecture", "options"),
    [
        (1, "dlrm", {}),
        (2, "deepfm", {}),
        (1, "din", {"attention": {"history": "item"}, "layer_sizes": [16]}),
        (2, "bst", {"sequences": ["history"], "layer_sizes": [16]}),
    ],
)
def test_one_bsp_worker_takes_the_steps_of_a_single_process(
    setting, servers: int, architecture: str, options: dict[str, object]
) -> None:
    here = setting(servers=servers, architecture=architecture, model_options=options)
    here.master.add_shards("train", ROWS, SHARD, seed=5, shuffle=True)
    here.start_worker()
    here.master.wait_for(lambda: len(here.master.done) == 4)
    here.finish()
    assert not here.errors
    assert trained_samples(here) == ROWS

    model, losses = reference(here, one_after_the_other(here))
    loss_sum = sum(beat.metrics.loss_sum for beat in here.master.heartbeats)
    assert loss_sum / ROWS == pytest.approx(np.mean(losses), abs=1e-5)
    flat = np.concatenate([part for server in here.servers for part in [server.dense.values]])
    dense = [(name, value.detach()) for name, value in model.named_parameters() if "embedding_bags" not in name]
    expected = torch.cat([value.reshape(-1) for _, value in dense]).numpy()
    # The gradient of an attention's key biases is zero but for rounding, and Adam divides by its size.
    noise = np.concatenate([np.full(value.numel(), name.endswith("inputs.bias")) for name, value in dense])
    np.testing.assert_allclose(flat[~noise], expected[~noise], atol=2e-5)


@pytest.mark.parametrize("servers", [1, 2])
def test_four_bsp_workers_take_the_steps_of_a_single_process_with_four_times_the_batch(setting, servers: int) -> None:
    workers, batch, length = 4, 25, ROWS // 4
    here = setting(servers=servers, architecture="deepfm", batch=batch, workers=workers)
    here.master.finished = False
    names = [f"worker-{index}" for index in range(workers)]
    for name in names:
        here.start_worker(name)
    for server in here.servers:
        for session in here.sessions:  # else the first to get a shard would go on alone
            server.pushes.consistency.join(WorkerProcess(session.identity.pod, session.identity.incarnation), 0)
    here.master.add_shards("train", ROWS, length, seed=5, shuffle=True)
    here.master.wait_for(lambda: len(here.master.done) == workers)
    here.finish()
    assert not here.errors
    assert all(server.stats(GetStats()).rounds == length // batch for server in here.servers)

    model, losses = reference(here, side_by_side(here, length, batch))
    loss_sum = sum(beat.metrics.loss_sum for beat in here.master.heartbeats)
    assert loss_sum / ROWS == pytest.approx(np.mean(losses), abs=1e-5)
    flat = np.concatenate([server.dense.values for server in here.servers])
    expected = torch.cat(
        [value.detach().reshape(-1) for name, value in model.named_parameters() if "embedding_bags" not in name]
    )
    np.testing.assert_allclose(flat, expected.numpy(), atol=2e-5)


def test_a_single_bsp_worker_takes_the_steps_of_the_requested_number_of_workers(setting) -> None:
    here = setting(batch=25, workers=2)
    here.master.add_shards("train", ROWS, SHARD, seed=5, shuffle=True)
    here.start_worker()
    here.master.wait_for(lambda: len(here.master.done) == 4)
    here.finish()
    assert not here.errors and trained_samples(here) == ROWS
    # Every shard but the last holds five steps of two minibatches.
    model, _ = reference(here, ([part.slice(0, 25), part.slice(25)] for (part,) in one_after_the_other(here)))
    expected = torch.cat(
        [value.detach().reshape(-1) for name, value in model.named_parameters() if "embedding_bags" not in name]
    )
    np.testing.assert_allclose(here.servers[0].dense.values, expected.numpy(), atol=2e-5)


def test_two_workers_train_every_row_once_and_evaluate_every_row_once(setting) -> None:
    here = setting(servers=2, mode="async")
    here.master.add_shards("train", ROWS, 100, shuffle=True)
    workers = [here.start_worker(f"worker-{index}") for index in range(2)]
    here.master.wait_for(lambda: len(here.master.done) == 9)
    assert not here.errors
    here.master.done.clear()
    here.master.add_shards("evaluate", ROWS, 100)
    here.master.command(Mode.EVALUATE)
    here.master.wait_for(lambda: len(here.master.done) == 9)
    here.finish()
    assert trained_samples(here) == ROWS
    assert here.master.sketches.heads["label"].rows == ROWS
    pieces = [HeadSketches.decode(beat.metrics.sketch) for beat in here.master.heartbeats if beat.metrics.sketch]
    assert sum(piece.heads["label"].rows for piece in pieces) == ROWS
    kept = read_predictions(workers[0]._predictions_uri)
    assert [item.metadata.start for item in kept] == list(range(0, ROWS, 100))
    together = HeadSketches()
    for item in kept:
        together.update(predicted(item.prediction[:, 0], item.batch.column("label")))
        assert item.pooled.shape == (100, 3 * 4) and item.metadata.heads == ["label"]
    assert together == here.master.sketches


def test_a_job_with_tables_of_different_dimensions_trains_and_keeps_their_pooled_rows(setting) -> None:
    here = setting(servers=2, mode="async", architecture="wide_and_deep", tables={"item": TableSpec(dimension=2)})
    here.master.add_shards("train", ROWS, SHARD)
    worker = here.start_worker()
    here.master.wait_for(lambda: len(here.master.done) == 4)
    here.master.done.clear()
    here.master.add_shards("evaluate", ROWS, SHARD)
    here.master.command(Mode.EVALUATE)
    here.master.wait_for(lambda: len(here.master.done) == 4)
    here.finish()
    assert not here.errors and trained_samples(here) == ROWS
    assert [(store.group.dimension, store.rows > 0) for store in here.servers[0].stores] == [(5, True), (3, True)]
    assert worker.trainer.pooled_names == ["user", "item", "history"]
    # A weight and an embedding each; users first, whose rows are the longer ones.
    pooled = np.concatenate([item.pooled for item in read_predictions(worker._predictions_uri)])
    assert pooled.shape == (ROWS, 5 + 3 + 3) and (pooled[:, :8] != 0).any(axis=0).all()


def test_evaluation_changes_nothing_on_the_servers(setting) -> None:
    here = setting(mode="async")
    here.master.add_shards("train", ROWS, SHARD)
    here.start_worker()
    here.master.wait_for(lambda: len(here.master.done) == 4)
    server = here.servers[0]
    before = server.dense.values.copy(), [store.rows for store in server.stores]
    here.master.done.clear()
    here.master.add_shards("evaluate", ROWS, SHARD)
    here.master.command(Mode.EVALUATE)
    here.master.wait_for(lambda: len(here.master.done) == 4)
    assert np.array_equal(server.dense.values, before[0])
    assert [store.rows for store in server.stores] == before[1]


def test_a_paused_worker_has_reported_every_sample_that_the_servers_applied(setting) -> None:
    here = setting(mode="bsp")
    here.master.finished = False
    here.master.add_shards("train", ROWS, 300)
    here.start_worker()
    here.master.wait_for(lambda: bool(here.master.offsets))
    version = here.master.command(Mode.PAUSE)
    here.master.wait_for(lambda: here.master.reached.get("worker-0") == version)
    pushes = here.servers[0].stats(GetStats()).pushes
    here.sessions[0].flush(5)
    acknowledged = sum(here.master.offsets.values())
    assert acknowledged == pushes * BATCH
    here.master.command(Mode.TRAIN)
    here.master.wait_for(lambda: len(here.master.done) == 3)
    assert here.servers[0].stats(GetStats()).pushes * BATCH == ROWS


def test_a_rollback_drops_pushes_in_flight_and_repeats_their_shards(setting) -> None:
    here = setting(servers=2, mode="async")
    here.master.finished = False
    here.master.add_shards("train", ROWS, 100)
    shards = list(here.master.todo)
    here.start_worker()
    here.master.wait_for(lambda: len(here.master.done) >= 2)
    with here.master.changed:
        here.master.roll_back(shards)
        here.master.restored.clear()
        for name in here.master.addresses:
            here.master.restored[name] = here.master.restore.order_id
    here.restore()
    void = sum(server.stats(GetStats()).pushes for server in here.servers)
    here.master.wait_for(lambda: len(here.master.done) == 9)
    here.finish()
    assert not here.errors
    assert sum(server.stats(GetStats()).pushes for server in here.servers) - void == 2 * ROWS // BATCH


def rows_applied(server: ParameterServer) -> int:
    """Rows of shards of 100 rows that are in a server's parameters."""
    offsets = server.pushes.offsets((TRAINING_STREAM, number) for number in range(ROWS // 100))
    return sum(min(max(offset, 0), 100) for offset in offsets)


def acknowledged_and_applied(here: Setting) -> list[tuple[int, int]]:
    """From now on, at each report of a worker: the rows acknowledged so far, and those in the parameters."""
    taken: list[tuple[int, int]] = []
    take = here.master._take

    def recorded(progress: ShardProgress) -> None:
        take(progress)
        applied = min(rows_applied(server) for server in here.servers)
        taken.append((sum(here.master.offsets.values()), applied))

    here.master._take = recorded
    return taken


@pytest.mark.parametrize("mode", ["async", "bsp"])
def test_an_outage_of_a_server_loses_and_repeats_no_sample(setting, mode: str) -> None:
    here = setting(mode=mode, workers=4)  # in bsp one worker alone waits for the pushes of four rounds
    reports = acknowledged_and_applied(here)
    here.master.finished = False
    here.master.add_shards("train", ROWS, 100)
    here.start_worker()
    here.master.wait_for(lambda: len(here.master.done) >= 1)
    here.servers[0].suspend()
    before = len(here.master.heartbeats)
    here.master.wait_for(lambda: len(here.master.heartbeats) > before + 5)
    here.servers[0].ready = True
    here.master.wait_for(lambda: len(here.master.done) == 9)
    here.finish()
    assert not here.errors
    assert reports and all(acknowledged <= applied for acknowledged, applied in reports)
    assert sum(here.master.offsets.values()) == ROWS == here.servers[0].stats(GetStats()).pushes * BATCH


@pytest.mark.parametrize("mode", ["async", "ssp"])
def test_a_push_that_only_one_server_has_applied_is_applied_once_by_each(
    setting, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer out of reach than the worker waits: it starts the next minibatch again, and sends the push again."""
    here = setting(servers=2, mode=mode)
    away = Event()
    handlers = here.rpcs[1]._array_handlers
    for kind, handle in list(handlers.items()):

        def refuse(message: Any, arrays: Any, handle: Any = handle) -> Any:
            if away.is_set():
                raise TransportError("out of reach", retryable=True)
            return handle(message, arrays)

        handlers[kind] = refuse
    here.master.finished = False
    here.master.add_shards("train", ROWS, 100)
    worker = here.start_worker()
    here.master.wait_for(lambda: len(here.master.done) >= 1)
    drops: list[int] = []
    drop = worker.drop
    monkeypatch.setattr(worker, "drop", lambda: (drops.append(1), drop())[1])
    away.set()
    here.master.wait_for(lambda: len(drops) >= 2)
    away.clear()
    here.master.wait_for(lambda: len(here.master.done) == 9)
    here.finish()
    assert not here.errors
    assert [server.dense.steps for server in here.servers] == [ROWS // BATCH] * 2
    assert [server.stats(GetStats()).pushes for server in here.servers] == [ROWS // BATCH] * 2


def rows_of_steps(server: ParameterServer) -> int:
    return sum(rows * steps for rows, steps in server.stats(GetStats()).steps_by_rows.items())


def test_two_bsp_workers_finish_with_rounds_smaller_than_a_step(setting) -> None:
    here = setting(servers=2, batch=25, workers=5)
    here.master.finished = False
    here.master.add_shards("train", ROWS, 150)
    for name in ("worker-0", "worker-1"):
        here.start_worker(name)
    here.master.wait_for(lambda: sum(here.master.offsets.values()) > 0)
    version = here.master.command(Mode.PAUSE)
    here.master.wait_for(lambda: list(here.master.reached.values()) == [version, version])
    for session in here.sessions:
        session.flush(5)
    assert [rows_of_steps(server) for server in here.servers] == [sum(here.master.offsets.values())] * 2
    assert all(not server.pushes.waiting for server in here.servers)
    here.master.command(Mode.TRAIN)
    here.master.wait_for(lambda: len(here.master.done) == 6)
    here.finish()
    assert not here.errors
    assert [rows_of_steps(server) for server in here.servers] == [ROWS] * 2


def test_evaluation_takes_the_dense_parameters_that_the_servers_have_then(setting) -> None:
    here = setting(mode="async")
    here.master.add_shards("train", ROWS, SHARD)
    worker = here.start_worker()
    here.master.wait_for(lambda: len(here.master.done) == 4)
    # Others have trained on since this worker's last pull. With zeros everywhere a logit is 0.
    here.servers[0].dense.values = np.zeros_like(here.servers[0].dense.values)
    here.master.done.clear()
    here.master.add_shards("evaluate", ROWS, SHARD)
    here.master.command(Mode.EVALUATE)
    here.master.wait_for(lambda: len(here.master.done) == 4)
    here.finish()
    assert not here.errors
    predictions = np.concatenate([item.prediction for item in read_predictions(worker._predictions_uri)])
    np.testing.assert_array_equal(predictions, np.full((ROWS, 1), 0.5, np.float32))


def test_bfloat16_trains_the_dense_layers_and_evaluates_in_float32(setting) -> None:
    here = setting(mode="async", precision="bfloat16")
    here.master.add_shards("train", ROWS, SHARD)
    here.start_worker()
    here.master.wait_for(lambda: len(here.master.done) == 4)
    here.finish()
    assert not here.errors
    assert here.servers[0].dense.values.dtype == np.float32


def test_a_worker_that_is_stopped_has_reported_everything(setting) -> None:
    here = setting(mode="async")
    here.master.finished = False
    here.master.add_shards("train", ROWS, ROWS)
    here.start_worker()
    here.master.wait_for(lambda: bool(here.master.offsets))
    here.sessions[0].stop()
    here.threads[0].join(60)
    assert not here.threads[0].is_alive() and not here.errors
    acknowledged = max(here.master.offsets.values(), default=0) or ROWS
    assert acknowledged == here.servers[0].stats(GetStats()).pushes * BATCH
