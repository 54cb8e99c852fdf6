"""Rows that a server wrote as cells can be read as columns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from elastrec.checkpoints.answers import answer
from elastrec.checkpoints.commit import commit_record, new_record_uri
from elastrec.checkpoints.errors import DamagedRecordError
from elastrec.checkpoints.parts import PartWriter
from elastrec.checkpoints.quantized import QUANTIZED, SCALES, VALUES
from elastrec.checkpoints.record import Record, open_record
from elastrec.checkpoints.rows import CELLS, SEEN_WORD, STATE_WORD, VALUE_WORD, stored_names
from elastrec.checkpoints.sections import Attribute, SectionKind
from elastrec.checkpoints.stores.store import open_store
from elastrec.platform.specs.job import TrainingJob
from tests.checkpoints.verifying import verify
from tests.checkpoints.writing import DIMENSION, TABLES, VIRTUAL_BUCKETS

IDS = np.array([7, -5, 2**40, 9])
VALUE = np.arange(4 * DIMENSION, dtype=np.float32).reshape(4, DIMENSION) / 7


def cells_of(*, seen: bool) -> tuple[np.ndarray, dict[str, Attribute]]:
    state = 4 + seen
    cells = np.zeros((4, state + 1 + DIMENSION), np.uint32)
    cells[:, :2] = IDS.view(np.uint32).reshape(-1, 2)
    cells[:, 2] = [3, 1, 4, 1]
    # The upper half of the word says nothing of rows.
    cells[:, 3] = [0, 1 + (5 << 16), 1, 0]
    if seen:
        cells[:, 4] = [100, 200, 300, 400]
    cells.view(np.float32)[:, state] = [0.5, 1.5, 2.5, 3.5]
    cells.view(np.float32)[:, state + 1 :] = VALUE
    return cells, {SEEN_WORD: 4 * seen, STATE_WORD: state, VALUE_WORD: state + 1}


def record_of(tmp_path: Path, job: TrainingJob, cells: np.ndarray, attributes: dict[str, Attribute]) -> Record:
    uri = new_record_uri(open_store(tmp_path), "clicks", "clicks-1", 5)
    with PartWriter(uri, "ps-0", groups=[answer(TABLES, range(VIRTUAL_BUCKETS))], generation=2) as writer:
        buckets, counts = np.array([3, 8]), np.array([1, 3])
        writer.write_chunk(0, SectionKind.ROWS, buckets, counts, {CELLS: cells}, attributes)
        writer.write_chunk(0, SectionKind.LINES, buckets, np.array([2, 1]), {"lines": np.ones((3, 16), np.uint32)})
        part = writer.finish()
    commit_record(uri, [part], b"{}", job=job, job_id="clicks-1", kind="periodic", step=5, generation=2)
    return open_record(uri)


@pytest.mark.parametrize("seen", [False, True])
def test_cells_are_read_as_columns(tmp_path: Path, make_job: Callable[..., TrainingJob], seen: bool) -> None:
    record = record_of(tmp_path, make_job(), *cells_of(seen=seen))
    assert record.manifest.format_version == 3 and record.manifest.rows == {"ad": 2, "user": 2}
    (rows,) = record.rows("user")
    expected = {
        "ids": IDS, "tables": np.array([0, 1, 1, 0]), "versions": np.array([3, 1, 4, 1]),
        "state": np.array([[0.5], [1.5], [2.5], [3.5]]), "values": VALUE,
    }  # fmt: skip
    expected |= {"last_seen": np.array([100, 200, 300, 400])} if seen else {}
    assert rows.columns.keys() == expected.keys() and rows.bucket_of_entry.tolist() == [3, 8, 8, 8]
    for name, column in expected.items():
        np.testing.assert_array_equal(rows.columns[name], column)
    assert rows.columns["ids"].dtype == np.int64 and rows.columns["values"].dtype == np.float32
    (share,) = record.shares([8])
    (some,) = share.read((SectionKind.ROWS,), ("ids", "tables", "values"))
    assert some.columns["ids"].tolist() == IDS[1:].tolist()
    assert verify(record) == 2


@pytest.mark.parametrize(
    "words", [{}, {SEEN_WORD: 5}, {STATE_WORD: 3}, {STATE_WORD: 9}, {VALUE_WORD: 99}, {VALUE_WORD: "5"}]
)
def test_cells_that_do_not_say_where_their_numbers_are_are_damaged(
    tmp_path: Path, make_job: Callable[..., TrainingJob], words: dict[str, Attribute]
) -> None:
    cells, attributes = cells_of(seen=False)
    record = record_of(tmp_path, make_job(), cells, attributes | words if words else {})
    with pytest.raises(DamagedRecordError, match=r"cells \[4, 9\] do not have their numbers from the words"):
        list(record.rows("user"))


def test_a_request_for_values_reads_the_arrays_that_hold_them() -> None:
    assert stored_names(["ids", VALUES]) == ["ids", VALUES, CELLS, QUANTIZED, SCALES]
    assert stored_names(["ids"]) == ["ids", CELLS]
