"""The rows of a record are restored on any number of servers, or reported as damaged."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elastrec.checkpoints import (
    DamagedRecordError,
    PartManifest,
    PartWriter,
    SectionKind,
    answer,
    commit_record,
    open_record,
    open_store,
)
from elastrec.checkpoints import record as record_module
from elastrec.checkpoints.parts import read_index
from elastrec.trainers.parameter_server.hashing import buckets_of
from elastrec.trainers.parameter_server.records import share as records
from elastrec.trainers.parameter_server.records.share import restore, save_part
from elastrec.trainers.parameter_server.storage.copying import CANDIDATES
from tests.trainers.parameter_server.filled import contents, job_with, push, save, servers_of
from tests.trainers.parameter_server.running import DIMENSION, routing_of
from tests.trainers.parameter_server.storage.copies import columns_of

TABLES: list[dict[str, dict[str, Any]]] = [
    {},
    {"user": {"evict_after": 100.0}},
    {"user": {"evict_after": 100.0, "admit_after": 2}, "item": {"evict_after": 100.0, "admit_after": 2}},
]


@pytest.mark.parametrize("tables", TABLES)
@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 3), (3, 2)])
def test_rows_candidates_and_versions_are_restored_on_any_number_of_servers(
    tmp_path: Path, tables: dict[str, dict[str, Any]], before: int, after: int
) -> None:
    job = job_with(**tables)
    servers = servers_of(job, before)
    push(servers, range(300), 1.0, now=900.0)
    save(servers, job, str(tmp_path / "first"))
    push(servers, range(100, 200), 2.0, now=950.0)
    push(servers, range(1000, 1040), 2.0, now=960.0)
    uri = save(servers, job, str(tmp_path / "record"))
    expected = contents(servers)
    assert {key[0] for key in expected} == ({"row", "candidate"} if "item" in tables else {"row"})
    restored = servers_of(job, after)
    for server in restored:
        restore(server, uri, routing_of(["nowhere"] * after, buckets=64), 1)
    assert contents(restored) == expected
    # A bucket counts on, wherever it lies: what changes now is younger than what the record holds.
    last = {
        int(bucket): int(version)
        for share in open_record(uri).shares()
        for bucket, version in zip(share.answered, share.last, strict=True)
    }
    for server in restored:
        for store in server.stores:
            assert all(store.bucket(bucket).version > last[bucket] for bucket in np.flatnonzero(store.owned).tolist())


def test_rows_are_restored_with_another_number_of_buckets(tmp_path: Path) -> None:
    job = job_with(**TABLES[1])
    servers = servers_of(job, 2)
    push(servers, range(500), 1.0)
    uri = save(servers, job, str(tmp_path / "record"))
    restored = servers_of(job_with(96, **TABLES[1]), 3)
    for server in restored:
        restore(server, uri, routing_of(["nowhere"] * 3, buckets=96), 1)
    assert contents(restored, versions=False) == contents(servers, versions=False)


def test_the_part_of_a_server_without_rows_covers_its_buckets(tmp_path: Path) -> None:
    job = job_with()
    uri = save(servers_of(job, 2), job, str(tmp_path / "record"))
    assert sorted(np.concatenate([share.answered for share in open_record(uri).shares()])) == list(range(64))
    server = servers_of(job, 1)[0]
    restore(server, uri, routing_of(["nowhere"], buckets=64), 1)
    assert server.ready and server.usage()[0].rows == 0


def test_the_number_of_sections_does_not_grow_with_the_number_of_buckets(tmp_path: Path) -> None:
    sections = []
    for buckets in (64, 4096):
        job = job_with(buckets)
        servers = servers_of(job, 1)
        push(servers, range(3000), 1.0)
        part = save_part(servers[0], str(tmp_path / str(buckets)))
        sections.append(len(read_index(open_store(tmp_path / str(buckets)), part)))
        # It names its dense buckets, 256 at most.
        assert len(part.to_json()) < 2000
    # One for each stripe, and the marks.
    assert sections[0] == sections[1] == 8 + 1


def test_a_restore_needs_little_memory_beyond_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "CHUNK_BYTES", 100_000)
    monkeypatch.setattr(record_module, "READ_AHEAD_BYTES", 200_000)
    job = job_with()
    servers = servers_of(job, 1)
    for first in range(0, 60_000, 10_000):
        push(servers, range(first, first + 10_000), 1.0)
    uri = save(servers, job, str(tmp_path / "record"))
    size = open_record(uri).manifest.size_bytes
    # The first one compiles.
    restore(servers[0], uri, routing_of(["nowhere"], buckets=64), 1)
    # Rows lie in memory of their own, of which this knows nothing.
    tracemalloc.start()
    restore(servers[0], uri, routing_of(["nowhere"], buckets=64), 1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert servers[0].stores[0].rows == 120_000 and size > 4_000_000
    assert peak < 2_000_000


def written(folder: Path, ids: list[int], buckets: list[int]) -> str:
    """A record of one part with rows of `user` in these buckets."""
    job = job_with()
    chosen, counts = np.unique(buckets, return_counts=True)
    order = np.argsort(buckets, kind="stable")
    columns = {
        "ids": np.array(ids)[order],
        "tables": np.zeros(len(ids), np.uint16),
        "versions": np.zeros(len(ids), np.uint32),
        "state": np.ones((len(ids), 1), np.float32),
        "values": np.ones((len(ids), DIMENSION), np.float32),
    }
    with PartWriter(str(folder), "ps-0", groups=[answer(["user", "item"], range(64))], generation=1) as writer:
        writer.write_chunk(0, SectionKind.ROWS, chosen, counts, columns)
        part = writer.finish()
    commit_record(str(folder), [part], b"{}", job=job, job_id="job-1", kind="final", step=1, generation=1)
    return str(folder)


def restored(uri: str) -> None:
    restore(servers_of(job_with(), 1)[0], uri, routing_of(["nowhere"], buckets=64), 1)


def test_an_id_in_a_bucket_to_which_it_does_not_belong_is_damage(tmp_path: Path) -> None:
    ids = list(range(20))
    buckets = buckets_of(np.array(ids), "user", 64).tolist()
    restored(written(tmp_path / "right", ids, buckets))
    wrong = [*buckets[:-1], (buckets[-1] + 1) % 64]
    message = f"id 19 of table user is among the rows of bucket {wrong[-1]}, to which it does not belong"
    with pytest.raises(DamagedRecordError, match=message):
        restored(written(tmp_path / "wrong", ids, wrong))


def test_a_duplicate_id_in_a_record_is_reported_as_damage(tmp_path: Path) -> None:
    ids = [*range(20), 7]
    buckets = buckets_of(np.array(ids), "user", 64).tolist()
    rows = buckets.count(buckets[-1])
    message = f"bucket {buckets[-1]} has {rows} rows, of which {rows - 1} are of different ids"
    with pytest.raises(DamagedRecordError, match=message):
        restored(written(tmp_path / "record", ids, buckets))


@pytest.mark.parametrize("damage", ["flipped", "cut", "gone"])
def test_a_damaged_part_of_rows_is_found_when_it_is_restored(tmp_path: Path, damage: str) -> None:
    job = job_with()
    servers = servers_of(job, 2)
    push(servers, range(300), 1.0)
    uri = save(servers, job, str(tmp_path / "record"))
    part: PartManifest = open_record(uri).manifest.parts[1]
    path = tmp_path / "record" / part.file
    data = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    else:
        data[part.index_start // 2] ^= 1
        path.write_bytes(data if damage == "flipped" else data[:-1])
    with pytest.raises(DamagedRecordError, match=part.file):
        restored(uri)


def test_a_record_of_the_previous_format_is_restored(tmp_path: Path) -> None:
    """The record was written by a version that knew no other format; beside it lies what its servers held."""
    folder = Path(__file__).parent / "format_1"
    held = json.loads((folder / "held.json").read_text())
    job = job_with(user={"evict_after": 1e6, "admit_after": 2})
    servers = servers_of(job, 3, now=1_700_000_500.0)
    for server in servers:
        restore(server, str(folder / "record"), routing_of(["nowhere"] * 3, buckets=64), 1)
    rows: dict[str, dict[int, tuple[list[float], list[float]]]] = {"user": {}, "item": {}}
    candidates = {}
    for server in servers:
        for store in server.stores:
            name = store.plan.tables[store.group.first_table].name
            columns = columns_of(store)
            for number, row_id in enumerate(columns["ids"].tolist()):
                rows[name][row_id] = [columns["values"][number].tolist(), columns["state"][number].tolist()]
            columns = columns_of(store, CANDIDATES)
            if columns:
                candidates |= dict(zip(columns["ids"].tolist(), columns["sightings"].tolist(), strict=True))
                # Format 1 keeps minutes.
                assert (np.abs(columns["last_seen"].astype(np.int64) - 1_700_000_000) < 60).all()
    assert {name: {str(key): value for key, value in of.items()} for name, of in rows.items()} == {
        name: held[name] for name in rows
    }
    assert {str(key): value for key, value in candidates.items()} == held["candidates"]
    dense = np.concatenate([server.dense.values for server in servers if server.dense is not None])
    np.testing.assert_array_equal(dense, [*range(7), *range(8)])
