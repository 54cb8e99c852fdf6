"""With feature steps, the exported model encodes raw rows exactly as the trainer does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlflow
import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.platform.data.manifest import build_manifest
from elastrec.platform.data.reading.reader import ShardReader
from elastrec.platform.specs.data import TrainingData
from elastrec.trainers.export.process import export
from elastrec.trainers.export.requests import table_of
from elastrec.trainers.export.scorer import PyfuncModel, Scorer
from elastrec.trainers.export.signature import described_inputs, raw_frame
from elastrec.trainers.worker.predictions import read_predictions
from tests.trainers.export.conftest import ROWS, FinishedJob, build, raw_rows

SECTION: dict[str, Any] = {
    "dense": [{"name": "price"}, {"name": "no_price", "column": "price"}, {"name": "no_user", "column": "user"}],
    "sparse": [
        {"name": "user"},
        {"name": "city", "encoding": "string"},
        {"name": "device", "encoding": "hexadecimal"},
        {"name": "history", "is_list": True},
        {"name": "range", "column": "price"},
        {"name": "city_and_range", "encoding": "string"},
    ],
    "features": {
        "price": [
            {"step": "clip", "low": 0, "high": 9.5}, {"step": "log1p"},
            {"step": "standardize", "mean": 1.5, "scale": 0.7},
        ],
        "no_price": [{"step": "missing_indicator"}],
        "no_user": [{"step": "missing_indicator"}],
        "user": [{"step": "hash", "size": 30, "seed": 5}],
        "city": [{"step": "fill_null", "value": "c3"}, {"step": "vocabulary", "values": ["c1", "c2", "c3", "c4"]}],
        "history": [{"step": "keep_first", "count": 2}, {"step": "fill_null", "value": 7}],
        "range": [{"step": "bucketize", "boundaries": [0, 2.5, 5, 9]}],
        "city_and_range": [{"step": "cross", "columns": ["city", "range"]}, {"step": "hash", "size": 40}],
    },
}  # fmt: skip


def _data(folder: Path) -> TrainingData:
    return TrainingData.model_validate({"path": str(folder), "partitioning": "none", **SECTION})


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[FinishedJob, str]:
    """A job with steps, and the folder of its exported model."""
    folder = tmp_path_factory.mktemp("steps")
    (folder / "data").mkdir()
    pq.write_table(raw_rows(1, ROWS), folder / "data" / "part-0.parquet", row_group_size=70)
    finished = build(folder, data=_data(folder / "data"))
    export(msgspec.structs.replace(finished.request, artifact_uri=str(folder / "model")), folder)
    return finished, str(folder / "model")


@pytest.fixture(scope="module")
def scorer(exported: tuple[FinishedJob, str]) -> Scorer:
    model = mlflow.pyfunc.load_model(exported[1]).get_raw_model()
    assert isinstance(model, Scorer)
    return model


def test_predictions_of_the_loaded_model_equal_the_trainers(exported: tuple[FinishedJob, str]) -> None:
    finished, folder = exported
    loaded = mlflow.pyfunc.load_model(folder)
    trained = np.concatenate([item.prediction[:, 0] for item in read_predictions(finished.request.predictions_uri)])
    assert len(np.unique(trained)) > ROWS // 4
    as_read = finished.raw.drop_columns(["label"]).to_pandas()
    for frame in (raw_frame(finished.job.spec.data, finished.raw), as_read):
        np.testing.assert_allclose(loaded.predict(frame)["probability"], trained, atol=1e-6)


_row = st.fixed_dictionaries(
    {
        "price": st.none() | st.floats(-1e9, 1e9) | st.integers(-2, 12).map(float),
        "user": st.none() | st.integers(0, 2**52) | st.integers(0, 40),
        "city": st.none() | st.sampled_from(["c1", "c3", "c9", "Ulm"]),
        "device": st.none() | st.integers(0, 2**64 - 1).map(lambda number: f"{number:x}"),
        "history": st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4),
    }
)
_TYPES = {
    "price": pa.float64(), "user": pa.int64(), "city": pa.string(), "device": pa.string(),
    "history": pa.list_(pa.int64()),
}  # fmt: skip


@given(st.lists(_row, min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_raw_rows_are_encoded_as_in_training_to_the_last_bit(
    scorer: Scorer, tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]
) -> None:
    log = pa.Table.from_pylist(rows, schema=pa.schema(list(_TYPES.items())))
    folder = tmp_path_factory.mktemp("rows")
    pq.write_table(log.append_column("label", pa.array([0] * len(rows))), folder / "a.parquet")
    data = _data(folder)
    reader = ShardReader(data, build_manifest(data), hash_sizes={"city": 5})
    (trained,) = reader.read(0, len(rows), seed=0, shuffle=False, batch_size=len(rows))
    trained = trained.drop_columns(["label"])
    # As a table, as a frame that the model's own example shows, as pandas reads the file, and as JSON over HTTP has it.
    frames = [raw_frame(data, log), log.to_pandas(), pd.DataFrame(json.loads(json.dumps(rows)))]
    served = [scorer.score(log), *(scorer.score(table_of(frame)) for frame in frames)]
    for found in served:
        assert not found.bad.any()
        assert found.batch.equals(trained)
        assert np.array_equal(np.asarray(found.batch["dense"].values), np.asarray(trained["dense"].values))
    # Alone, a row is encoded as among others.
    model = PyfuncModel(scorer)
    together = model.predict(frames[0])["probability"]
    alone = [model.predict(frames[0].iloc[[row]])["probability"].iloc[0] for row in range(len(rows))]
    np.testing.assert_allclose(alone, together, atol=1e-6)


def test_the_models_metadata_describes_the_raw_columns() -> None:
    inputs = described_inputs(_data(Path("x")))
    assert inputs == {
        "price": "a number, or empty",
        "user": "a 64-bit id, or empty",
        "city": "text, or empty",
        "device": "1 to 16 hexadecimal digits, or empty",
        "history": "a list of a 64-bit id",
    }
