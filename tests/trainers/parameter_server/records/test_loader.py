"""Rows of a record that replace nothing are loaded by several threads, with the same result as by one thread."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.checkpoints import BucketRows, DamagedRecordError, SectionKind, open_record
from elastrec.checkpoints.shares import Share
from elastrec.trainers.parameter_server.records import share as records
from elastrec.trainers.parameter_server.records.loader import Loader, _side_by_side
from elastrec.trainers.parameter_server.records.share import restore
from elastrec.trainers.parameter_server.serving.server import ParameterServer
from elastrec.trainers.parameter_server.storage.columns import row_columns
from elastrec.trainers.parameter_server.storage.kernels.arrays import COUNT, VERSION
from elastrec.trainers.parameter_server.storage.loading import load_columns, reserve_rows
from tests.trainers.parameter_server.filled import contents, job_with, push, save, servers_of
from tests.trainers.parameter_server.running import routing_of
from tests.trainers.parameter_server.storage.test_loading import contents as rows_by_bucket
from tests.trainers.parameter_server.storage.test_loading import rows_of
from tests.trainers.parameter_server.storage.test_memory import push as push_rows
from tests.trainers.parameter_server.storage.test_memory import store_on

BUCKETS, LONG = 64, 5000
LIMITS: list[dict[str, dict[str, Any]]] = [
    {},
    {"user": {"evict_after": 1e6}, "item": {"evict_after": 1e6}},
    {"user": {"admit_after": 2}, "item": {"admit_after": 2}},
]
CHUNK = BucketRows(SectionKind.ROWS, "part", ["a"], np.empty(0, np.int32), np.empty(0, np.int64), {})


def counts_of(server: ParameterServer) -> list[list[Any]]:
    """Rows and candidates by bucket and table, and versions."""
    return [[store.entries.tolist(), store.marks[:, VERSION].tolist()] for store in server.stores]


@given(
    tables=st.sampled_from(LIMITS),
    spans=st.lists(st.tuples(st.integers(0, 800), st.integers(1, 900)), min_size=1, max_size=4),
    chunk_bytes=st.sampled_from([1000, 5000, 30_000]),
    threads=st.integers(2, 6),
    before=st.integers(1, 2),
    as_columns=st.booleans(),
)
@settings(deadline=None, max_examples=30)
def test_every_bucket_is_restored_by_any_number_of_threads(
    tmp_path_factory: pytest.TempPathFactory,
    tables: dict[str, dict[str, Any]],
    spans: list[tuple[int, int]],
    chunk_bytes: int,
    threads: int,
    before: int,
    as_columns: bool,
) -> None:
    job = job_with(BUCKETS, **tables)
    servers = servers_of(job, before)
    for number, (first, size) in enumerate(spans):
        push(servers, range(first, first + size), float(number + 1))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(records, "CHUNK_BYTES", chunk_bytes)
        uri = save(servers, job, str(tmp_path_factory.mktemp("record") / "record"))
        if as_columns:
            patched.setattr(Loader, "_slabs", lambda *arguments: None)
        # The same memory twice: the second time it held something else before.
        (restored,) = servers_of(job, 1)
        counts = []
        for cores in (threads, 1, threads):
            restore(restored, uri, routing_of(["nowhere"], buckets=BUCKETS), 1, threads=cores)
            assert contents([restored]) == contents(servers)
            counts.append(counts_of(restored))
            push([restored], range(5000, 5300), 1.0)
    assert counts[0] == counts[1] == counts[2]


def test_readers_share_the_chunks_of_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "CHUNK_BYTES", 2000)
    job = job_with(BUCKETS)
    servers = servers_of(job, 1)
    push(servers, range(1000), 1.0)
    (share,) = open_record(save(servers, job, str(tmp_path / "record"))).shares()
    expected = [rows.columns["ids"].tolist() for rows in share.read([SectionKind.ROWS])]
    for count in (1, 2, 5):
        readers = share.readers(SectionKind.ROWS, count)
        assert len(readers) == count
        chunks = [[rows.columns["ids"].tolist() for rows in reader] for reader in readers]
        assert [ids for each in chunks for ids in each] == expected
        assert min(map(len, chunks)) >= len(expected) // count
    assert len(share.readers(SectionKind.ROWS, 10**6)) == len(expected)
    assert share.readers(SectionKind.CANDIDATES, 3) == []


@pytest.mark.parametrize(("threads", "readers_wanted"), [(1, 1), (3, 3), (64, 8), (None, min(8, os.cpu_count() or 1))])
def test_a_restore_has_as_many_readers_as_threads_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int | None, readers_wanted: int
) -> None:
    job, counts = job_with(BUCKETS), []
    (server,) = servers_of(job, 1)
    push([server], range(100), 1.0)
    uri = save([server], job, str(tmp_path / "record"))
    streams = Share.streams

    def counted(share: Share, entries: Any, count: int, enter: Any) -> Any:
        counts.append(count)
        return streams(share, entries, count, enter)

    monkeypatch.setattr(Share, "streams", counted)
    restore(server, uri, routing_of(["nowhere"], buckets=BUCKETS), 1, threads=threads)
    assert counts == [readers_wanted]


def test_readers_run_side_by_side() -> None:
    both = threading.Barrier(2, timeout=60)
    readers = [iter([CHUNK] * 3), iter([CHUNK] * 3)]
    entered: list[int] = []
    assert list(_side_by_side(readers, lambda rows: entered.append(both.wait())))
    assert sorted(entered) == [0, 0, 0, 1, 1, 1]
    assert list(_side_by_side([], lambda rows: None)) == []


def test_progress_is_reported_before_the_readers_have_ended() -> None:
    goes_on = threading.Event()

    def long() -> Iterator[BucketRows]:
        yield CHUNK
        assert goes_on.wait(60)
        yield CHUNK

    progress = _side_by_side([long(), iter([CHUNK])], lambda rows: None)
    next(progress)
    goes_on.set()
    assert list(progress)


def test_a_reader_that_fails_ends_the_others() -> None:
    both = threading.Barrier(2, timeout=60)
    taken: list[int] = []

    def damaged() -> Iterator[BucketRows]:
        yield CHUNK
        raise DamagedRecordError("torn")

    def long() -> Iterator[BucketRows]:
        for _ in range(LONG):
            taken.append(1)
            time.sleep(0.001)
            yield CHUNK

    waited = threading.local()

    def enter(rows: BucketRows) -> None:
        if not hasattr(waited, "once"):
            waited.once = both.wait()

    with pytest.raises(DamagedRecordError, match="torn"):
        list(_side_by_side([long(), damaged()], enter))
    assert len(taken) < LONG and not [thread for thread in threading.enumerate() if thread.name.startswith("restore")]


def test_two_chunks_of_a_bucket_inserted_concurrently_have_enough_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    pushed, loaded = store_on(), store_on()
    push_rows(pushed, range(30_000))
    chunk = rows_of(pushed)[0]
    bucket = chunk.buckets[:1]
    memory = loaded.rows_memory.rows
    per_slab = memory.pool.shape.per_slab
    # The second one fits into the slab that the first one has begun, unless the third one comes before it.
    ends = np.cumsum([0, per_slab // 2, per_slab // 2 - 1, 2 * per_slab - per_slab // 2]).tolist()
    assert ends[-1] <= chunk.counts[0]
    columns = row_columns(pushed.layout, chunk.cells[: ends[-1]])
    assert reserve_rows(loaded, bucket, np.array([ends[-1]]))

    def enter(piece: int) -> None:
        first, last = ends[piece : piece + 2]
        rows = {name: column[first:last] for name, column in columns.items()}
        load_columns(loaded, bucket, np.array([last - first]), np.arange(2), rows)

    enter(0)
    allocate = memory.allocate

    def allocate_late(slabs: int) -> Any:
        """What the second one needs is known; the third one is entered before it."""
        monkeypatch.setattr(memory, "allocate", allocate)
        enter(2)
        assert slabs >= 1 and memory.pool.buckets[int(bucket[0]), COUNT] == 2 * per_slab
        return allocate(slabs)

    monkeypatch.setattr(memory, "allocate", allocate_late)
    enter(1)
    held = sorted(cell.tobytes() for cell in chunk.cells[: ends[-1]])
    assert rows_by_bucket(loaded) == {int(bucket[0]): held}
    assert memory.bytes == 3 * memory.slab_bytes
