"""Which records a job is given to start from."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import sentinel

import numpy as np

from elastrec.checkpoints import PartWriter, answer, commit_record, new_record_uri
from elastrec.platform.jobs.starting.preparation import _find_start, _Rows
from elastrec.platform.jobs.types import Interval
from elastrec.platform.specs.job import TrainingJob
from tests.platform.master.fakes import job

# What a job starts from depends on its files only where it starts from a periodic record.
ROWS = _Rows(sentinel.training, sentinel.evaluation, Interval("", "", ""))


def final_record(store: Path, made: TrainingJob, step: int) -> str:
    uri = new_record_uri(str(store), made.metadata.name, "earlier", step)
    groups = [answer(made.spec.data.tables, range(64))]
    with PartWriter(uri, "ps-0", groups=groups, dense_ranges=[(0, 6)]) as writer:
        writer.write_dense("w", (3, 2), 0, {"value": np.zeros(6, np.float32)})
        part = writer.finish()
    commit_record(uri, [part], b"{}", job=made, job_id="earlier", kind="final", step=step, generation=0)
    return uri


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
