"""Records are complete or do not exist, and are read as they were written."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from elastrec.checkpoints import record as record_module
from elastrec.checkpoints.answers import answer
from elastrec.checkpoints.catalog import latest_record
from elastrec.checkpoints.commit import commit_record, new_record_uri
from elastrec.checkpoints.errors import DamagedRecordError
from elastrec.checkpoints.manifest import encode_manifest
from elastrec.checkpoints.parts import PartManifest, PartWriter
from elastrec.checkpoints.record import Record, open_record
from elastrec.checkpoints.sections import SectionEntry, SectionKind
from elastrec.checkpoints.stores.local_store import LocalStore
from elastrec.checkpoints.stores.s3_store import S3Store
from elastrec.checkpoints.stores.store import Store, open_store
from elastrec.platform.specs.errors import CheckpointError
from elastrec.platform.specs.job import TrainingJob
from tests.checkpoints.verifying import verify
from tests.checkpoints.writing import DENSE, TABLES, VIRTUAL_BUCKETS, rows_of, save, write_bucket, write_part

MakeJob = Callable[..., TrainingJob]


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_any_number_of_servers_restores_the_same_state(store: Store, make_job: MakeJob, servers: int) -> None:
    record = open_record(save(store, make_job(), servers=servers))
    found = [rows for rows in record.rows("ad") if len(rows) and not rows.columns["tables"].any()]
    assert sorted(rows.buckets.tolist() for rows in found) == [[0], [1], [3], [4]]
    for rows in found:
        expected = rows_of(int(rows.buckets[0]))
        assert set(rows.columns) == {*expected, "tables", "versions"}
        for name, array in expected.items():
            np.testing.assert_array_equal(rows.columns[name], array)
            assert rows.columns[name].dtype == array.dtype and not rows.columns[name].flags.writeable
    shares = record.shares()
    assert sorted(np.concatenate([share.answered for share in shares])) == list(range(VIRTUAL_BUCKETS))
    assert all((share.last == 7).all() and not share.first.any() for share in shares)
    dense = record.dense("over.weight")
    np.testing.assert_array_equal(dense["value"], DENSE.reshape(2, 5))
    np.testing.assert_array_equal(dense["moment1"], -DENSE.reshape(2, 5))
    assert dense["step"] == 7
    assert record.positions() == b'{"step": 100}'


def test_a_manifest_names_the_job_of_its_record_and_the_contents(store: Store, make_job: MakeJob) -> None:
    manifest = open_record(save(store, make_job(), kind="final")).manifest
    assert (manifest.job_name, manifest.job_id, manifest.kind, manifest.step) == ("clicks", "clicks-1", "final", 100)
    assert manifest.rows == {"ad": 20, "user": 20}
    assert [(table.name, table.dimension) for table in manifest.model.tables] == [("ad", 4), ("user", 4)]
    assert [(dense.name, dense.shape) for dense in manifest.model.dense] == [("over.weight", (2, 5))]
    assert manifest.size_bytes == sum(part.size_bytes for part in manifest.parts) + 13


def test_a_reader_fetches_only_its_buckets_and_neighbours_in_one_request(
    s3_uri: str, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = open_record(save(open_store(s3_uri), make_job(), servers=1))
    asked: list[int] = []
    original = S3Store.get_range

    def get_range(self: S3Store, key: str, start: int, length: int) -> bytes:
        asked.append(length)
        return original(self, key, start, length)

    monkeypatch.setattr(S3Store, "get_range", get_range)
    assert len(list(record.rows("ad", [0, 1]))) == 4
    # Of the index, and of all rows.
    assert len(asked) == 2
    read = [rows for rows in record.rows("user", [4, 5, 99]) if len(rows)]
    assert [rows.buckets.tolist() for rows in read] == [[4], [4]] and len(asked) == 3


@pytest.mark.parametrize("readers", [1, 2, 5, 16])
def test_concurrent_readers_share_the_limit_of_fetched_bytes(
    tmp_path: Path, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, readers: int
) -> None:
    uri = new_record_uri(open_store(tmp_path), "clicks", "clicks-1", 5)
    ids = np.arange(1000)
    with PartWriter(uri, "ps-0", groups=[answer(TABLES, range(VIRTUAL_BUCKETS))], generation=2) as writer:
        for bucket in range(40):
            write_bucket(writer, bucket, 0, {"ids": ids})
        section = max(entry.span[1] - entry.span[0] for entry in writer._sections.values())
        part = writer.finish()
    commit_record(uri, [part], b"{}", job=make_job(), job_id="clicks-1", kind="periodic", step=5, generation=2)
    fetched: list[int] = []
    original = LocalStore.get_range

    def get_range(self: LocalStore, key: str, start: int, length: int) -> bytes:
        fetched.append(length)
        return original(self, key, start, length)

    (share,) = open_record(uri).shares()
    assert share.row_counts()[0].tolist() == list(range(40))
    monkeypatch.setattr(record_module, "READ_AHEAD_BYTES", 12 * section)
    found = share.readers(SectionKind.ROWS, readers)
    monkeypatch.setattr(LocalStore, "get_range", get_range)
    buckets = [int(next(each).buckets[0]) for each in found]
    assert len(fetched) == len(found) == readers
    assert 10 * section <= sum(fetched) <= max(12, readers) * section
    buckets += [int(rows.buckets[0]) for each in found for rows in each]
    assert sorted(buckets) == list(range(40))


def test_a_reader_of_some_buckets_reads_no_index_of_parts_that_do_not_answer_for_them(
    store: Store, make_job: MakeJob
) -> None:
    record = open_record(save(store, make_job(), servers=3))
    assert len(list(record.rows("ad", [0, 3]))) == 4
    assert list(record._indices) == [record.manifest.parts[0].file]


def test_a_missing_parameter_is_named(store: Store, make_job: MakeJob) -> None:
    record = open_record(save(store, make_job()))
    with pytest.raises(CheckpointError, match=r"no dense parameter 'bias'.*over\.weight"):
        record.dense("bias")


def test_one_flipped_bit_in_the_positions_is_found_and_named(store: Store, make_job: MakeJob) -> None:
    record = open_record(save(store, make_job()))
    folder, name = open_store(record.uri), record.manifest.positions_file
    data = bytearray(folder.get(name))
    data[-2] ^= 0b1  # another offset, and JSON still
    folder.put(name, bytes(data))
    with pytest.raises(DamagedRecordError, match=f"{name}: damaged"):
        open_record(record.uri).positions()


def test_a_record_without_its_positions_is_damaged(store: Store, make_job: MakeJob) -> None:
    record = open_record(save(store, make_job()))
    name = record.manifest.positions_file
    open_store(record.uri).delete(name)
    with pytest.raises(DamagedRecordError, match=f"{name}: the file is missing"):
        record.positions()


def test_one_flipped_bit_in_an_array_is_found_and_named(tmp_path: Path, make_job: MakeJob) -> None:
    record = open_record(save(open_store(tmp_path), make_job(), servers=1))
    part, entry = section_of(record, 4)
    path = open_store(record.uri).local_path(part.file)
    assert path is not None
    data = bytearray(path.read_bytes())
    data[entry.arrays[1].offset + 5] ^= 0b100
    path.write_bytes(data)
    assert list(record.rows("user", [3]))
    with pytest.raises(DamagedRecordError, match=rf"array 'values' of section {entry.key} is damaged.*older record"):
        list(record.rows("user", [4]))
    with pytest.raises(DamagedRecordError):
        verify(record)


def section_of(record: Record, bucket: int) -> tuple[PartManifest, SectionEntry]:
    """Where the rows of a bucket are: the last section of it."""
    found = [(part, entry) for part in record.manifest.parts for entry in record.index(part)]
    return [item for item in found if item[1].key.kind is SectionKind.ROWS and bucket in item[1].buckets][-1]


def test_a_folder_without_a_manifest_is_not_a_record(store: Store, make_job: MakeJob) -> None:
    uri = new_record_uri(store, "clicks", "clicks-1", 5)
    write_part(uri, 0, 1)
    with pytest.raises(CheckpointError, match="no complete checkpoint record"):
        open_record(uri)
    assert latest_record(store, "clicks") is None


def test_a_newer_format_is_refused_with_both_versions(tmp_path: Path, make_job: MakeJob) -> None:
    uri = save(open_store(tmp_path), make_job())
    store = open_store(uri)
    newer = msgspec.structs.replace(open_record(uri).manifest, format_version=4)
    store.delete("manifest.json")
    store.put("manifest.json", encode_manifest(newer))
    with pytest.raises(CheckpointError, match="format_version 4 is not allowed; allowed: 1, 2, 3"):
        open_record(uri)


def _save_forever(root: str, job_json: str, ready: object) -> None:
    job, step = TrainingJob.model_validate_json(job_json), 0
    while True:
        step += 1
        save(open_store(root), job, step=step)
        ready.set()  # type: ignore[attr-defined]


@pytest.mark.services
@pytest.mark.parametrize("seed", range(4))
def test_killed_at_any_moment_the_last_complete_record_opens_whole(
    tmp_path: Path, make_job: MakeJob, seed: int
) -> None:
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    writer = context.Process(target=_save_forever, args=(str(tmp_path), make_job().model_dump_json(), ready))
    writer.start()
    try:
        assert ready.wait(30)
        # Any moment will do; how many records there are by then does not matter.
        writer.join(0.013 * seed)
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
    finally:
        writer.kill()
        writer.join()
    found = latest_record(str(tmp_path), "clicks")
    assert found is not None
    assert verify(found) == 14
    assert found.positions() == f'{{"step": {found.manifest.step}}}'.encode()
