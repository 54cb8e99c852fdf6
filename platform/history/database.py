"""Creates MLflow's database in an SQLite file atomically, even if the process is killed.

MLflow creates its tables by running all of its migrations, which takes seconds. If the process is killed meanwhile, or
another process does the same at that time, MLflow cannot open the file any more.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from elastrec.platform.specs.errors import CollisionError, HistoryError

_SCHEME = "sqlite:///"
_WAIT_SECONDS = 300.0
_TICK_SECONDS = 0.05


def database_file(tracking_uri: str) -> Path | None:
    """The file of a tracking URI; None if the URI is of another kind."""
    if not tracking_uri.startswith(_SCHEME):
        return None
    return Path(tracking_uri.removeprefix(_SCHEME).partition("?")[0]).absolute()


def make_artifacts_folder(database: Path) -> str:
    """Creates the folder for the artifacts of a database file, next to it, with access for its owner only; returns its
    URI."""
    # By default, MLflow uses a folder in the current directory, with the permissions of the umask.
    folder = database.parent / "artifacts"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder.as_uri()


def ensure_database(database: Path) -> None:
    """Creates MLflow's database if it does not exist; returns when it is complete.

    Raises:
        HistoryError: the file is something else, is incomplete, or belongs to another version of MLflow; or it cannot
            be created.
    """
    try:
        if not _has_content(database):
            with _locked(database.with_name(f"{database.name}.lock")):
                if not _has_content(database):
                    _make(database)
        _check(database)
    except OSError as error:
        raise HistoryError(f"{database}: MLflow's database cannot be opened or made: {error}") from error


def _has_content(database: Path) -> bool:
    return database.exists() and database.stat().st_size > 0


@contextlib.contextmanager
def _locked(lock: Path) -> Iterator[None]:
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + _WAIT_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise HistoryError(f"{lock}: another process has held it for {_WAIT_SECONDS:g} s") from None
                time.sleep(_TICK_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _make(database: Path) -> None:
    """Creates the whole database under a temporary name, then renames it; the caller holds the lock."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    unfinished = database.with_name(f"{database.name}.new")
    for left in database.parent.glob(f"{unfinished.name}*"):
        left.unlink()
    os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    with explained_database_errors(database):
        store = SqlAlchemyStore(f"{_SCHEME}{unfinished}", make_artifacts_folder(database))
        store.engine.dispose()
    unfinished.replace(database)


def _check(database: Path) -> None:
    # MLflow would try for an hour to open a file that is not a database, and would migrate an old database in place.
    from mlflow.store.db.base_sql_model import Base
    from mlflow.store.tracking.dbmodels import models  # noqa: F401 (fills Base)

    try:
        with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
            rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    except sqlite3.DatabaseError as error:
        raise HistoryError(
            f"{database}: MLflow's database cannot be read: {error}; move the file away, or name another database or "
            "server in MLFLOW_TRACKING_URI"
        ) from error
    if missing := set(Base.metadata.tables) - {name for (name,) in rows}:
        raise HistoryError(
            f"{database}: this database lacks {len(missing)} of MLflow's tables: it is of an older MLflow, or making "
            f"it was interrupted. To keep its runs, copy it and run: mlflow db upgrade {_SCHEME}{database}. Should "
            "that fail, or where there is nothing to keep, move the file away; a new one is made"
        )


@contextlib.contextmanager
def explained_database_errors(what: object) -> Iterator[None]:
    """Converts errors of SQLAlchemy, which MLflow does not always catch, to errors with one line."""
    from sqlalchemy.exc import IntegrityError, SQLAlchemyError

    try:
        yield
    except SQLAlchemyError as error:
        reason = str(getattr(error, "orig", None) or error).splitlines()[0]
        kind = CollisionError if isinstance(error, IntegrityError) else HistoryError
        raise kind(f"{what}: MLflow's database refused: {reason}") from error
