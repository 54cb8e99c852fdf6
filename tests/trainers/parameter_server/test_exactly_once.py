"""Each push is applied exactly once, and the answers of the servers."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from elastrec.checkpoints import commit_record, new_record_uri, open_store
from elastrec.platform.transport.messages.directive import WorkerProcess
from elastrec.trainers.parameter_server.messages import Applied, Blocked, GetStats, Push, Rows, Stale
from elastrec.trainers.parameter_server.records.share import restore, save_part
from elastrec.trainers.parameter_server.serving import handlers
from elastrec.trainers.parameter_server.serving.server import ParameterServer
from tests.trainers.parameter_server.calls import (
    BATCH,
    SGD,
    applied,
    gradient,
    leave,
    origin,
    pull,
    push,
    push_pull,
    server_of,
    stamp,
)
from tests.trainers.parameter_server.running import routing_of, training_job

REFUSED = Stale(epoch=1, generation=1, ready=True, named=False)
ROUTING = routing_of(["here:1"])


def dense(server: ParameterServer) -> float:
    assert server.dense is not None
    return float(server.dense.values[0])


def name_members(server: ParameterServer, version: int, *members: tuple[str, str]) -> None:
    """The master's directive of this version."""
    server.adopt(ROUTING, 1, [WorkerProcess(*member) for member in members], version)


def test_a_bsp_push_is_reported_as_applied_only_when_it_is_in_the_parameters() -> None:
    server = server_of("bsp", workers=2)
    pull(server, "a", [1])
    assert push(server, "a", 0, [1], 2.0)[0] == applied(-1)
    assert dense(server) == 0.0
    assert push(server, "a", 1, [1], 4.0)[0] == applied(1)
    assert dense(server) == -3.0


def test_a_bsp_push_that_travels_with_a_pull_is_not_reported_as_applied_while_it_waits() -> None:
    server = server_of("bsp", workers=2)
    pull(server, "a", [1])
    assert push_pull(server, "a", 0, [1], 2.0)[0] == Rows(offsets=[-1])
    assert push_pull(server, "a", 1, [1], 4.0)[0] == Rows(offsets=[2 * BATCH])


def test_the_last_worker_to_leave_takes_the_step_and_those_that_left_before_learn_of_it() -> None:
    server = server_of("bsp", workers=4)
    pull(server, "a", [1])
    push(server, "a", 0, [1], 2.0)
    pull(server, "b", [1])
    assert leave(server, "a", 0) == applied(-1)
    push(server, "b", 0, [1], 4.0)
    assert leave(server, "a", 0) == applied(-1)
    assert dense(server) == 0.0
    assert leave(server, "b", 0) == applied(0)
    assert dense(server) == -3.0
    assert leave(server, "a", 0) == applied(0)


def test_a_push_that_is_repeated_while_it_waits_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "_PATIENCE_SECONDS", 0.0)
    server = server_of("bsp", workers=4)
    pull(server, "a", [1])
    pull(server, "b", [1])
    for _ in range(3):  # its round is not complete
        assert push(server, "a", 0, [1], 2.0)[0] == Blocked()
    assert push(server, "b", 0, [1], 4.0)[0] == applied(-1)
    for _ in range(3):  # its round waits for a whole step
        assert push(server, "a", 0, [1], 2.0)[0] == applied(-1)
    assert server.stats(GetStats()).pushes == 2
    leave(server, "a", 0)
    leave(server, "b", 0)
    assert dense(server) == -3.0
    assert push(server, "a", 0, [1], 2.0)[0] == applied(0)
    assert dense(server) == -3.0


@pytest.mark.parametrize("has_left", [True, False])
def test_gradients_of_a_lost_worker_are_discarded_unless_applied(has_left: bool) -> None:
    server = server_of("bsp", workers=4)
    for worker in "ab":
        pull(server, worker, [1], version=1)
    assert leave(server, "b") == Applied(offsets=[])
    push(server, "a", 0, [1], 2.0, version=1)
    pull(server, "b", [1], version=1)
    if has_left:
        leave(server, "a", 0, version=1)
    name_members(server, 2, ("b", "i"))
    assert leave(server, "a", 0, version=1) == REFUSED
    push(server, "b", 0, [1], 4.0, version=1)
    leave(server, "b", 0, version=1)
    assert dense(server) == -4.0


@pytest.mark.parametrize("mode", ["async", "ssp", "bsp"])
def test_a_worker_that_the_master_has_replaced_can_neither_pull_nor_push(mode: str) -> None:
    server = server_of(mode)
    pull(server, "a", [1], version=1)
    assert push(server, "a", 0, [1], 1.0, version=1)[0] == applied(0)
    name_members(server, 2, ("b", "i"))
    assert push(server, "a", 1, [1], 1.0, version=1)[0] == REFUSED
    assert push_pull(server, "a", 1, [1], 1.0, version=1)[0] == REFUSED
    assert pull(server, "a", [1], version=1)[0] == REFUSED
    # A repeated push is known still.
    assert push(server, "a", 0, [1], 1.0, version=1)[0] == applied(0)
    assert dense(server) == -1.0
    assert server.stats(GetStats()).members == []


@pytest.mark.parametrize("mode", ["async", "bsp"])
def test_a_worker_that_a_server_does_not_know_yet_is_admitted(mode: str) -> None:
    server = server_of(mode)
    name_members(server, 4, ("a", "i"))
    # Its registration made version 5, which has not reached the server.
    assert isinstance(pull(server, "b", [1], version=5)[0], Rows)
    assert push(server, "b", 0, [1], 1.0, version=5)[0] == applied(0)
    name_members(server, 5, ("a", "i"), ("b", "i"))
    assert push(server, "b", 1, [1], 1.0, version=5)[0] == applied(1)
    name_members(server, 6, ("a", "i"))
    assert push(server, "b", 2, [1], 1.0, version=5)[0] == REFUSED


def test_an_older_process_of_the_same_pod_is_refused() -> None:
    server = server_of()
    name_members(server, 1, ("a", "old"))
    assert push(server, "a", 0, [1], 1.0, version=1, incarnation="old")[0] == applied(0)
    assert push(server, "a", 1, [1], 1.0, version=2, incarnation="new")[0] == applied(1)
    name_members(server, 2, ("a", "new"))
    assert push(server, "a", 2, [1], 1.0, version=1, incarnation="old")[0] == REFUSED
    assert push(server, "a", 2, [1], 1.0, version=2, incarnation="new")[0] == applied(2)
    assert dense(server) == -3.0


def test_a_record_contains_exactly_the_pushes_reported_as_applied(tmp_path: Path) -> None:
    server = server_of("bsp", workers=2)
    pull(server, "a", [1])
    push(server, "a", 0, [1], 2.0)
    push(server, "a", 1, [1], 4.0)
    assert push(server, "a", 2, [1], 8.0)[0] == applied(1)
    open_store(tmp_path).create()
    uri = new_record_uri(str(tmp_path), "clicks", "job-1", step=1)
    part = save_part(server, uri)
    commit_record(
        uri, [part], b"{}", job=training_job(optimizers=SGD), job_id="job-1", kind="periodic", step=1, generation=1
    )
    assert leave(server, "a", 2) == applied(2)
    assert dense(server) == -11.0
    restore(server, uri, ROUTING, 1)
    assert dense(server) == -3.0
    np.testing.assert_array_equal(pull(server, "a", [1])[1][1], [-3.0, -3.0])


def test_a_repeated_ssp_push_does_not_advance_its_workers_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else others would wait for a worker that trains a lost worker's shard again, until it reaches new rows."""
    monkeypatch.setattr(handlers, "_PATIENCE_SECONDS", 0.0)
    server = server_of("ssp", 1)
    for place in range(2):
        push(server, "lost", place, [1], 1.0, version=1)
    name_members(server, 2, ("a", "i"), ("b", "i"))
    pull(server, "b", [1], version=2)

    def push_again(place: int) -> None:
        again = msgspec.structs.replace(origin("lost", place), attempt=2, is_first=place == 0)
        message = Push(stamp=stamp("b", version=2), origin=again, samples=BATCH, number=place + 1)
        server.push(message, gradient([1], 1.0))

    for place in range(2):
        assert isinstance(pull(server, "a", [1], version=2)[0], Rows)
        push(server, "a", place, [1], 1.0, version=2)
    assert pull(server, "a", [1], version=2)[0] == Blocked()
    push_again(0)
    assert isinstance(pull(server, "a", [1], version=2)[0], Rows)
    push(server, "a", 2, [1], 1.0, version=2)
    push_again(0)
    assert pull(server, "a", [1], version=2)[0] == Blocked()
    push_again(1)
    assert isinstance(pull(server, "a", [1], version=2)[0], Rows)
    assert dense(server) == -5.0
