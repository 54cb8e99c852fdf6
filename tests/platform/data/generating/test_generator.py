"""Generated click logs: equal bytes for equal seeds, the planted structure, and a model that can be learnt."""

from __future__ import annotations

import hashlib
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from elastrec.platform.data.finished import read_report
from elastrec.platform.data.generating.generator import (
    CHUNK_ROWS,
    RECORD_NAME,
    GenerateReport,
    GenerateSpec,
    generate,
    training_data_for,
)
from elastrec.platform.data.manifest import build_manifest
from elastrec.platform.data.reading.reader import ShardReader
from elastrec.platform.specs.errors import DataError

_SMALL = {"rows_per_day": 4_000, "dense": 4, "sparse": 6, "seed": 3}


def _spec(path: Path, **more: object) -> GenerateSpec:
    return GenerateSpec.model_validate({"path": str(path), **_SMALL, **more})


def _digests(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in root.rglob("part-*")}


@pytest.mark.parametrize("format", ["parquet", "csv", "criteo_tsv"])
def test_the_same_seed_writes_the_same_bytes_and_another_one_others(tmp_path: Path, format: str) -> None:
    more = {"format": format, **({"dense": 13, "sparse": 26, "lists": 0} if format == "criteo_tsv" else {})}
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        generate(_spec(tmp_path / name, seed=seed, **more))
    assert _digests(tmp_path / "a") == _digests(tmp_path / "b")
    assert set(_digests(tmp_path / "a").values()).isdisjoint(_digests(tmp_path / "c").values())


def test_every_format_holds_the_same_rows(tmp_path: Path) -> None:
    shape = {"dense": 13, "sparse": 26, "lists": 0, "days": 1, "rows_per_day": 1_000}
    batches = []
    for format in ("parquet", "csv", "criteo_tsv"):
        spec = _spec(tmp_path / format, format=format, **shape)
        generate(spec)
        of = training_data_for(spec)
        batches.append(next(ShardReader(of, build_manifest(of)).read(0, 1_000, seed=0, shuffle=True, batch_size=1_000)))
    assert batches[0] == batches[1] == batches[2]


def test_lists_are_unchanged_in_csv(tmp_path: Path) -> None:
    columns = []
    for format in ("parquet", "csv"):
        spec = _spec(tmp_path / format, format=format, days=1, lists=2)
        generate(spec)
        of = training_data_for(spec)
        reader = ShardReader(of, build_manifest(of))
        columns.append(next(reader.read(0, 500, seed=0, shuffle=False, batch_size=500)).column("L2"))
    assert columns[0] == columns[1]


def test_a_complete_log_is_not_changed_and_a_longer_one_is_continued(tmp_path: Path) -> None:
    first = generate(_spec(tmp_path / "a", days=1))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "a").rglob("part-*")}
    seen: list[tuple[int, int]] = []
    longer = generate(_spec(tmp_path / "a", days=2), progress=lambda done, total: seen.append((done, total)))
    assert longer.days[:1] == first.days and longer.rows == 8_000
    assert seen[0] == (4_000, 8_000) and seen[-1] == (8_000, 8_000)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    stored = read_report(str(tmp_path / "a"), RECORD_NAME, GenerateReport)
    assert generate(_spec(tmp_path / "a", days=2)) == longer == stored


def test_other_data_is_never_overwritten(tmp_path: Path) -> None:
    generate(_spec(tmp_path / "a", days=1))
    with pytest.raises(DataError, match=r"generated with another spec\.seed 3 \(now 9\)"):
        generate(_spec(tmp_path / "a", days=1, seed=9))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine.txt").write_text("x")
    with pytest.raises(DataError, match="were not generated"):
        generate(_spec(tmp_path / "b"))


def test_hours_hold_their_own_moments_in_order(tmp_path: Path) -> None:
    spec = _spec(tmp_path, days=1, partitioning="hour", start=date(2026, 2, 28))
    assert generate(spec).rows == 4_000
    manifest = build_manifest(training_data_for(spec))
    assert len(manifest.partitions) == 24 and manifest.rows == 4_000
    times = pq.read_table(manifest.files[7].uri)["timestamp"].to_numpy()
    start = int(np.datetime64("2026-02-28T07:00:00", "s").astype(int))
    assert times.min() >= start and times.max() < start + 3600
    assert np.all(np.diff(times) >= 0)


def test_rows_of_a_session_share_their_user(tmp_path: Path) -> None:
    generate(_spec(tmp_path, days=1))
    rows = pq.read_table(tmp_path / "day=2026-01-01" / "part-00000.parquet").to_pandas()
    sessions = rows.groupby("session_id")
    assert 3.5 < len(rows) / len(sessions) < 4.6
    assert sessions[["C1", "C2", "I1"]].nunique().max().max() == 1
    assert sessions["L1"].agg(lambda lists: len({tuple(ids) for ids in lists})).max() == 1
    assert sessions["C3"].nunique().max() > 1


def test_ids_follow_zipf_and_the_vocabulary_keeps_growing(tmp_path: Path) -> None:
    spec = _spec(tmp_path, days=2, rows_per_day=CHUNK_ROWS)
    generate(spec)
    days = [
        pq.read_table(tmp_path / f"day=2026-01-0{day}" / "part-00000.parquet", columns=["C6"])["C6"].drop_null()
        for day in (1, 2)
    ]
    first, both = len(days[0].unique()), len(pa.chunked_array(days[0].chunks + days[1].chunks).unique())
    assert both > 1.2 * first
    counts = np.sort(days[0].value_counts().field("counts").to_numpy())[::-1]
    assert counts[0] > 5 * counts[20] > 5 * counts[400]


def test_observed_labels_omit_clicks_after_the_end_of_the_partition(tmp_path: Path) -> None:
    shared = {"days": 1, "partitioning": "hour", "delay_seconds": 1800.0}
    final = generate(_spec(tmp_path / "f", **shared))
    observed = generate(_spec(tmp_path / "o", labels="observed", **shared))
    assert observed.days[0].positives < 0.8 * final.days[0].positives
    rows = pq.read_table(tmp_path / "o" / "day=2026-01-01" / "hour=05").to_pandas()
    clicks = rows[rows.label == 1]
    assert (clicks.timestamp % 3600 + clicks.label_delay_seconds <= 3600).all()
    assert (rows[rows.label == 0].label_delay_seconds == 0).all()


def test_the_truth_reaches_the_requested_auc_and_a_linear_model_is_close(tmp_path: Path) -> None:
    spec = _spec(tmp_path, days=2, rows_per_day=60_000, dense=4, sparse=8, lists=0, best_auc=0.82, click_rate=0.2)
    report = generate(spec)
    best = report.days[1].best_auc
    assert best == pytest.approx(0.82, abs=0.01)
    assert report.days[0].positives / 60_000 == pytest.approx(0.2, abs=0.01)
    of = training_data_for(spec)
    reader = ShardReader(of, build_manifest(of), hash_sizes=dict.fromkeys(of.tables, 512))

    def rows(start: int) -> tuple[object, np.ndarray]:
        from scipy.sparse import csr_matrix, hstack

        from elastrec.platform.data.reading.batches import dense_of, ids_of, targets_of

        batch = next(reader.read(start, 60_000, seed=0, shuffle=False, batch_size=60_000))
        ids_FB = ids_of(batch).values.reshape(8, -1) + 512 * np.arange(8)[:, None]
        ones = np.ones(ids_FB.size)
        hot = csr_matrix((ones, (np.tile(np.arange(60_000), 8), ids_FB.ravel())), shape=(60_000, 4096))
        return hstack([hot, dense_of(batch)]).tocsr(), targets_of(batch)[:, 0]

    model = LogisticRegression(C=0.1, solver="liblinear").fit(*rows(0))
    features, labels = rows(60_000)
    auc = roc_auc_score(labels, model.decision_function(features))
    assert best - 0.07 < auc < best


def test_a_criteo_layout_with_other_columns_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="13 dense, 26 sparse and 0 list"):
        _spec(tmp_path, format="criteo_tsv")
