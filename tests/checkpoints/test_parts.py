from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from elastrec.checkpoints.answers import BucketRun, answer
from elastrec.checkpoints.errors import DamagedRecordError
from elastrec.checkpoints.parts import ALIGNMENT_BYTES, PartManifest, PartWriter, read_index
from elastrec.checkpoints.sections import SectionKey, SectionKind
from elastrec.checkpoints.stores.store import open_store
from elastrec.platform.specs.errors import CheckpointError
from tests.checkpoints.writing import write_bucket

GROUPS = [answer(["ad"], range(16))]


@given(
    buckets=st.lists(st.integers(0, 60), unique=True),
    versions=st.lists(st.tuples(st.integers(0, 2), st.integers(2, 3)), min_size=61, max_size=61),
)
def test_an_answer_has_the_versions_of_its_buckets_in_any_order(
    buckets: list[int], versions: list[tuple[int, int]]
) -> None:
    first, last = (np.array([versions[bucket][side] for bucket in buckets], np.int64) for side in (0, 1))
    found = answer(["ad"], buckets, first=first, last=last).versions()
    named = zip(found.buckets.tolist(), found.first.tolist(), found.last.tolist(), strict=True)
    assert sorted(named) == sorted((bucket, *versions[bucket]) for bucket in buckets)


def test_an_answer_for_buckets_that_are_dealt_out_in_turn_is_one_run() -> None:
    assert answer(["ad"], range(3, 65_536, 7), last=4).answers == [BucketRun(3, 7, 9362, 0, 4)]


def test_arrays_are_aligned_for_memory_mapping(tmp_path: Path) -> None:
    with PartWriter(str(tmp_path), "ps-0") as writer:
        writer.write_dense("a", (3,), 0, {"value": np.ones(3, np.float32), "steps": np.array(7)})
        writer.write_dense("b", (7,), 0, {"value": np.ones(7, np.float32)})
        manifest = writer.finish()
    entries = read_index(open_store(tmp_path), manifest)
    assert [array.offset % ALIGNMENT_BYTES for entry in entries for array in entry.arrays] == [0, 0, 0]


def test_a_manifest_counts_rows_and_bytes_and_survives_json(tmp_path: Path) -> None:
    groups = [answer(["ad", "user"], range(16))]
    with PartWriter(str(tmp_path), "ps-0", {"clock": 17}, groups=groups, cut="save-3") as writer:
        for bucket, count in ((5, 3), (9, 2)):
            write_bucket(writer, bucket, 0, {"ids": np.arange(count), "values": np.ones((count, 4), np.float32)})
        writer.write_dense("w", (2, 5), 4, {"value": np.zeros(6, np.float32)})
        manifest = writer.finish()
    table, other = manifest.tables
    assert (table.name, table.rows, table.size_bytes) == ("ad", 5, 5 * (8 + 2 + 4 + 16))
    assert (other.name, other.rows) == ("user", 0) and manifest.cut == "save-3"
    assert (manifest.dense[0].start, manifest.dense[0].length, manifest.dense[0].shape) == (4, 6, (2, 5))
    assert manifest.attributes == {"clock": 17}
    assert PartManifest.from_json(manifest.to_json()) == manifest
    with pytest.raises(CheckpointError, match="not the manifest"):
        PartManifest.from_json(b"{}")


@given(
    array=hnp.arrays(
        dtype=st.sampled_from(["<f4", "<f8", "<i8", "<u8", "|i1", "|b1", ">f4", "<f2"]),
        shape=hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
    ),
    transposed=st.booleans(),
)
def test_any_array_of_numbers_is_restored_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, array: np.ndarray, transposed: bool
) -> None:
    given_array = array.T if transposed else array
    folder = tmp_path_factory.mktemp("part")
    with PartWriter(str(folder), "p") as writer:
        key = SectionKey(SectionKind.DENSE, "s")
        writer.write(key, {"a": given_array})
        manifest = writer.finish()
    (entry,) = read_index(open_store(folder), manifest)[0].arrays
    raw = open_store(folder).get_range(manifest.file, entry.offset, entry.nbytes)
    back = np.frombuffer(raw, dtype=entry.dtype).reshape(entry.shape)
    np.testing.assert_array_equal(back, given_array)


def test_writing_takes_little_memory_beyond_the_arrays(tmp_path: Path) -> None:
    rows = np.ones((2_000_000, 16), dtype=np.float32)
    with PartWriter(str(tmp_path), "ps-0") as writer:
        tracemalloc.start()
        writer.write(SectionKey(SectionKind.DENSE, "w"), {"values": rows, "every_other": rows[::2]})
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < rows.nbytes / 4


def test_an_empty_share_of_a_dense_parameter_has_no_section(tmp_path: Path) -> None:
    with PartWriter(str(tmp_path), "ps-0") as writer:
        writer.write_dense("w", (4,), 0, {"value": np.empty(0, np.float32)})
        writer.write_dense("w", (4,), 0, {"value": np.ones(4, np.float32)})
        manifest = writer.finish()
    assert [(share.start, share.length) for share in manifest.dense] == [(0, 4)]


def test_an_abandoned_part_leaves_no_file(tmp_path: Path) -> None:
    with PartWriter(str(tmp_path), "ps-0", groups=GROUPS) as writer:
        write_bucket(writer, 0, 0, {"ids": np.arange(3)})
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_server_that_saves_again_does_not_meet_its_old_file(tmp_path: Path) -> None:
    files = set()
    for _ in range(2):
        with PartWriter(str(tmp_path), "ps-0") as writer:
            files.add(writer.finish().file)
    assert len(files) == 2


def test_mistakes_of_the_caller_are_refused(tmp_path: Path) -> None:
    with PartWriter(str(tmp_path), "ps-0", groups=GROUPS) as writer:
        writer.write_dense("v", (4,), 0, {"value": np.ones(4)})
        with pytest.raises(CheckpointError, match="dense/v/0 was written twice"):
            writer.write_dense("v", (4,), 0, {"value": np.ones(4)})
        with pytest.raises(CheckpointError, match=r"rows of \['ad'\]: the part does not answer for bucket 16"):
            write_bucket(writer, 16, 0, {"ids": np.arange(3)})
        with pytest.raises(CheckpointError, match="table number 1; allowed: 0 to 0"):
            write_bucket(writer, 3, 1, {"ids": np.arange(3)})
        with pytest.raises(CheckpointError, match=r"1 buckets with 3 entries, but columns of .*'values': 2"):
            write_bucket(writer, 0, 0, {"ids": np.arange(3), "values": np.ones(2)})
        with pytest.raises(CheckpointError, match="dtype object"):
            write_bucket(writer, 2, 0, {"ids": np.array([object()])})
        with pytest.raises(CheckpointError, match="no array 'value'"):
            writer.write_dense("w", (4,), 0, {"moment": np.ones(4)})
        with pytest.raises(CheckpointError, match="does not fit 4 elements"):
            writer.write_dense("w", (4,), 2, {"value": np.ones(3)})
        with pytest.raises(CheckpointError, match=r"'moment' has shape \(2,\)"):
            writer.write_dense("w", (4,), 0, {"value": np.ones(3), "moment": np.ones(2)})
        writer.finish()
        with pytest.raises(CheckpointError, match="already finished"):
            write_bucket(writer, 3, 0, {"ids": np.arange(3)})


@pytest.mark.parametrize("where", ["index", "length", "missing"])
def test_a_damaged_part_and_an_unreachable_store_are_different_errors(tmp_path: Path, where: str) -> None:
    with PartWriter(str(tmp_path), "ps-0", groups=GROUPS) as writer:
        write_bucket(writer, 0, 0, {"ids": np.arange(3)})
        manifest = writer.finish()
    path = tmp_path / manifest.file
    data = bytearray(path.read_bytes())
    if where == "index":
        data[manifest.index_start + 2] ^= 1
        path.write_bytes(data)
    elif where == "length":
        path.write_bytes(data[:-1])
    else:
        path.unlink()
    with pytest.raises(DamagedRecordError, match="ps-0"):
        read_index(open_store(tmp_path), manifest)
