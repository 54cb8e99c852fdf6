"""The inspection of steps: in order, with their figures, and with the rows on which they run."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elastrec.platform.data.clustering.inspection import inspect_data
from elastrec.platform.data.features.inspection import FeatureSteps, sample_steps
from elastrec.platform.data.manifest import build_manifest
from elastrec.platform.specs.data import TrainingData
from elastrec.platform.specs.errors import DataError

ROWS, SESSION = 60, 6


@pytest.fixture
def log(tmp_path: Path) -> TrainingData:
    """Sessions of six rows with one history each; the price changes with every row and is missing in each fifth."""
    table = pa.table(
        {
            "label": [number % 2 for number in range(ROWS)],
            "visit": [number // SESSION for number in range(ROWS)],
            "price": [None if number % 5 == 0 else float(number) for number in range(ROWS)],
            "town": [["Ulm", "Bonn", None][number % 3] for number in range(ROWS)],
            "shop": ["ab"[number % 2] for number in range(ROWS)],
            "seen": [[] if number < SESSION else list(range(number // SESSION, 12)) for number in range(ROWS)],
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    (tmp_path / "towns.txt").write_text("Ulm\nBonn\n")
    return TrainingData.model_validate(
        {
            "path": str(tmp_path), "include": ["*.parquet"], "partitioning": "none", "session": "visit",
            "dense": [{"name": "price"}, {"name": "age", "column": "price"}, {"name": "gap", "column": "price"}],
            "sparse": [
                {"name": "town", "encoding": "string"},
                {"name": "town_and_shop", "encoding": "string"},
                {"name": "seen", "is_list": True, "max_length": 3},
            ],
            "features": {
                "price": [{"step": "clip", "low": 0, "high": 40}, {"step": "standardize"}],
                "gap": [{"step": "missing_indicator"}],
                "town": [{"step": "vocabulary", "file": str(tmp_path / "towns.txt")}],
                "town_and_shop": [{"step": "cross", "columns": ["town", "shop"]}, {"step": "hash", "size": 10}],
            },
        }
    )  # fmt: skip


def _found(log: TrainingData) -> dict[str, FeatureSteps]:
    return {each.name: each for each in sample_steps(log, build_manifest(log), ROWS)}


def test_steps_are_shown_in_order_with_short_forms_defaults_and_fitted_figures(log: TrainingData) -> None:
    found = _found(log)
    assert list(found) == ["price", "age", "gap", "town", "town_and_shop", "seen"]
    # 32 prices below 40, fives left out, whose sum is 640; then 16 times 40.
    clip, standardize = found["price"].steps
    assert clip == "clip(low=0, high=40)" and standardize.startswith("standardize(mean=26.6667, scale=")
    assert found["price"].is_fitted and not any(each.is_fitted for name, each in found.items() if name != "price")
    assert found["age"].steps == ("fill_null(value=0)", "log1p")
    assert found["town"].steps == ("vocabulary(values=(Ulm, Bonn))",)
    assert found["town_and_shop"].steps == ("cross(columns=(town, shop))", "hash(size=10)")
    assert found["seen"].steps == ("keep_last(count=3)",)


def test_missing_and_distinct_values_are_counted_before_and_after_the_steps(log: TrainingData) -> None:
    found = _found(log)
    # 48 prices; after the steps 16 of them are one, and what is missing is 0.
    assert (found["price"].missing, found["price"].distinct_before, found["price"].distinct) == (0.2, 48, 34)
    # Filled with 0, which is a price of its own after log1p.
    assert (found["age"].missing, found["age"].distinct_before, found["age"].distinct) == (0.2, 48, 49)
    assert (found["gap"].missing, found["gap"].distinct_before, found["gap"].distinct) == (0.2, None, 2)
    # A missing town is an id of its own.
    assert (found["town"].missing, found["town"].distinct_before, found["town"].distinct) == (1 / 3, 2, 3)
    cross = found["town_and_shop"]
    assert (cross.columns, cross.missing, cross.distinct_before) == (("town", "shop"), None, None)
    assert 2 <= cross.distinct <= 6
    assert (found["seen"].missing, found["seen"].distinct_before, found["seen"].distinct) == (0.1, 11, 3)
    assert {each.rows for each in found.values()} == {ROWS}


def test_steps_of_a_deduplicated_feature_run_on_the_distinct_rows_of_each_batch(log: TrainingData) -> None:
    facts = inspect_data(log, build_manifest(log), batch_rows=ROWS // 2, computed_pooling=frozenset({"seen"}))
    rows = {each.name: each.rows for each in facts.steps}
    assert facts.proposal.groups == (("seen",),)
    assert rows == dict.fromkeys(rows, ROWS) | {"seen": ROWS // SESSION}


def test_an_error_that_ends_a_job_at_its_start_ends_the_inspection(log: TrainingData) -> None:
    with pytest.raises(DataError, match=r"data\.features\.price: found the value 0 only in 60 rows"):
        _found(log.model_copy(update={"features": {**log.features, "price": _clipped_to_nothing()}}))
    Path(log.path, "towns.txt").write_text("Ulm\nUlm\n")
    with pytest.raises(DataError, match=r"data\.features\.town: the vocabulary .*occur more than once"):
        _found(log)


def _clipped_to_nothing() -> object:
    steps = [{"step": "clip", "low": 0, "high": 0}, {"step": "standardize"}]
    return TrainingData.model_validate(
        {"path": "x", "dense": [{"name": "price"}], "sparse": [{"name": "a"}], "features": {"price": steps}}
    ).features["price"]
