"""MLflow's migrations, which take more than a second for each new database, run once in a process of tests.

What they leave depends on nothing but the version of MLflow: the databases after the first are copies of it, into which
MLflow then writes its default experiment itself. So does the revision with which it compares every database that it
opens, for which it reads all of its migrations. Rooms whose tests make databases have the fixture in their conftest.
"""

from __future__ import annotations

import contextlib
import functools
import sqlite3
from collections.abc import Iterator

import pytest
import sqlalchemy


@pytest.fixture(autouse=True, scope="session")
def migrated_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    from mlflow.store.db import utils  # which not every test of these rooms needs to have loaded when it is collected

    migrate = utils._initialize_tables
    if migrate.__module__ == __name__:  # by the conftest of another room
        yield
        return
    first = tmp_path_factory.mktemp("migrated") / "mlflow.db"

    def initialize_tables(engine: sqlalchemy.engine.Engine) -> None:
        file = engine.url.database
        if engine.dialect.name != "sqlite" or not file or file == ":memory:":
            migrate(engine)
            return
        if not first.exists():
            made = sqlalchemy.create_engine(f"sqlite:///{first}")
            migrate(made)
            made.dispose()
        with contextlib.closing(sqlite3.connect(first)) as source, contextlib.closing(sqlite3.connect(file)) as target:
            source.backup(target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "_initialize_tables", initialize_tables)
        patch.setattr(utils, "_get_latest_schema_revision", functools.cache(utils._get_latest_schema_revision))
        yield
