"""The inspection of a sample of a log, which changes nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elastrec.platform.data.clustering.inspection import inspect_data
from elastrec.platform.data.manifest import build_manifest
from elastrec.platform.specs.data import TrainingData
from elastrec.platform.specs.errors import DataError


def _log(folder: Path, sessions: int = 100, size: int = 16, length: int = 30, **other: object) -> TrainingData:
    """Interleaved sessions whose two histories never change, written in order of time."""
    rng = np.random.default_rng(0)
    rows = sessions * size
    session_B = rng.permutation(np.repeat(np.arange(sessions), size))
    lists = {name: rng.integers(0, 2**40, (sessions, length)) for name in ("cart", "likes")}
    table = pa.table(
        {
            "label": pa.array(rng.integers(0, 2, rows), pa.int8()),
            "item": pa.array(rng.integers(0, 2**40, rows)),
            "session": pa.array(session_B),
            "when": pa.array(np.arange(rows)),
            **{name: pa.array(list(values[session_B])) for name, values in lists.items()},
        }
    )
    folder.mkdir()
    # Files out of order: the timestamp decides what the log's order is.
    pq.write_table(table.slice(rows // 2), folder / "a.parquet")
    pq.write_table(table.slice(0, rows // 2), folder / "b.parquet")
    return TrainingData.model_validate(
        {
            "path": str(folder),
            "partitioning": "none",
            "evaluation_path": str(folder),
            "sparse": [{"name": "item"}, {"name": "cart", "is_list": True}, {"name": "likes", "is_list": True}],
            "session": "session",
            "timestamp": "when",
            **other,
        }
    )


def test_sessions_factors_and_savings_are_found(tmp_path: Path) -> None:
    data = _log(tmp_path / "log", sessions=1_000)
    facts = inspect_data(data, build_manifest(data), batch_rows=160)
    assert (facts.rows, facts.sessions, facts.samples_per_session) == (16_000, 1_000, 16.0)
    assert facts.session_sizes == {16: 1_000}
    assert [round(each.measured) for each in facts.features] == [1, 16, 16]
    assert facts.features[1].unclustered < 2
    assert facts.proposal.groups == (("cart", "likes"),)
    assert facts.storage.ratio > 1.8
    assert facts.sent.ratio > 8
    assert facts.pooled.before == 16_000 * 61
    assert facts.pooled.after == 16_000 + 1_000 * 60


def test_a_log_without_repeats_proposes_nothing_and_saves_nothing(tmp_path: Path) -> None:
    data = _log(tmp_path / "log", sessions=800, size=1)
    facts = inspect_data(data, build_manifest(data), batch_rows=160)
    assert facts.proposal.groups == ()
    assert facts.sent.ratio == facts.pooled.ratio == 1.0


def test_only_the_sample_is_read(tmp_path: Path) -> None:
    data = _log(tmp_path / "log")
    assert inspect_data(data, build_manifest(data), sample_rows=100).rows == 100


def test_bad_rows_are_left_out_or_refused_by_the_jobs_setting(tmp_path: Path) -> None:
    data = _log(tmp_path / "log", dense=[{"name": "d"}], bad_rows={"policy": "skip", "at_most": 10})
    for name in ("a", "b"):
        table = pq.read_table(tmp_path / "log" / f"{name}.parquet")
        dense = np.where(np.arange(table.num_rows) == 5, np.nan, 1.0)
        pq.write_table(table.append_column("d", pa.array(dense)), tmp_path / "log" / f"{name}.parquet")
    assert inspect_data(data, build_manifest(data)).rows == 1_598
    strict = data.model_copy(update={"bad_rows": type(data.bad_rows)()})
    with pytest.raises(DataError, match=r"a.parquet: row 5, column 'd': found nan"):
        inspect_data(strict, build_manifest(strict, try_rows=False))


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"session": None}, {}, "data.session: is absent"),
        ({"session": "visit"}, {}, "visit"),
        ({}, {"sample_rows": 0}, "sample_rows: 0 is not allowed"),
        ({}, {"batch_rows": 0}, "batch_rows: 0 is not allowed"),
        ({}, {"computed_pooling": frozenset({"x"})}, "computed_pooling: .'x'. is not allowed; allowed: item, cart"),
    ],
)
def test_a_log_that_cannot_be_inspected_is_refused(
    tmp_path: Path, change: dict[str, object], options: dict[str, object], message: str
) -> None:
    data = _log(tmp_path / "log", sessions=2).model_copy(update=change)
    with pytest.raises(DataError, match=message):
        inspect_data(data, build_manifest(data), **options)  # type: ignore[arg-type]
