"""A job rolls back to a record after its worker was lost between any two messages: each push counts once.

The record is made after the worker was lost, like a periodic record while another worker trains. So servers may have
pushes that the worker has not reported, and one server may have a push that another one lacks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from elastrec.checkpoints import commit_record
from elastrec.platform.specs.job import Metadata, TrainingJob
from elastrec.trainers.parameter_server.records.share import restore, save_part
from elastrec.trainers.parameter_server.serving.server import ParameterServer
from elastrec.trainers.parameter_server.warm_up import warm_kernels
from tests.trainers.embedding.test_cut_connections import (
    MESSAGES,
    SERVERS,
    STEPS,
    Cut,
    client_of,
    job_rows,
    rows_of,
    servers_behind,
    spec_of,
    train,
)


@pytest.fixture(autouse=True, scope="module")
def _warm() -> None:
    warm_kernels()


def trained_until_lost(cut: Cut, mode: str, uri: str) -> int:
    """A record of what servers hold when the worker is lost; returns how many of its steps it could report."""
    with servers_behind(cut, mode) as (routing, servers):
        client = client_of("first")

        def give_up() -> None:
            raise InterruptedError

        with contextlib.suppress(InterruptedError):
            train(client, lambda: routing, give_up)
        reported = client.pushes_applied
        client.close()
        save(servers, mode, uri)
        return reported


def save(servers: Sequence[ParameterServer], mode: str, uri: str) -> None:
    job = TrainingJob(metadata=Metadata(name="clicks"), spec=spec_of(mode))
    parts = [save_part(server, uri) for server in servers]
    commit_record(uri, parts, b"{}", job=job, job_id="job-1", kind="periodic", step=1, generation=1)


@pytest.mark.parametrize("mode", ["async", "ssp", "bsp"])
@pytest.mark.parametrize("after", [True, False])
def test_wherever_the_worker_was_lost_each_push_counts_once_after_the_rollback(
    tmp_path: Path, mode: str, after: bool
) -> None:
    behind = 0
    for server in range(SERVERS):
        for message in range(1, MESSAGES):
            uri = str(tmp_path / f"{server}-{message}")
            reported = trained_until_lost(Cut(server, message, after=after), mode, uri)
            with servers_behind(Cut(0, -1, after=False), mode) as (routing, servers):
                for restored in servers:
                    restore(restored, uri, routing, 1, with_marks=True)
                behind += any(
                    restored.dense is not None and restored.dense.values[0] < -reported for restored in servers
                )
                client = client_of("second")
                train(client, lambda: routing, pytest.fail, first=reported)
                client.close()
                for restored in servers:
                    assert restored.dense is not None
                    np.testing.assert_array_equal(restored.dense.values, -np.full(3, STEPS))
                np.testing.assert_allclose(rows_of(servers), job_rows(spec_of()) - STEPS, atol=1e-5)
    assert behind >= STEPS, "records held what was not reported"
