"""The choice of records from which a job starts."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import sentinel

from elastrec.platform.jobs.starting.preparation import _find_start, _Rows
from elastrec.platform.jobs.types import Interval
from tests.platform.jobs.records import final_record
from tests.platform.master.fakes import job

# What a job starts from depends on its files only where it starts from a periodic record.
ROWS = _Rows(sentinel.training, sentinel.evaluation, Interval("", "", ""))


def test_latest_names_two_older_records_that_are_taken_where_the_newest_is_damaged(tmp_path: Path) -> None:
    made = job(checkpoint={"store": str(tmp_path)})
    uris = [final_record(tmp_path, made, step) for step in (1, 2, 3, 4)]
    start = _find_start(made, ROWS)
    assert start.records == [uris[3], uris[2], uris[1]] and start.adaptation


def test_a_record_that_is_named_has_no_substitute(tmp_path: Path) -> None:
    made = job(checkpoint={"store": str(tmp_path)})
    uris = [final_record(tmp_path, made, step) for step in (1, 2)]
    named = job(checkpoint={"store": str(tmp_path)}, continual={"start_from": uris[1]})
    assert _find_start(named, ROWS).records == [uris[1]]


def test_nothing_and_an_empty_store_name_no_record(tmp_path: Path) -> None:
    made = job(checkpoint={"store": str(tmp_path)}, continual={"start_from": "nothing"})
    final_record(tmp_path, made, 1)
    assert _find_start(made, ROWS).records == []
    assert _find_start(job(checkpoint={"store": str(tmp_path / "empty")}), ROWS).records == []
