"""Each row of a request is checked independently of the others, also in MLflow's server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlflow
import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from fastapi.testclient import TestClient
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from mlflow.pyfunc import scoring_server

from elastrec.platform.data.convert import ByRows, convert
from elastrec.platform.specs.data import TrainingData
from elastrec.platform.specs.errors import DataError, MissingColumnError
from elastrec.trainers.export.process import export
from elastrec.trainers.export.requests import table_of
from tests.trainers.export.conftest import ROWS as LOG_ROWS
from tests.trainers.export.conftest import build, parquet_log, raw_rows

GOOD = {"price": 3.5, "user": 7, "city": "c1", "device": "0000002a", "history": [1, 2]}
# pandas makes floats of a column of whole numbers with a hole, which are exact to here.
WHOLE = st.integers(-(2**53), 2**53)
SCALARS = st.none() | st.booleans() | WHOLE | st.floats(allow_nan=False) | st.text(max_size=3)
VALUES = SCALARS | st.sampled_from(["12", "ff", "1|2", 2**64]) | st.lists(SCALARS, max_size=3) | st.just({"a": 1})
ROWS = st.fixed_dictionaries({name: st.just(value) | VALUES for name, value in GOOD.items()})


@pytest.fixture(scope="module")
def served(finished, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The exported model as MLflow loads it."""
    folder = tmp_path_factory.mktemp("served")
    export(msgspec.structs.replace(finished.request, artifact_uri=str(folder / "model")), folder)
    return mlflow.pyfunc.load_model(str(folder / "model"))


@settings(max_examples=40, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(st.lists(ROWS, min_size=1, max_size=6))
def test_the_answer_for_a_row_does_not_depend_on_the_others(served: Any, rows: list[dict[str, Any]]) -> None:
    together = served.predict(pd.DataFrame([*rows, GOOD]))
    alone = [served.predict(pd.DataFrame([row])).iloc[0] for row in [*rows, GOOD]]
    assert together["is_bad"].tolist() == [row["is_bad"] for row in alone]
    assert not together["is_bad"].iloc[-1]
    np.testing.assert_allclose(together["probability"], [row["probability"] for row in alone], atol=1e-6)
    assert together["probability"].isna().tolist() == together["is_bad"].tolist()
    assert together["reason"].notna().tolist() == together["is_bad"].tolist()


def test_a_value_of_another_type_is_named_and_affects_only_its_row(served: Any) -> None:
    wrong = [{"price": "dear"}, {"city": 5}, {"history": [1, "one"]}, {"device": {"id": 1}}, {"user": 2**70}]
    right = [{}, {"price": None}, {"price": "3.5"}, {"city": None}, {"history": None}]
    answer = served.predict(pd.DataFrame([GOOD | change for change in (*wrong, *right)]))
    assert answer["is_bad"].tolist() == [True] * 5 + [False] * 5
    for reason, words in zip(
        answer["reason"],
        ("column 'price': found 'dear', expected a finite number", "column 'city': found int64, expected text",
         "column 'history'", "column 'device': found struct", "column 'user'"),
        strict=False,
    ):  # fmt: skip
        assert words in reason
    assert answer["probability"][7] == answer["probability"][5]


@pytest.mark.parametrize("converted", [False, True], ids=["text", "converted"])
def test_texts_that_count_as_missing_in_the_log_do_so_in_requests(tmp_path: Path, converted: bool) -> None:
    raw = raw_rows(1, LOG_ROWS)
    data = parquet_log(tmp_path, raw)
    frame = raw.to_pandas().assign(history=["|".join(map(str, ids)) for ids in raw["history"].to_pylist()])
    frame["user"] = frame["user"].astype("Int64")
    (file,) = (tmp_path / "data").iterdir()
    file.unlink()
    frame.to_csv(tmp_path / "data" / "log.csv", index=False, na_rep="NA")
    changes = {"format": "csv", "csv": {"null_tokens": ["NA", "none"], "list_separator": "|"}}
    data = TrainingData.model_validate(data.model_dump(by_alias=True) | changes)
    if converted:
        data = convert(data, str(tmp_path / "converted"), layout=ByRows(rows=LOG_ROWS)).data
    finished = build(tmp_path, data=data)
    (tmp_path / "work").mkdir()
    result = export(msgspec.structs.replace(finished.request, artifact_uri=str(tmp_path / "model")), tmp_path / "work")
    assert result.checked_rows == LOG_ROWS
    model = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    for name in GOOD:
        rows = pd.DataFrame([GOOD | {name: token} for token in (None, "", "NA", "none", GOOD[name])])
        answers = model.predict(rows)
        assert not answers["is_bad"].any(), answers["reason"].tolist()
        assert answers["probability"][:4].nunique() == 1, name
    assert model.predict(pd.DataFrame([GOOD | {"city": "other"}]))["is_bad"].tolist() == [False]


def test_columns_that_the_model_does_not_read_may_hold_anything(served: Any) -> None:
    rows = pd.DataFrame([GOOD | {"note": value} for value in (2**64, "text", {"a": 1}, None)])
    rows.insert(0, "twice", 1)
    rows.insert(0, "twice", 2, allow_duplicates=True)
    answers = served.predict(rows)
    assert not answers["is_bad"].any() and answers["probability"].nunique() == 1


def test_a_column_without_values_has_only_empty_fields(served: Any) -> None:
    rows = pd.DataFrame([GOOD, GOOD])
    empty = rows.assign(city=np.nan, device=None)
    answer = served.predict(empty)
    assert not answer["is_bad"].any() and answer["probability"].notna().all()
    with pytest.raises(MissingColumnError, match="column 'city' is missing"):
        served.predict(rows.drop(columns="city").assign(price=["dear", 1.0]))


def test_mlflows_server_answers_each_row_in_strict_json(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_MLFLOW_IS_IN_SERVING_ENVIRONMENT", "true")  # the server sets it and leaves it
    rows = [GOOD, GOOD | {"device": "no id"}, GOOD | {"price": "dear"}, GOOD | {"price": None}]
    client = TestClient(scoring_server.init(served))
    response = client.post("/invocations", json={"dataframe_records": rows})
    assert response.status_code == 200

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    answers = json.loads(response.text, parse_constant=refuse)["predictions"]
    assert [answer["is_bad"] for answer in answers] == [False, True, True, False]
    assert [answer["probability"] is None for answer in answers] == [False, True, True, False]
    assert "'no id'" in answers[1]["reason"] and "'dear'" in answers[2]["reason"]
    monkeypatch.delenv("_MLFLOW_IS_IN_SERVING_ENVIRONMENT")
    wanted = served.predict(pd.DataFrame([rows[0], rows[3]]))["probability"]
    assert [answers[0]["probability"], answers[3]["probability"]] == pytest.approx(wanted.tolist())
    refused = client.post("/invocations", json={"dataframe_records": [{"price": 1.0}]})
    assert refused.status_code >= 400 and "is missing" in refused.text


def test_a_request_becomes_the_table_that_arrow_makes_of_a_frame() -> None:
    rows = pd.DataFrame(
        {
            "float": [1.5, np.nan], "whole": np.array([1, 2], np.int8), "holes": pd.array([1, None], "Int64"),
            "text": ["a", None], "object": pd.Series(["a", None], dtype=object), "lists": [[1, 2], None],
            "arrays": [np.arange(2), np.arange(3)], "flag": [True, False], "kind": pd.Categorical(["x", "y"]),
            "time": pd.to_datetime(["2026-01-01", "2026-01-02"], utc=True), "nothing": [None, None], 7: [b"a", b"b"],
        },
        index=[5, 5],
    )  # fmt: skip
    expected = pa.Table.from_pandas(rows, preserve_index=False).replace_schema_metadata(None)
    assert table_of(rows).equals(expected, check_metadata=True)
    assert table_of(rows.iloc[:0]).schema == pa.Table.from_pandas(rows.iloc[:0], preserve_index=False).schema


def test_a_duplicate_column_is_refused_by_name() -> None:
    rows = pd.DataFrame([[1, 2]], columns=["user", "user"])
    with pytest.raises(DataError, match="column 'user' is there twice"):
        table_of(rows)
