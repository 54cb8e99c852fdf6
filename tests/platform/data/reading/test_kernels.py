"""The reader's compiled loop: its output, and that nothing is compiled while a worker holds a shard."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa

from elastrec.platform.data.reading import kernels
from tests.platform.data.rows import write_parquet

_READ = """
import sys
from pathlib import Path
from elastrec.platform.data.manifest import build_manifest
from elastrec.platform.data.reading import kernels
from elastrec.platform.data.reading.reader import ShardReader
from elastrec.platform.specs.data import TrainingData

cache, folder = Path(sys.argv[1]), sys.argv[2]
kernels.load()
before = {file.name for file in cache.rglob("*.nbc")}
data = TrainingData.model_validate({
    "path": folder, "partitioning": "none",
    "dense": [{"name": "narrow"}, {"name": "wide"}, {"name": "empty"}, {"name": "real"}],
    "sparse": [{"name": "first"}, {"name": "second"}, {"name": "narrow_id", "column": "narrow"}],
})
reader = ShardReader(data, build_manifest(data), hash_sizes={"second": 7})
for batch_size in (10, 64, 100, 1000):
    for shuffle in (False, True):
        assert sum(b.num_rows for b in reader.read(0, 300, seed=1, shuffle=shuffle, batch_size=batch_size)) == 300
after = {file.name for file in cache.rglob("*.nbc")}
print(len(before), sorted(after - before))
"""


def test_a_reader_compiles_nothing_after_its_loop_is_loaded(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    number, some = rng.integers(0, 100_000, 300), rng.random(300) < 0.2
    columns = {
        "label": pa.array(rng.integers(0, 2, 300).astype(np.int8)),
        "narrow": pa.array(number.astype(np.int32), mask=some),
        "wide": pa.array(number % 10, mask=some),
        "empty": pa.nulls(300, pa.int32()),
        "real": pa.array(rng.random(300)),
        "first": pa.array(number),
        "second": pa.array(number.astype(np.uint16), mask=some),
    }
    write_parquet(tmp_path / "log" / "a.parquet", pa.table(columns))
    # The cache of a machine on which nothing has run yet.
    cache = tmp_path / "cache"
    done = subprocess.run(
        [sys.executable, "-c", _READ, str(cache), str(tmp_path / "log")],
        env={"NUMBA_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split(maxsplit=1) == ["4", "[]\n"]


def test_rows_are_spread_over_minibatches_that_lie_apart() -> None:
    room = np.zeros((2, 3, 2), np.int64)
    kernels.spread(np.array([5, 6, 7, 8, 9]), np.array([4, 0, 2, 1], np.uint32), room[:, 1])
    assert room.tolist() == [[[0, 0], [9, 5], [0, 0]], [[0, 0], [7, 6], [0, 0]]]


def test_numba_is_not_loaded_before_a_window_is_read() -> None:
    code = "import sys, elastrec.platform.data.reading.source; print('numba' in sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "False"
