"""The sides of the benchmark differ only in the number of servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from benchmarks.processes.many_servers import FEATURES, TOKEN, VOCABULARY, Side, job_of, minibatches, routing_of
from elastrec.platform.transport import RpcServer
from elastrec.trainers.parameter_server.serving.server import ParameterServer
from elastrec.trainers.parameter_server.warm_up import warm_kernels


@contextmanager
def servers(count: int, *, is_local: bool) -> Iterator[tuple[list[str], list[ParameterServer]]]:
    """As the benchmark's server processes make them."""
    warm_kernels()
    stores = [ParameterServer(f"ps-{number}", job_of("dlrm"), capacity_rows=50_000) for number in range(count)]
    ports = [
        RpcServer({}, token=TOKEN, array_handlers=store.array_handlers(), local_streams=is_local) for store in stores
    ]
    for port in ports:
        port.serve_in_background()
    addresses = [port.address for port in ports]
    for store in stores:
        store.start_empty(routing_of(addresses), 1)
    yield addresses, stores
    for port in ports:
        port.stop()


@pytest.mark.parametrize("is_local", [False, True])
def test_the_same_steps_train_the_same_parameters_and_rows_however_many_servers_there_are(is_local: bool) -> None:
    batches = minibatches(16)
    dense, rows = [], []
    for count in (1, 3):
        with servers(count, is_local=is_local) as (addresses, stores):
            side = Side(addresses, batches)
            for _ in range(4):
                side.step()
            dense.append(side._values.copy())
            side._ahead.rows()  # the pull ahead makes rows, too, and is under way
            side.close()
            rows.append(sum(table.rows for store in stores for table in store.stores[0].usage()))
    np.testing.assert_array_equal(dense[0], dense[1])
    assert dense[0].all()  # Adam moves every parameter at its first step
    assert rows[0] == rows[1] > 0


def test_minibatches_hold_one_id_per_feature_within_the_vocabulary() -> None:
    for ids in minibatches(16):
        assert ids.shape == (16 * FEATURES,)
        assert ids.min() >= 0 and ids.max() < VOCABULARY
