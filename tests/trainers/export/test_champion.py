"""The champion of a comparison: its own code, and only the columns that it needs."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import mlflow
import mlflow.artifacts
import msgspec
import pyarrow as pa
import pytest
import requests

from elastrec.platform.specs.data import TrainingData
from elastrec.platform.specs.errors import DataError, HistoryError
from elastrec.platform.transport.messages.export import ExportResult
from elastrec.trainers.export.comparison import Champion
from elastrec.trainers.export.process import export
from tests.trainers.export.conftest import ROWS, FinishedJob, build, parquet_log, raw_rows

NETWORK = """
import torch
from torch import nn

from users_network.sign import SIGN


class Network(nn.Module):
    def __init__(self, embedding_bag_collection, schema):
        super().__init__()
        self.embedding_bag_collection = embedding_bag_collection
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, dense_features, sparse_features):
        from users_network.late import factor

        sums = self.embedding_bag_collection(sparse_features).values().sum(1)
        return SIGN * factor() * self.weight * sums
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Puts a version of the user's package on the path, in place of the one before."""
    monkeypatch.setattr(sys, "path", list(sys.path))

    def forget() -> None:
        for name in [name for name in sys.modules if name.partition(".")[0] == "users_network"]:
            del sys.modules[name]

    def write(version: str, *, sign: int, factor: int) -> None:
        package = tmp_path / version / "users_network"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(NETWORK)
        (package / "sign.py").write_text(f"SIGN = {sign}\n")
        (package / "late.py").write_text(f"def factor():\n    return {factor}\n")
        forget()
        sys.path.insert(0, str(package.parent))
        importlib.invalidate_caches()

    yield write
    forget()


def exported(finished: FinishedJob, folder: Path, champion: Path | None = None) -> ExportResult:
    """The result of the evaluator; the model is written to `folder / "model"`."""
    work = folder / "work"
    work.mkdir()
    return export(
        msgspec.structs.replace(
            finished.request,
            artifact_uri=str(folder / "model"),
            champion_model_uri=str(champion / "model") if champion else "",
        ),
        work,
    )


def test_a_champion_is_scored_by_its_own_version_of_the_users_code(tmp_path: Path, install: Install) -> None:
    first, second, again = (tmp_path / name for name in ("first", "second", "again"))
    for folder in (first, second, again):
        folder.mkdir()
    install("v1", sign=1, factor=1)
    champion = exported(build(first, "users_network:Network"), first).challenger
    install("v2", sign=-1, factor=3)
    result = exported(build(second, "users_network:Network"), second, champion=first)
    assert result.champion_problem == ""
    assert result.champion == champion
    assert result.challenger != champion
    # The champion's code is gone again: the next model is built with that of the challenger.
    assert sys.modules["users_network.sign"].SIGN == -1
    assert exported(build(again, "users_network:Network"), again).challenger == result.challenger


@pytest.fixture(scope="module")
def champion(finished: FinishedJob, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model of `finished`, for tests that do not change it."""
    folder = tmp_path_factory.mktemp("champion")
    exported(finished, folder)
    return folder


def response(status: int) -> requests.HTTPError:
    answer = requests.Response()
    answer.status_code = status
    return requests.HTTPError(f"{status} from the artifact store", response=answer)


@pytest.mark.parametrize("error", [OSError("no space left"), Exception("of a store"), response(503)], ids=str)
def test_without_the_champion_for_the_moment_nothing_is_compared(
    finished: FinishedJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fetch(**arguments: str) -> str:
        raise error

    monkeypatch.setattr(mlflow.artifacts, "download_artifacts", fetch)
    with pytest.raises(HistoryError, match="first/model: the model could not be fetched"):
        exported(finished, tmp_path, champion=Path("first"))


def test_a_champion_that_was_deleted_is_named(
    finished: FinishedJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(**arguments: str) -> str:
        raise response(404)

    monkeypatch.setattr(mlflow.artifacts, "download_artifacts", fetch)
    assert "404" in exported(finished, tmp_path, champion=Path("first")).champion_problem


def unreadable() -> DataError:
    error = DataError("part-0.parquet cannot be read")
    error.__cause__ = OSError("connection lost")
    return error


@pytest.mark.parametrize("error", [MemoryError(), unreadable()], ids=["memory", "file"])
def test_a_champion_is_not_passed_over_for_want_of_memory_or_files(
    finished: FinishedJob, champion: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:

    def score(self: Champion, *values: object) -> None:
        raise error

    monkeypatch.setattr(Champion, "score", score)
    with pytest.raises(type(error)):
        exported(finished, tmp_path, champion=champion)


@pytest.mark.parametrize("unusable", [0, 1, 3, 4])
def test_models_are_compared_on_the_rows_that_both_can_use(champion: Path, tmp_path: Path, unusable: int) -> None:
    raw = raw_rows(1, ROWS)
    prices = raw["price"].to_pylist()
    text = pa.array(["dear" if row < unusable else str(price or 0.0) for row, price in enumerate(prices)])
    data = parquet_log(tmp_path, raw.set_column(raw.column_names.index("price"), "price", text))
    data = data.model_copy(update={"dense": ()})
    result = exported(build(tmp_path, "wide_and_deep", data=data), tmp_path, champion=champion)
    assert result.challenger is not None
    if unusable > 3:  # one in a hundred of 300 rows
        assert result.champion is None and result.champion_problem == f"it cannot use {unusable} of the {ROWS} rows"
        assert result.challenger.samples == ROWS
    else:
        assert result.champion is not None and result.champion_problem == ""
        assert result.challenger.samples == result.champion.samples == ROWS - unusable


@pytest.mark.parametrize("is_text", [False, True], ids=["parquet", "csv"])
def test_a_champion_is_compared_if_its_label_is_gone(tmp_path: Path, is_text: bool) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    champion = exported(build(first, data=a_log(first, "label", is_text)), first).challenger
    result = exported(build(second, data=a_log(second, "clicked", is_text)), second, champion=first)
    assert result.champion_problem == ""
    assert result.champion == champion


def a_log(folder: Path, label: str, is_text: bool) -> TrainingData:
    raw = raw_rows(1, ROWS).rename_columns({"label": label})
    data = parquet_log(folder, raw).model_dump(by_alias=True) | {"label": label}
    if is_text:
        (file,) = (folder / "data").iterdir()
        file.unlink()
        frame = raw.to_pandas()
        frame["history"] = ["|".join(map(str, ids)) for ids in frame["history"]]
        frame["user"] = frame["user"].astype("Int64")
        frame.to_csv(folder / "data" / "part-0.csv", index=False)
        data |= {"format": "csv", "csv": {"list_separator": "|"}}
    return TrainingData.model_validate(data)
