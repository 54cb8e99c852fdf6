"""Fitted figures of steps equal those of all training rows for any partition, and are fitted only if the model has
none.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.platform.data.features import fitting
from elastrec.platform.data.features.fitting import Moments, fit, unfitted_features, with_vocabularies
from elastrec.platform.data.manifest import build_manifest
from elastrec.platform.data.reading.encode import RowEncoder
from elastrec.platform.data.reading.source import reader_of
from elastrec.platform.specs.data import TrainingData
from elastrec.platform.specs.errors import DataError
from elastrec.platform.specs.features import Standardize, Steps, Vocabulary
from elastrec.platform.specs.job import JobSpec, ModelSpec

STEPS = [{"step": "clip", "low": 0}, {"step": "log1p"}, {"step": "standardize"}]


def _data(folder: Path, price: list[float | None] | None = None, **more: object) -> TrainingData:
    if price is not None:
        table = pa.table(
            {"label": [0] * len(price), "price": pa.array(price, pa.float64()), "town": ["Ulm"] * len(price)}
        )
        pq.write_table(table, folder / "a.parquet", row_group_size=7)
    section: dict[str, object] = {
        "dense": [{"name": "price"}], "sparse": [{"name": "town", "encoding": "string"}], "features": {"price": STEPS},
    }  # fmt: skip
    return TrainingData.model_validate({"path": str(folder), "partitioning": "none", **section, **more})


def _standardize(steps: Steps) -> Standardize:
    [found] = [step for step in steps if isinstance(step, Standardize)]
    return found


@given(st.lists(st.lists(st.floats(-1e6, 1e6), max_size=5), max_size=6))
@settings(max_examples=200, deadline=None)
def test_moments_of_pieces_are_those_of_all_numbers(pieces: list[list[float]]) -> None:
    moments = Moments()
    for piece in pieces:
        moments.add(np.array(piece, np.float64))
    whole = np.array([number for piece in pieces for number in piece])
    assert moments.count == len(whole)
    if len(whole):
        assert moments.mean == pytest.approx(whole.mean(), rel=1e-9, abs=1e-9)
        assert moments.deviation == pytest.approx(whole.std(), rel=1e-6, abs=1e-6)


def test_a_feature_is_fitted_on_the_output_of_earlier_steps_without_missing_rows(tmp_path: Path) -> None:
    price = [None, -3.0, *map(float, range(40))]
    data = _data(tmp_path, price)
    found = fit(data, build_manifest(data))
    fitted = _standardize(found.features["price"])
    values = np.log1p(np.clip([value for value in price if value is not None], 0, None))
    assert fitted.mean == pytest.approx(values.mean(), rel=1e-12)
    assert fitted.scale == pytest.approx(values.std(), rel=1e-12)
    dense = np.asarray(RowEncoder(found).encode(pq.read_table(tmp_path / "a.parquet")).batch["dense"].values)
    assert dense[0] == 0, "the mean stands for what is missing"
    assert dense[1:].mean() == pytest.approx(0, abs=1e-6) and dense[1:].std() == pytest.approx(1, rel=1e-6)


def test_a_feature_keeps_the_figures_of_the_model_that_is_continued(tmp_path: Path) -> None:
    data = _data(tmp_path, [1.0, 2.0, 3.0])
    manifest = build_manifest(data)
    first = fit(data, manifest)
    other = _data(tmp_path, [100.0, 200.0, 500.0])
    assert fit(other, build_manifest(other), first.features) == first
    # With other steps before it, the old mean is the mean of something else.
    changed = _data(tmp_path, features={"price": STEPS[1:]})
    refitted = fit(changed, build_manifest(changed), first.features)
    assert _standardize(refitted.features["price"]) != _standardize(first.features["price"])


def test_a_large_log_is_fitted_on_blocks_spread_evenly_over_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = _data(tmp_path, [float(number) for number in range(1000)], features={"price": [{"step": "standardize"}]})
    monkeypatch.setattr(fitting, "FIT_ROWS", 100)
    monkeypatch.setattr(fitting, "_BLOCK_ROWS", 10)
    figures = _standardize(fit(data, build_manifest(data)).features["price"])
    assert figures.mean == pytest.approx(499.5, abs=1)
    assert figures.scale == pytest.approx(288.7, rel=0.15)


@pytest.mark.parametrize(
    ("price", "found"),
    [
        ([None, None], "no value at all"),
        ([3.0, None, 3.0], r"the value 1\.38629 only"),
        # Their computed mean is another number.
        ([1.1] * 7, r"the value 0\.741937 only"),
    ],
)
def test_a_feature_that_leaves_nothing_to_fit_is_refused(tmp_path: Path, price: list[float | None], found: str) -> None:
    data = _data(tmp_path, price)
    with pytest.raises(DataError, match=rf"data\.features\.price: found {found}.*give the step mean and scale"):
        fit(data, build_manifest(data))


def test_numbers_that_are_too_large_to_standardize_are_refused(tmp_path: Path) -> None:
    data = _data(tmp_path, [1e200, -1e308, 1e308], features={"price": STEPS[2:]})
    with pytest.raises(DataError, match=r"data\.features\.price: found numbers whose squares are beyond float64"):
        fit(data, build_manifest(data))


def test_a_job_that_was_not_fitted_is_not_read(tmp_path: Path) -> None:
    data = _data(tmp_path, [1.0, 2.0])
    spec = JobSpec(model=ModelSpec(architecture="dlrm"), data=data)
    assert unfitted_features(data) == ["price"]
    with pytest.raises(DataError, match=r"'price'.*not fitted"):
        reader_of(spec, build_manifest(data))


def _vocabulary(folder: Path, content: bytes, encoding: str = "string") -> TrainingData:
    (folder / "words.txt").write_bytes(content)
    steps = [{"step": "vocabulary", "file": str(folder / "words.txt"), "out_of_vocabulary": 9}]
    sparse = [{"name": "town", "encoding": encoding}]
    return with_vocabularies(_data(folder, sparse=sparse, features={"town": steps}))


def test_the_values_of_a_vocabulary_file_are_written_into_the_job(tmp_path: Path) -> None:
    [step] = _vocabulary(tmp_path, "Ulm\r\nKöln\n".encode()).features["town"]
    assert step == Vocabulary(step="vocabulary", values=("Ulm", "Köln"), out_of_vocabulary=9)
    [step] = _vocabulary(tmp_path, "a\u2028b\rc\x0cd\x85".encode()).features["town"]
    assert step == Vocabulary(step="vocabulary", values=("a\u2028b", "c\x0cd\x85"), out_of_vocabulary=9)
    [step] = _vocabulary(tmp_path, b"5\n-7\n", "integer").features["town"]
    assert step == Vocabulary(step="vocabulary", values=(5, -7), out_of_vocabulary=9)


@pytest.mark.parametrize(
    ("content", "encoding", "message"),
    [
        (b"", "string", "has 0 lines"),
        (b"a\n\nb\n", "string", "empty line 2"),
        (b"a\nb\na\n", "string", r"the values \['a'\] occur more than once"),
        (b"5\nfive\n", "integer", "no whole number"),
        ("Köln".encode("latin-1"), "string", "no UTF-8"),
    ],
)
def test_a_vocabulary_file_that_is_unusable_is_refused(
    tmp_path: Path, content: bytes, encoding: str, message: str
) -> None:
    with pytest.raises(DataError, match=rf"data\.features\.town: the vocabulary .*words\.txt.*{message}"):
        _vocabulary(tmp_path, content, encoding)
