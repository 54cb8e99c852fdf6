"""The model that jobs of a benchmark continue."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from benchmarks.common.continued import FIRST_ID, wide_log
from elastrec.platform.data.generating.generator import GenerateSpec


def test_a_pass_over_a_day_has_the_wanted_number_of_new_ids(tmp_path: Path) -> None:
    spec = GenerateSpec(path="clicks", rows_per_day=1, days=1, seed=1, dense=2, sparse=3, lists=0)
    log = wide_log(spec, tmp_path / "clicks", 3_000)
    tables = [pq.read_table(file) for file in sorted((tmp_path / "clicks").rglob("*.parquet"))]
    assert log.spec.rows_per_day == 1_000 and sum(map(len, tables)) == 2_000
    ids = np.concatenate([table[f"C{number}"].to_numpy() for table in tables for number in (1, 2, 3)])
    assert len(np.unique(ids)) == 6_000, "of both days"
    assert ids.min() >= FIRST_ID
