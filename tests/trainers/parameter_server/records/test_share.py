"""Restores of records that the master orders."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elastrec.checkpoints import Record, commit_record, open_record
from elastrec.platform.specs.job import JobSpec
from elastrec.platform.transport.messages.directive import RoutingTable
from elastrec.trainers.embedding.client import ParameterClient
from elastrec.trainers.parameter_server.messages import Parameter
from elastrec.trainers.parameter_server.plan import plan_of_job
from elastrec.trainers.parameter_server.records import share as records
from elastrec.trainers.parameter_server.records.share import restore, save_part
from elastrec.trainers.parameter_server.serving.server import ParameterServer
from tests.splits import origin_of
from tests.trainers.parameter_server.filled import contents, job_with, push, save, servers_of
from tests.trainers.parameter_server.running import DIMENSION, TOKEN, routing_of, running_servers, training_job

LAYOUT = [Parameter("over.weight", (3, 5))]


def train(spec: JobSpec, routing: RoutingTable) -> None:
    """One step, so that every server holds rows and dense parameters."""
    client = ParameterClient(plan_of_job(spec), worker="w", incarnation="i", token=TOKEN, layout=LAYOUT)
    client.connect(routing, 1)
    client.init_dense(np.ones(15, np.float32))
    ids = np.arange(200)
    routed = client.router.route(ids, np.array([0, 100]), np.array([100, 200]), np.arange(2))
    pulled = client.pull(routed, dense=True)
    rows = pulled.rows()[0]
    client.push(pulled, [np.ones((len(rows), DIMENSION), np.float32)], [np.ones(15, np.float32)], 100, origin_of(0))
    client.flush()
    client.close()


def trained_record(folder: Path) -> str:
    job, uri = training_job(), str(folder / "record")
    with running_servers(job.spec, 2) as (routing, servers):
        train(job.spec, routing)
        parts = [save_part(server, uri) for server in servers]
    commit_record(uri, parts, b"{}", job=job, job_id="job-1", kind="periodic", step=1, generation=1)
    return uri


def memory_of(server: ParameterServer) -> list[weakref.ref[Any]]:
    """The large arrays that a server holds."""
    arrays = [store.rows_memory.indexed.pool.words for store in server.stores]
    assert server.dense is not None
    return [weakref.ref(array) for array in [*arrays, server.dense.values]]


def test_the_old_model_is_freed_or_used_again_before_the_first_array_of_a_record_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = trained_record(tmp_path)
    reads, new = [], []

    class WatchedRecord(Record):
        def read(self, part: Any, entries: Any, *arguments: Any) -> Any:
            used = [store.rows_memory.indexed.pool.words for store in new]
            reads.append([kept for kept in held if kept() is not None and not any(kept() is words for words in used)])
            return super().read(part, entries, *arguments)

    def open_watched(uri: str) -> Record:
        opened = open_record(uri)
        opened.__class__ = WatchedRecord
        return opened

    monkeypatch.setattr(records, "open_record", open_watched)
    job = training_job()
    with running_servers(job.spec, 1) as (routing, (server,)):
        train(job.spec, routing)
        held = memory_of(server)
        assert held and all(kept() is not None for kept in held)
        make = server.empty_stores
        monkeypatch.setattr(server, "empty_stores", lambda *arguments: new.extend(make(*arguments)) or list(new))
        restore(server, uri, routing, 2)
        assert reads and not any(reads)
        assert held[0]() is new[0].rows_memory.indexed.pool.words and held[-1]() is None
        assert server.ready and sum(store.rows for store in server.stores) == 200


def test_a_restore_does_not_change_rows_that_a_request_still_reads(tmp_path: Path) -> None:
    job = job_with()
    (server,) = servers_of(job, 1)
    routing = routing_of(["nowhere"], buckets=64)
    push([server], range(1000), 1.0)
    uri = save([server], job, str(tmp_path / "record"))
    saved = contents([server])
    push([server], range(500, 3000), 2.0)
    (read,) = server.stores
    counts, ids = np.array([2500, 0], np.int32), np.arange(500, 3000)
    expected = read.pull(counts, ids, read_only=True)[0]
    for _ in range(2):
        restore(server, uri, routing, 1)
        np.testing.assert_array_equal(read.pull(counts, ids, read_only=True)[0], expected)
        assert contents([server]) == saved


def test_memory_that_restored_rows_do_not_need_is_returned_to_the_system(tmp_path: Path) -> None:
    job = job_with()
    (server,) = servers_of(job, 1)
    push([server], range(1000), 1.0)
    uri = save([server], job, str(tmp_path / "record"))
    push([server], range(20_000), 2.0)
    held = server.stores[0].memory_bytes
    restore(server, uri, routing_of(["nowhere"], buckets=64), 1)
    (store,) = server.stores
    assert store.memory_bytes < held // 2 and store.rows == 2000
    rows, index = store.regions[:2]
    assert rows.words[: store.rows_memory.rows.bytes // 4].any()
    assert not rows.words[store.rows_memory.rows.bytes // 4 :].any()
    assert not index.words[store.rows_memory.index.bytes // 4 :].any()


def test_a_server_whose_record_cannot_be_read_holds_nothing_and_answers_stale(tmp_path: Path) -> None:
    job = training_job()
    with running_servers(job.spec, 1) as (routing, (server,)):
        train(job.spec, routing)
        with pytest.raises(Exception, match="no complete checkpoint record"):
            restore(server, str(tmp_path / "nothing"), routing, 2)
        assert not server.ready and not server.stores and server.usage() == []


def test_a_part_covers_all_buckets_and_the_dense_range_of_its_server(tmp_path: Path) -> None:
    manifest = open_record(trained_record(tmp_path)).manifest
    first, second = manifest.parts
    for part, begin in ((first, 0), (second, 1)):
        (group,) = part.groups
        assert group.tables == ["user", "item"] and group.buckets().tolist() == list(range(begin, 256, 2))
        assert len(group.answers) == 1 and group.answers[0].from_version == 0
    assert (first.dense_ranges, second.dense_ranges) == ([(0, 7)], [(7, 15)])
    assert (first.generation, second.generation) == (1, 1)
