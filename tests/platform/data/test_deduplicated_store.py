"""Deduplicated batches at rest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from elastrec.platform.data.deduplicated_batch import deduplicate_batch, expand_batch
from elastrec.platform.data.deduplicated_store import store_batches, stored_batches
from elastrec.platform.specs.errors import DataError
from tests.platform.data.jagged import list_column


def _batches(count: int = 3, rows: int = 64) -> list[pa.RecordBatch]:
    rng = np.random.default_rng(0)
    made = []
    for _ in range(count):
        pool = [rng.integers(0, 2**40, 30).tolist() for _ in range(4)]
        lists = [pool[row // 16] for row in range(rows)]
        made.append(pa.RecordBatch.from_pydict({"label": pa.array(rng.random(rows)), "a": list_column(lists)}))
    return made


def test_batches_are_read_as_they_were_written_each_with_its_own_distinct_rows(tmp_path: Path) -> None:
    batches = _batches()
    uri = str(tmp_path / "sub" / "batches.arrow")
    size = store_batches(uri, (deduplicate_batch(batch, [["a"]]) for batch in batches))
    assert size == Path(uri).stat().st_size < sum(batch.nbytes for batch in batches) / 5
    assert [expand_batch(batch) for batch in stored_batches(uri)] == batches


def test_a_file_appears_only_when_it_is_complete(tmp_path: Path) -> None:
    first, second, _ = _batches()
    with pytest.raises(DataError, match="batch 1 has the columns"):
        store_batches(str(tmp_path / "b.arrow"), [deduplicate_batch(first, [["a"]]), second])
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DataError, match="one or more"):
        store_batches(str(tmp_path / "b.arrow"), [])


@pytest.mark.parametrize("kept", [0, 10, 0.5, 0.9, -8, -1], ids=str)
def test_a_file_that_was_cut_off_is_refused(tmp_path: Path, kept: float) -> None:
    file = tmp_path / "b.arrow"
    store_batches(str(file), (deduplicate_batch(batch, [["a"]]) for batch in _batches()))
    whole = file.read_bytes()
    file.write_bytes(whole[: int(kept * len(whole)) if isinstance(kept, float) else kept])
    with pytest.raises(DataError, match="write it again"):
        list(stored_batches(str(file)))
