"""Raw rows as a frame: the exported model reads from it what the trainer read from the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from elastrec.platform.data.reading.encode import RowEncoder
from elastrec.trainers.export.requests import table_of
from elastrec.trainers.export.signature import raw_frame
from tests.trainers.export.conftest import parquet_log, raw_rows

COLUMNS = {
    "numbers as text": ("price", pa.array([" 3.5 ", "+1", "", "  ", None, "1e3"])),
    "numbers as text in dictionaries": ("price", pa.array([" 3.5 ", "+1", "", "  ", None, "1e3"]).dictionary_encode()),
    "ids as text": ("user", pa.array([" 7 ", "+8", "9.0", "", None, str(2**64 - 1)])),
    "ids of 64 bits without a sign": ("user", pa.array([7, 2**63, 2**64 - 1, 0, None, 2**53 + 1], pa.uint64())),
    "ids as floats": ("user", pa.array([7.0, 8.0, -1.0, 0.0, None, 2.0**53])),
    "text that is no UTF-8": ("city", pa.array([b"a", b"\xff", b"", None, b"b", b"c"])),
    "lists of ids without a sign": (
        "history", pa.array([[1], [2**63, 2**64 - 1], [], None, [None], [5]], pa.list_(pa.uint64())),
    ),
    "lists of ids as text": ("history", pa.array(["1| +2", "", None, "3|", " 4 ", "7.0"])),
}  # fmt: skip


@pytest.mark.parametrize("name", COLUMNS)
def test_a_frame_holds_what_the_encoder_reads_from_the_file(tmp_path: Path, name: str) -> None:
    column, values = COLUMNS[name]
    raw = raw_rows(1, len(values))
    data = parquet_log(tmp_path, raw)
    # In two chunks, as row groups are read.
    chunks = pa.chunked_array([values[:2], values[2:]])
    rows = raw.set_column(raw.schema.get_field_index(column), column, chunks)
    trained = RowEncoder(data).encode(rows, with_label=False)
    frame = raw_frame(data, rows)
    served = RowEncoder(data).encode(table_of(frame), with_label=False)
    assert not trained.bad_B.any() and not served.bad_B.any()
    assert served.batch.equals(trained.batch)
    np.testing.assert_array_equal(served.dense_BI, trained.dense_BI)
    assert frame["price"].dtype == np.float64 and frame["user"].dtype == np.int64
