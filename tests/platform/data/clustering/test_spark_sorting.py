"""Spark, in local mode, sorts a log as one machine does: the clustered files are equal byte by byte."""

from __future__ import annotations

import importlib.util
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elastrec.platform.data.clustering.clustering import cluster
from elastrec.platform.specs.data import TrainingData
from elastrec.platform.specs.errors import DataError

HAS_SPARK = importlib.util.find_spec("pyspark") is not None
DAY = "day=2026-01-31"
# Spark exchanges no frames of pandas with this package.
pandas_3 = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
with_spark = pytest.mark.skipif(not HAS_SPARK, reason="pyspark is not installed (extra spark)")


def log(root: Path, rows: int = 3_000) -> TrainingData:
    """Three files whose names are not as Spark writes them; columns of many types, sessions with gaps, equal times."""
    rng = np.random.default_rng(0)
    (root / DAY).mkdir(parents=True)
    begin = datetime(2026, 1, 31, tzinfo=UTC)
    for number, name in enumerate(("b part.parquet", "a.parquet", "c%.parquet")):
        session_B = rng.integers(0, 300, rows)
        table = pa.table(
            {
                "label": pa.array(rng.integers(0, 2, rows), pa.int8()),
                "id.x": pa.array(rng.integers(-(2**63), 2**63 - 1, rows)),
                "price": pa.array(rng.random(rows, np.float32)),
                "big": pa.array(rng.integers(0, 2**63, rows).astype(np.uint64) * 2 + 1),
                "text": pa.array([None if n % 7 == 0 else f"ö{n % 11}" for n in range(rows)]),
                "history": pa.array([list(range(s % 5)) or None for s in session_B], pa.list_(pa.int64())),
                "at": pa.array([begin + timedelta(microseconds=int(n)) for n in rng.integers(0, 10**9, rows)]),
                "nanos": pa.array(rng.integers(0, 10**15, rows), pa.timestamp("ns")),
                "session": pa.array([None if s == 7 else f"s{s}" for s in session_B]),
                "when": pa.array(rng.integers(0, 20, rows)),
            }
        )
        pq.write_table(table.drop_columns(["price"] if number == 1 else []), root / DAY / name, row_group_size=700)
    content = {"path": str(root), "sparse": [{"name": "id.x"}], "session": "session", "timestamp": "when"}
    return TrainingData.model_validate(content)


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Starts the Java process of Spark, which all later sessions of this process use."""
    folder = tmp_path_factory.mktemp("first")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        cluster(log(folder / "log", rows=10), str(folder / "spark"), engine="spark", spark_master="local[1]")


@with_spark
@pandas_3
@pytest.mark.services
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("memory_bytes", [2**20, 2**30], ids=["many ranges", "one range"])
def test_spark_and_one_machine_write_the_same_bytes(
    tmp_path: Path, memory_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    data = log(tmp_path / "log")
    (ours,) = cluster(data, str(tmp_path / "local"), row_group_rows=500)
    (theirs,) = cluster(
        data, str(tmp_path / "spark"), row_group_rows=500, memory_bytes=memory_bytes, engine="spark",
        spark_master="local[2]",
    )  # fmt: skip
    assert theirs == ours
    files = [sorted((tmp_path / name / DAY).iterdir()) for name in ("local", "spark")]
    assert [file.name for file in files[0]] == [file.name for file in files[1]]
    assert len(files[0]) > 1
    for left, right in zip(*files, strict=True):
        assert left.read_bytes() == right.read_bytes()
    assert [path.name for path in (tmp_path / "spark").iterdir()] == [DAY]


@with_spark
@pandas_3
@pytest.mark.services
@pytest.mark.usefixtures("spark")
def test_a_file_that_spark_cannot_read_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    data = log(tmp_path / "log", rows=50)
    broken = tmp_path / "log" / DAY / "a.parquet"
    content = bytearray(broken.read_bytes())
    content[4:40] = bytes(36)
    broken.write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"Spark could not sort the files"):
        cluster(data, str(tmp_path / "spark"), engine="spark", spark_master="local[1]")
    assert not list((tmp_path / "spark").iterdir())


@pytest.mark.skipif(HAS_SPARK, reason="pyspark is installed")
def test_without_the_extra_the_error_tells_how_to_install_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"pip install 'elastrec\[spark\]'"):
        cluster(log(tmp_path / "log", rows=50), str(tmp_path / "spark"), engine="spark")
    assert not list((tmp_path / "spark").iterdir())
