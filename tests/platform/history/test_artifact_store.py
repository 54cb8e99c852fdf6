"""Runs whose artifact store cannot be written: an object store that refuses, and a folder that is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow import MlflowClient

from elastrec.platform.history import History
from elastrec.platform.history.connection import Connection
from elastrec.platform.jobs.types import Allocation, Prepared
from elastrec.platform.specs.errors import HistoryError
from elastrec.platform.specs.metrics import Phase

EXPERIMENT = "without artifacts"


@pytest.fixture(params=["s3://nowhere/runs", "folder"])
def client(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MlflowClient:
    """MLflow in a file, with an experiment whose artifacts cannot be written."""
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "key"), ("AWS_SECRET_ACCESS_KEY", "secret"), ("AWS_MAX_ATTEMPTS", "1"),
        ("MLFLOW_S3_ENDPOINT_URL", "http://127.0.0.1:9"),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
    (tmp_path / "file").write_text("no folder")
    place = request.param if request.param != "folder" else (tmp_path / "file" / "artifacts").as_uri()
    connection = Connection(f"sqlite:///{tmp_path}/mlflow.db", EXPERIMENT)
    connection._client.create_experiment(EXPERIMENT, place)
    return connection._client


def test_a_job_is_not_started_without_an_artifact_store_and_the_error_names_it(
    client: MlflowClient, make_prepared: Callable[..., Prepared], allocation: Allocation
) -> None:
    with pytest.raises(HistoryError, match=r"could not describe job clicks-20260101 at sqlite:.*(nowhere|file)"):
        History(client.tracking_uri, EXPERIMENT).start_run(make_prepared(), allocation)


def test_a_run_is_closed_without_the_artifacts_that_cannot_be_written(
    client: MlflowClient, make_prepared: Callable[..., Prepared], allocation: Allocation
) -> None:
    history = History(client.tracking_uri, EXPERIMENT)
    with pytest.raises(HistoryError):
        history.start_run(make_prepared(), allocation)
    run_id = history.open_run("clicks-20260101")
    history.finish_run(run_id, Phase.FAILED, "ValueError: bad feature")
    run = client.get_run(run_id)
    assert (run.info.status, run.data.tags["elastrec.phase"]) == ("FAILED", "Failed")
    assert run.data.tags["elastrec.reason"] == "ValueError: bad feature"


def test_an_error_of_this_program_stays_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(KeyError), Connection("http://127.0.0.1:9", EXPERIMENT)._explained("read"):
        raise KeyError("a mistake")


def test_a_database_whose_driver_is_not_installed_is_an_error_of_one_line() -> None:
    history = History("mssql+nosuchdriver://user:s3cret@host/mlflow", EXPERIMENT)
    with pytest.raises(HistoryError, match=r"could not .* at mssql\+nosuchdriver://user:\*\*\*@host") as caught:
        history.job_records()
    assert "s3cret" not in str(caught.value)


def test_a_client_of_a_store_that_is_not_installed_is_an_error_of_one_line() -> None:
    connection = Connection("http://127.0.0.1:9", EXPERIMENT)
    with pytest.raises(HistoryError, match="No module named 'google'"), connection._explained("write"):
        raise ModuleNotFoundError("No module named 'google'")
