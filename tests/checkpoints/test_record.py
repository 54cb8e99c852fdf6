"""Records: complete or not there, the last complete one wins."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from botocore.exceptions import ClientError
from botocore.paginate import Paginator

from elastrec.checkpoints.answers import BucketRun, answer
from elastrec.checkpoints.catalog import discard, latest_record, list_records, newest_records, prune, prune_final
from elastrec.checkpoints.commit import commit_record, new_record_uri
from elastrec.checkpoints.errors import DamagedRecordError
from elastrec.checkpoints.manifest import RecordManifest, encode_manifest
from elastrec.checkpoints.parts import PartManifest, PartWriter
from elastrec.checkpoints.record import Record, open_record
from elastrec.checkpoints.sections import SectionEntry, SectionKind
from elastrec.checkpoints.stores.s3_store import UPLOAD_PART_BYTES, S3Store
from elastrec.checkpoints.stores.store import Store, open_store
from elastrec.checkpoints.terms import SupersededError, take_term
from elastrec.platform.specs.errors import CheckpointError
from elastrec.platform.specs.job import TrainingJob
from tests.checkpoints.writing import TABLES, write_bucket

BUCKETS = range(6)
VIRTUAL_BUCKETS = 256
DIMENSION = 4


def rows_of(bucket: int) -> dict[str, np.ndarray]:
    """Deterministic rows; every third bucket is empty."""
    rng = np.random.default_rng(bucket)
    count = 0 if bucket % 3 == 2 else 3 + bucket
    return {
        "ids": rng.integers(0, 2**63, count, dtype=np.uint64),
        "values": rng.random((count, DIMENSION), dtype=np.float32),
        "accumulator": rng.random(count, dtype=np.float32),
    }


DENSE = np.arange(10, dtype=np.float32)


def write_part(uri: str, server: int, servers: int) -> PartManifest:
    lower, upper = 10 * server // servers, 10 * (server + 1) // servers
    mine = range(server, VIRTUAL_BUCKETS, servers)
    groups = [answer(TABLES, mine, last=7)]
    with PartWriter(uri, f"ps-{server}", groups=groups, dense_ranges=[(lower, upper)], generation=2) as writer:
        for table in range(len(TABLES)):
            for bucket in BUCKETS:
                if bucket % servers == server:
                    write_bucket(writer, bucket, table, rows_of(bucket))
        slices = {"value": DENSE[lower:upper], "moment1": -DENSE[lower:upper], "step": np.array(7)}
        writer.write_dense("over.weight", (2, 5), lower, slices)
        return writer.finish()


def save(
    store: Store,
    job: TrainingJob,
    *,
    job_id: str = "clicks-1",
    step: int = 100,
    servers: int = 2,
    kind: str = "periodic",
    created: float = 0.0,
    interval_end: str = "",
    term: int = 0,
) -> str:
    uri = new_record_uri(store, job.metadata.name, job_id, step)
    parts = [write_part(uri, server, servers) for server in range(servers)]
    commit_record(
        uri, parts, f'{{"step": {step}}}'.encode(), job=job, job_id=job_id, kind=kind, step=step, generation=2,
        interval=("", interval_end), created_unix_seconds=created or float(step), term=term,
    )  # fmt: skip
    return uri


MakeJob = Callable[..., TrainingJob]


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_the_same_state_comes_back_from_any_number_of_servers(store: Store, make_job: MakeJob, servers: int) -> None:
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


def test_a_manifest_tells_whose_record_it_is_and_what_is_inside(store: Store, make_job: MakeJob) -> None:
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
        record.verify()


def section_of(record: Record, bucket: int) -> tuple[PartManifest, SectionEntry]:
    """Where the rows of a bucket are: the last section of it."""
    found = [(part, entry) for part in record.manifest.parts for entry in record.index(part)]
    return [item for item in found if item[1].key.kind is SectionKind.ROWS and bucket in item[1].buckets][-1]


def test_a_folder_without_a_manifest_is_no_record(store: Store, make_job: MakeJob) -> None:
    uri = new_record_uri(store, "clicks", "clicks-1", 5)
    write_part(uri, 0, 1)
    with pytest.raises(CheckpointError, match="no complete checkpoint record"):
        open_record(uri)
    assert latest_record(store, "clicks") is None


@pytest.mark.parametrize(
    "damage", ["no manifest", "flipped manifest", "half manifest", "part gone", "part cut", "index"]
)
def test_a_torn_newest_record_is_skipped_for_the_last_complete_one(
    tmp_path: Path, make_job: MakeJob, damage: str
) -> None:
    store = open_store(tmp_path)
    good = save(store, make_job(), step=1)
    torn = open_store(save(store, make_job(), step=2))
    manifest_path, part = torn.local_path("manifest.json"), open_record(torn.uri).manifest.parts[0]
    part_path = torn.local_path(part.file)
    assert manifest_path is not None and part_path is not None
    if damage == "no manifest":
        manifest_path.unlink()
    elif damage == "flipped manifest":
        manifest_path.write_bytes(manifest_path.read_bytes().replace(b'"step":2', b'"step":3'))
    elif damage == "half manifest":
        manifest_path.write_bytes(manifest_path.read_bytes()[:100])
    elif damage == "part gone":
        part_path.unlink()
    elif damage == "part cut":
        part_path.write_bytes(part_path.read_bytes()[:-10])
    else:
        data = bytearray(part_path.read_bytes())
        data[part.index_start + 3] ^= 1
        part_path.write_bytes(data)
    found = latest_record(store, "clicks")
    assert found is not None and found.uri == good


def test_a_store_out_of_reach_is_no_reason_to_take_an_older_record(
    s3_uri: str, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(s3_uri)
    save(store, make_job())

    def unreachable(self: S3Store, key: str) -> tuple[bytes, str] | None:
        raise CheckpointError("could not read: timed out")

    monkeypatch.setattr(S3Store, "get_if_exists", unreachable)
    with pytest.raises(CheckpointError, match="timed out"):
        latest_record(store, "clicks")


def test_the_newest_record_is_that_of_the_latest_data_then_the_latest_made(store: Store, make_job: MakeJob) -> None:
    job = make_job()
    monday = save(store, job, job_id="mon", step=900, kind="final", created=1.0, interval_end="2026-01-06")
    tuesday = save(store, job, job_id="tue", step=300, kind="final", created=2.0, interval_end="2026-01-07")
    again = save(store, job, job_id="mon2", step=900, kind="final", created=3.0, interval_end="2026-01-06")
    wednesday = save(store, job, job_id="wed", step=10, created=4.0, interval_end="2026-01-08")
    assert [uri for uri, _ in list_records(store, "clicks")] == [wednesday, tuesday, again, monday]

    def newest(**wanted: str) -> str | None:
        found = latest_record(store, "clicks", **wanted)  # type: ignore[arg-type]
        return found and found.uri

    assert newest(kind="final") == tuesday
    assert newest(job_id="mon") == monday
    assert newest(kind="final", interval_end_at_most="2026-01-06") == again
    assert newest(kind="final", job_id="wed") is None
    assert latest_record(store, "other-job") is None


def test_moments_of_other_time_zones_are_compared_as_moments(tmp_path: Path, make_job: MakeJob) -> None:
    store = open_store(tmp_path)
    later = save(store, make_job(), job_id="a", created=1.0, interval_end="2026-01-06T23:00:00-05:00")
    save(store, make_job(), job_id="b", created=2.0, interval_end="2026-01-07T01:00:00.5+02:00")
    assert next(uri for uri, _ in list_records(store, "clicks")) == later
    found = latest_record(store, "clicks", interval_end_at_most="2026-01-07T06:00:00+02:00")
    assert found is not None and found.uri == later
    with pytest.raises(CheckpointError, match="yesterday"):
        save(store, make_job(), interval_end="yesterday")


def test_a_newer_format_is_refused_with_both_versions(tmp_path: Path, make_job: MakeJob) -> None:
    uri = save(open_store(tmp_path), make_job())
    store = open_store(uri)
    newer = msgspec.structs.replace(open_record(uri).manifest, format_version=3)
    store.delete("manifest.json")
    store.put("manifest.json", encode_manifest(newer))
    with pytest.raises(CheckpointError, match="format_version 3 is not allowed; allowed: 1, 2"):
        open_record(uri)


def test_a_folder_becomes_a_record_once(store: Store, make_job: MakeJob) -> None:
    uri = new_record_uri(store, "clicks", "a", 1)
    part = write_part(uri, 0, 1)

    def commit() -> RecordManifest:
        return commit_record(uri, [part], b"{}", job=make_job(), job_id="a", kind="final", step=1, generation=2)

    commit()
    with pytest.raises(CheckpointError, match="already a record"):
        commit()


def test_a_store_without_conditional_puts_still_commits_once(
    s3_uri: str, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(S3Store, "conditional_writes", lambda self: False)
    uri = save(open_store(s3_uri), make_job())
    parts = open_record(uri).manifest.parts
    with pytest.raises(CheckpointError, match="already a record"):
        commit_record(uri, parts, b"{}", job=make_job(), job_id="a", kind="final", step=1, generation=2)


def _commit_changed(
    tmp_path: Path, job: TrainingJob, parts: Callable[[str], list[PartManifest]], cut: str | None = None
) -> str:
    uri = new_record_uri(str(tmp_path), "clicks", "a", 1)
    commit_record(uri, parts(uri), b"{}", job=job, job_id="a", kind="final", step=1, generation=2, cut=cut)
    return uri


def test_parts_that_contradict_each_other_make_no_record(tmp_path: Path, make_job: MakeJob) -> None:
    job = make_job()

    def commit(message: str, parts: Callable[[str], list[PartManifest]]) -> None:
        with pytest.raises(CheckpointError, match=message):
            _commit_changed(tmp_path, job, parts)

    commit("at least one part", lambda uri: [])
    commit(r"\['ps-0'\] came more than once", lambda uri: [write_part(uri, 0, 2), write_part(uri, 0, 2)])
    doubled = "bucket 1 of the tables ad, user is in part ps-0 and in part ps-1"
    commit(doubled, lambda uri: [write_part(uri, 0, 1), write_part(uri, 1, 2)])
    missing = r"no part answers for 128 of 256 buckets of the tables ad, user, first: 1; parts: \['ps-0'\]"
    commit(missing, lambda uri: [write_part(uri, 0, 2)])
    whole = {"groups": [answer(TABLES, range(VIRTUAL_BUCKETS))]}
    commit("only 5 of 10 elements", lambda uri: [msgspec.structs.replace(write_part(uri, 0, 2), **whole)])
    missing = "elements between 0 and 5 are missing"
    commit(missing, lambda uri: [msgspec.structs.replace(write_part(uri, 1, 2), **whole)])
    old = lambda part: msgspec.structs.replace(part, generation=1)  # noqa: E731
    commit(
        "of generation 2, but the parts are of {'ps-1': 1}",
        lambda uri: [write_part(uri, 0, 2), old(write_part(uri, 1, 2))],
    )
    short = lambda part: msgspec.structs.replace(part, size_bytes=part.size_bytes + 1)  # noqa: E731
    commit("its writer reported", lambda uri: [short(write_part(uri, 0, 1))])
    other = lambda part: msgspec.structs.replace(part, cut="save-2")  # noqa: E731
    commit(
        "of the save '', but the parts are of {'ps-1': 'save-2'}",
        lambda uri: [write_part(uri, 0, 2), other(write_part(uri, 1, 2))],
    )
    with pytest.raises(CheckpointError, match=r"of the save 'save-3', but the parts are of \{'ps-0': 'save-2'\}"):
        _commit_changed(tmp_path, job, lambda uri: [other(write_part(uri, 0, 1))], cut="save-3")

    def grouped(*groups: object) -> Callable[[str], list[PartManifest]]:
        return lambda uri: [msgspec.structs.replace(write_part(uri, 0, 1), groups=list(groups))]

    everything = range(VIRTUAL_BUCKETS)
    commit(r"no part answers for the tables \['user'\]; parts: \['ps-0'\]", grouped(answer(["ad"], everything)))
    commit(r"the tables \['ad'\] more than once", grouped(answer(TABLES, everything), answer(["ad"], everything)))
    commit("part ps-0 answers for the buckets 0 to 256 of the tables ad, user", grouped(answer(TABLES, range(257))))
    strange = msgspec.structs.replace(answer(TABLES, everything), answers=[BucketRun(0, 1, 256, 5, 4)])
    commit("bucket 0 of the tables ad, user from version 5 to 4", grouped(strange))
    apart = [answer(["ad"], range(1, 256, 2)), answer(["user"], range(1, 256, 2))]
    commit(
        r"part ps-1 has the tables \[\['ad'\], \['user'\]\], part ps-0 has \[\['ad', 'user'\]\]",
        lambda uri: [write_part(uri, 0, 2), msgspec.structs.replace(write_part(uri, 1, 2), groups=apart)],
    )
    assert list_records(str(tmp_path), "clicks") == []


@pytest.mark.parametrize("servers", [2, 3])
def test_a_record_without_one_of_its_parts_is_refused_although_the_part_had_no_rows(
    tmp_path: Path, make_job: MakeJob, servers: int
) -> None:
    """Only bucket and dense range tell a server that held nothing from one that did not write."""

    def parts(uri: str) -> list[PartManifest]:
        return [empty_part(uri, server, servers) for server in range(servers)]

    _commit_changed(tmp_path, make_job(), parts)
    for missing in range(servers):
        with pytest.raises(CheckpointError, match=f"buckets of the tables ad, user, first: {missing}; parts: "):
            _commit_changed(
                tmp_path, make_job(), lambda uri, missing=missing: parts(uri)[:missing] + parts(uri)[missing + 1 :]
            )


def empty_part(uri: str, server: int, servers: int) -> PartManifest:
    groups = [answer(TABLES, range(server, VIRTUAL_BUCKETS, servers))]
    with PartWriter(uri, f"ps-{server}", groups=groups, generation=2) as writer:
        return writer.finish()


def test_dense_parameters_that_one_server_did_not_write_are_missed_where_they_end_with_its_range(
    tmp_path: Path, make_job: MakeJob
) -> None:
    def parts(uri: str) -> list[PartManifest]:
        groups = [[answer(TABLES, range(server, VIRTUAL_BUCKETS, 2))] for server in (0, 1)]
        with PartWriter(uri, "ps-0", groups=groups[0], dense_ranges=[(0, 6)], generation=2) as writer:
            writer.write_dense("over.weight", (2, 3), 0, {"value": np.zeros(6, np.float32)})
            first = writer.finish()
        with PartWriter(uri, "ps-1", groups=groups[1], dense_ranges=[(6, 12)], generation=2) as writer:
            return [first, writer.finish()]

    with pytest.raises(CheckpointError, match="answer for 12 of 6 elements"):
        _commit_changed(tmp_path, make_job(), parts)


def part_of_runs(uri: str, server: int, runs: list[tuple[int, int]]) -> PartManifest:
    """A part that answers for every second bucket, and for runs of the parameters a [4] and b [6]."""
    groups = [answer(TABLES, range(server, VIRTUAL_BUCKETS, 2))]
    with PartWriter(uri, f"ps-{server}", groups=groups, dense_ranges=runs, generation=2) as writer:
        for start, end in runs:
            for name, size, begin in (("a", 4, 0), ("b", 6, 4)):
                low, high = max(start, begin), min(end, begin + size)
                if low < high:
                    values = np.arange(low, high, dtype=np.float32)
                    writer.write_dense(name, (size,), low - begin, {"value": values})
        return writer.finish()


def test_dense_parameters_may_lie_in_several_runs_and_keep_their_order(tmp_path: Path, make_job: MakeJob) -> None:
    def parts(uri: str) -> list[PartManifest]:
        return [part_of_runs(uri, 0, [(5, 7), (9, 10)]), part_of_runs(uri, 1, [(0, 5), (7, 9)])]

    record = open_record(_commit_changed(tmp_path, make_job(), parts))
    assert [dense.name for dense in record.manifest.model.dense] == ["a", "b"]
    np.testing.assert_array_equal(record.dense("a")["value"], np.arange(4))
    np.testing.assert_array_equal(record.dense("b")["value"], np.arange(4, 10))
    assert sorted(start for start, _ in record.dense_runs("b")) == [0, 1, 3, 5]
    assert sorted(start for start, _ in record.dense_runs("b", (2, 4))) == [1, 3]


@pytest.mark.parametrize(
    ("runs", "found"),
    [
        ([(0, 5), (8, 9)], "elements between 3 and 4 are missing"),
        ([(0, 6), (7, 9)], "elements between 1 and 2 are written twice"),
    ],
)
def test_runs_that_leave_a_hole_or_overlap_make_no_record(
    tmp_path: Path, make_job: MakeJob, runs: list[tuple[int, int]], found: str
) -> None:
    def parts(uri: str) -> list[PartManifest]:
        return [part_of_runs(uri, 0, [(5, 7), (9, 10)]), part_of_runs(uri, 1, runs)]

    with pytest.raises(CheckpointError, match=found):
        _commit_changed(tmp_path, make_job(), parts)


def test_pruning_keeps_the_newest_periodic_every_final_and_other_jobs_records(store: Store, make_job: MakeJob) -> None:
    job = make_job()
    periodic = [save(store, job, step=step) for step in (1, 2, 3, 4)]
    final = save(store, job, step=5, kind="final")
    other = save(store, job, job_id="clicks-2", step=1)
    torn, running = (new_record_uri(store, "clicks", "clicks-1", 6) for _ in range(2))
    others_torn = new_record_uri(store, "clicks", "clicks-2", 6)
    for uri in (torn, running, others_torn):
        write_part(uri, 0, 1)
    deleted = prune(store, "clicks", "clicks-1", keep=2, in_progress=lambda: [running])
    assert sorted(deleted) == sorted([*periodic[:2], torn])
    assert {uri for uri, _ in list_records(store, "clicks")} == {*periodic[2:], final, other}
    assert open_store(running).keys() and open_store(others_torn).keys() and not open_store(torn).keys()
    assert prune(store, "clicks", "clicks-1", keep=2, in_progress=lambda: [running]) == []


def test_of_final_records_those_of_the_latest_data_and_those_made_last_are_kept(
    store: Store, make_job: MakeJob
) -> None:
    days = [
        save(store, make_job(), job_id=f"day-{day}", step=day, kind="final", interval_end=f"2026-01-0{day}")
        for day in range(1, 7)
    ]
    # An old day that was trained again, and a periodic record of another job.
    again = save(
        store, make_job(), job_id="again", step=9, kind="final", interval_end="2026-01-01", created=1_000_000.0
    )
    running = save(store, make_job(), job_id="running", step=3)
    assert sorted(prune_final(store, "clicks", 2, kept=[days[1]])) == sorted([days[0], days[2], days[3]])
    assert {uri for uri, _ in list_records(store, "clicks")} == {days[1], *days[4:], again, running}
    assert prune_final(store, "clicks", 2) == [days[1]]


def test_unfinished_uploads_end_with_their_record_unless_they_are_in_progress(s3_uri: str, make_job: MakeJob) -> None:
    store = open_store(s3_uri)
    complete = save(store, make_job(), step=1)
    killed, running, others = (
        new_record_uri(store, "clicks", job_id, 6) for job_id in ("clicks-1", "clicks-1", "clicks-2")
    )
    for uri in (complete, killed, running, others):
        # A process that is killed neither closes nor aborts.
        open_store(uri).open_write("parts/ps-0.bin").write(bytes(UPLOAD_PART_BYTES))

    def left() -> set[str]:
        return {store.child_uri(key.removesuffix("/parts/ps-0.bin")) for key in store.unfinished("clicks/records")}

    assert left() == {complete, killed, running, others}
    assert prune(store, "clicks", "clicks-1", keep=2, in_progress=lambda: [running]) == [killed]
    assert left() == {running, others}
    assert open_record(complete).verify() > 0
    assert discard(running) and left() == {others}


def test_what_may_not_be_listed_of_uploads_hinders_no_pruning(
    s3_uri: str, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(s3_uri)
    uris = [save(store, make_job(), step=step) for step in (1, 2)]

    def refuse(self: object, **_: object) -> None:
        raise ClientError({"Error": {"Code": "AccessDenied"}}, "ListMultipartUploads")

    monkeypatch.setattr("botocore.paginate.Paginator.paginate", refusing(refuse))
    assert prune(store, "clicks", "clicks-1", keep=1) == uris[:1]


def refusing(refuse: Callable[..., None]) -> Callable[..., Any]:
    """Pages as they are, but for those of unfinished uploads."""
    original = Paginator.paginate

    def paginate(self: Paginator, **arguments: Any) -> Any:
        if self._method.__name__ == "list_multipart_uploads":
            refuse(self)
        return original(self, **arguments)

    return paginate


def test_pruning_spares_a_record_that_is_begun_while_the_store_is_slow(store: Store, make_job: MakeJob) -> None:
    save(store, make_job(), step=1)
    torn, running = sorted(new_record_uri(store, "clicks", "clicks-1", step) for step in (2, 3))
    for uri in (torn, running):
        write_part(uri, 0, 1)
    asked: list[int] = []

    def in_progress() -> list[str]:
        asked.append(1)
        return [running] if len(asked) > 1 else []

    assert prune(store, "clicks", "clicks-1", keep=1, in_progress=in_progress) == [torn]
    assert open_store(running).keys()


def test_records_known_to_be_damaged_are_pruned_and_do_not_count(store: Store, make_job: MakeJob) -> None:
    uris = [save(store, make_job(), step=step) for step in (1, 2, 3, 4)]
    prune(store, "clicks", "clicks-1", 2, in_progress=lambda: [uris[3]], damaged=[uris[2]])
    assert [uri for uri, _ in list_records(store, "clicks")] == [uris[3], uris[1]]


def test_the_records_to_start_from_come_newest_first(store: Store, make_job: MakeJob) -> None:
    uris = [save(store, make_job(), step=step, kind="final") for step in (1, 2, 3)]
    save(store, make_job(), step=4)
    open_store(uris[1]).delete("manifest.json")
    assert [record.uri for record in newest_records(store, "clicks", "final")] == [uris[2], uris[0]]


def test_a_clock_that_is_set_back_makes_no_record_old(store: Store, make_job: MakeJob) -> None:
    job = make_job()
    early = save(store, job, step=1, created=10_000.0)
    late = save(store, job, step=2, created=6_400.0)
    last = save(store, job, step=2, created=6_300.0)
    assert [uri for uri, _ in list_records(store, "clicks")] == [late, last, early]
    # Of equal steps the clock would choose; the one that was just written stays in any case.
    assert prune(store, "clicks", "clicks-1", keep=1, in_progress=lambda: [last]) == [early]


def test_a_failed_save_is_discarded_and_a_complete_record_is_not(store: Store, make_job: MakeJob) -> None:
    complete = save(store, make_job(), step=1)
    torn = new_record_uri(store, "clicks", "clicks-1", 2)
    write_part(torn, 0, 1)
    assert discard(torn) and not open_store(torn).keys()
    assert not discard(complete)
    assert [uri for uri, _ in list_records(store, "clicks")] == [complete]
    assert discard(torn)


def test_pruning_leaves_a_record_that_it_cannot_read(tmp_path: Path, make_job: MakeJob) -> None:
    store = open_store(tmp_path)
    uri = save(store, make_job(), step=1, kind="final")
    open_store(uri).put("manifest.json", b"garbage")
    assert prune(store, "clicks", "clicks-1", keep=0) == []


def _save_forever(root: str, job_json: str, ready: object) -> None:
    job, step = TrainingJob.model_validate_json(job_json), 0
    while True:
        step += 1
        save(open_store(root), job, step=step)
        ready.set()  # type: ignore[attr-defined]


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
    assert found.verify() == 14
    assert found.positions() == f'{{"step": {found.manifest.step}}}'.encode()


def test_records_of_a_job_are_ordered_by_term_then_step_and_a_term_begins_with_its_base(
    store: Store, make_job: MakeJob
) -> None:
    def take(holder: str, base: str = "") -> None:
        take_term(store, "clicks", "clicks-1", holder=holder, address="host:1", base=lambda: base)

    def newest() -> list[str]:
        return [uri for uri, _ in list_records(store, "clicks", "clicks-1")]

    take("a")
    base = save(store, make_job(), step=100, term=1)
    after = save(store, make_job(), step=200, term=1)
    assert newest() == [after, base]
    # The second master goes on from the first record; the first one commits once more, too late.
    take("b", base)
    late = save(store, make_job(), step=300, term=1)
    assert newest() == [base, late, after]
    own = save(store, make_job(), step=150, term=2)
    assert newest() == [own, base, late, after]


def test_a_check_that_fails_leaves_no_record_and_keeps_what_prune_would_delete(store: Store, make_job: MakeJob) -> None:
    def refuse() -> None:
        raise SupersededError("another master has taken term 2")

    old, new = save(store, make_job(), step=100), save(store, make_job(), step=200)
    with pytest.raises(SupersededError):
        prune(store, "clicks", "clicks-1", keep=1, check=refuse)
    assert [uri for uri, _ in list_records(store, "clicks")] == [new, old]
    uri = new_record_uri(store, "clicks", "clicks-1", 300)
    parts = [write_part(uri, server, 2) for server in range(2)]
    with pytest.raises(SupersededError):
        commit_record(
            uri, parts, b"{}", job=make_job(), job_id="clicks-1", kind="periodic", step=300, generation=2, check=refuse
        )
    assert [found for found, _ in list_records(store, "clicks")] == [new, old]
