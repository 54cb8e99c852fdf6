"""A folder is committed as a record at most once, and only if its parts are complete and consistent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from elastrec.checkpoints.answers import BucketRun, answer
from elastrec.checkpoints.catalog import list_records
from elastrec.checkpoints.commit import commit_record, new_record_uri
from elastrec.checkpoints.manifest import RecordManifest
from elastrec.checkpoints.parts import PartManifest, PartWriter
from elastrec.checkpoints.record import open_record
from elastrec.checkpoints.stores.s3_store import S3Store
from elastrec.checkpoints.stores.store import Store, open_store
from elastrec.platform.specs.errors import CheckpointError
from elastrec.platform.specs.job import TrainingJob
from tests.checkpoints.writing import TABLES, VIRTUAL_BUCKETS, save, write_part

MakeJob = Callable[..., TrainingJob]


def test_a_folder_becomes_a_record_once(store: Store, make_job: MakeJob) -> None:
    uri = new_record_uri(store, "clicks", "a", 1)
    part = write_part(uri, 0, 1)

    def commit() -> RecordManifest:
        return commit_record(uri, [part], b"{}", job=make_job(), job_id="a", kind="final", step=1, generation=2)

    commit()
    files = open_store(uri).keys()
    with pytest.raises(CheckpointError, match="already a record"):
        commit()
    assert open_store(uri).keys() == files


def test_a_commit_that_is_repeated_after_its_master_was_killed_leaves_no_second_file(
    store: Store, make_job: MakeJob
) -> None:
    uri = new_record_uri(store, "clicks", "a", 1)
    part = write_part(uri, 0, 1)

    def commit(positions: bytes, check: Callable[[], object]) -> RecordManifest:
        return commit_record(
            uri, [part], positions, job=make_job(), job_id="a", kind="final", step=1, generation=2, check=check
        )

    def killed() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        commit(b'{"streams":{}}', killed)
    manifest = commit(b'{"streams":{}}', lambda: None)
    assert sorted(open_store(uri).keys()) == sorted([part.file, manifest.positions_file, "manifest.json"])
    assert open_record(uri).positions() == b'{"streams":{}}'
    # A master with other positions is refused, and those of the record stay as they are.
    with pytest.raises(CheckpointError, match="already a record"):
        commit(b"{}", lambda: None)
    assert open_record(uri).positions() == b'{"streams":{}}'


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
    """Only bucket and dense range distinguish a server that held nothing from one that did not write."""

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


def test_dense_parameters_missing_at_the_end_of_a_range_are_noticed(tmp_path: Path, make_job: MakeJob) -> None:
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
