"""MLflow's database file: killed or concurrent first commands, and files of other origins."""

from __future__ import annotations

import contextlib
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy.exc import IntegrityError, OperationalError

from elastrec.platform.history import History
from elastrec.platform.history.connection import Connection
from elastrec.platform.jobs.types import Prepared
from elastrec.platform.specs.errors import CollisionError, HistoryError
from tests.processes import wait_for

pytestmark = pytest.mark.services

_OPEN = "import sys; from elastrec.platform.history import History; History(sys.argv[1], 'clicks').open_run('a-job')"


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/mlflow.db"


def opening(uri: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", _OPEN, uri], stderr=subprocess.PIPE, text=True)


def tables(folder: Path) -> int:
    """How many tables there are so far, under whatever name."""
    for file in folder.glob("mlflow.db*"):
        with (
            contextlib.suppress(sqlite3.Error),
            contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as it,
        ):
            if found := it.execute("SELECT count(*) FROM sqlite_master WHERE type = 'table'").fetchone()[0]:
                return int(found)
    return 0


@pytest.mark.parametrize("made", [1, 30])
def test_the_command_after_a_killed_first_one_works(tmp_path: Path, uri: str, made: int) -> None:
    first = opening(uri)
    try:
        wait_for(lambda: tables(tmp_path) >= made, 120, "some of the tables")
    finally:
        first.kill()
        first.communicate()
    assert History(uri, "clicks").open_run("a-job") == ""
    assert {file.name for file in tmp_path.iterdir()} == {"mlflow.db", "mlflow.db.lock", "artifacts"}


def test_concurrent_first_commands_all_succeed(tmp_path: Path, uri: str) -> None:
    together = [opening(uri) for _ in range(2)]
    ends = [(process.communicate(timeout=240)[1], process.returncode) for process in together]
    assert [code for _, code in ends] == [0, 0], ends
    assert History(uri, "clicks").open_run("a-job") == ""
    assert [file.name for file in tmp_path.iterdir() if stat.S_IMODE(file.stat().st_mode) & 0o077] == []


def _some_tables(file: Path) -> None:
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.execute("CREATE TABLE experiments (experiment_id INTEGER PRIMARY KEY)")
        database.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
        database.commit()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (_some_tables, "lacks [0-9]+ of MLflow's tables.*mlflow db upgrade sqlite:///.*move the file away"),
        (lambda file: file.write_text("no database at all, but long enough"), "file is not a database; move the file"),
        (lambda file: file.mkdir(), "(unable to open database file|disk I/O error); move the file away"),
    ],
)
def test_a_file_that_is_not_this_mlflows_database_is_refused_and_not_changed(
    tmp_path: Path, uri: str, make: Callable[[Path], object], said: str
) -> None:
    file = tmp_path / "mlflow.db"
    make(file)
    before = file.read_bytes() if file.is_file() else b""
    began = time.monotonic()
    with pytest.raises(HistoryError, match=said) as error:
        History(uri, "clicks").open_run("a-job")
    assert len(str(error.value).splitlines()) == 1 and time.monotonic() - began < 30
    assert (file.read_bytes() if file.is_file() else b"") == before


def test_a_read_only_folder_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HistoryError, match=r"cannot be opened or made: .*Not a directory"):
        History(f"sqlite:///{tmp_path}/file/mlflow.db", "clicks").open_run("a-job")


def test_an_error_of_the_database_is_one_line(uri: str) -> None:
    connection = Connection(uri, "clicks")
    refusal = OperationalError("INSERT INTO runs VALUES (1)", {}, sqlite3.OperationalError("database is locked"))
    with (
        pytest.raises(HistoryError, match=r"mlflow\.db: MLflow's database refused: database is locked"),
        connection._explained("write"),
    ):
        raise refusal


def test_a_conflicting_write_is_distinguished_from_a_wrong_one(uri: str) -> None:
    from mlflow.store.tracking.dbmodels.models import SqlParam

    connection = Connection(uri, "clicks")
    store = connection._client._tracking_client.store

    def write(**values: str) -> None:
        with connection._explained("write"), store.ManagedSessionMaker(read_only=False) as session:
            session.add(SqlParam(key="a", value="1", **values))

    with pytest.raises(CollisionError):
        write(run_uuid="no such run")
    with pytest.raises(CollisionError), connection._explained("write"):
        raise IntegrityError("INSERT INTO params", {}, sqlite3.IntegrityError("UNIQUE constraint failed"))
    with pytest.raises(HistoryError) as refused, connection._explained("write"):
        connection._client.log_param("no such run", "", "1")
    assert not isinstance(refused.value, CollisionError)


@pytest.mark.parametrize(("error", "scores", "descriptions"), [(CollisionError, 4, 8), (HistoryError, 1, 1)])
def test_a_write_is_made_again_only_where_it_met_another(
    uri: str,
    monkeypatch: pytest.MonkeyPatch,
    make_prepared: Callable[..., Prepared],
    error: type[HistoryError],
    scores: int,
    descriptions: int,
) -> None:
    history, made = History(uri, "clicks"), list[str]()

    def refuse(run_id: str, *of: object) -> None:
        made.append(run_id)
        raise error("IntegrityError: UniqueViolation")

    monkeypatch.setattr(history, "log_series", refuse)
    with pytest.raises(error):
        history._log_scores("run", {"auc": 0.5}, 1, None)
    assert len(made) == scores
    run = SimpleNamespace(info=SimpleNamespace(run_id="run"), data=SimpleNamespace(tags={}))
    monkeypatch.setattr(history, "_live_run", lambda *values: run)
    monkeypatch.setattr(history, "_describe", refuse)
    with pytest.raises(error):
        history.start_run(make_prepared(), None)  # type: ignore[arg-type]
    assert len(made) == scores + descriptions
