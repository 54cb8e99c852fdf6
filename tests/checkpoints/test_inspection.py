"""The output of the inspection of a record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from elastrec.checkpoints import Record, SectionKind, answer, commit_record, new_record_uri, open_record
from elastrec.checkpoints.inspection import bucket_of, find_row, record_facts
from elastrec.checkpoints.parts import PartWriter
from elastrec.platform.specs.errors import CheckpointError
from elastrec.platform.specs.job import TrainingJob
from elastrec.trainers.parameter_server.hashing import buckets_of
from tests.checkpoints.writing import TABLES, write_bucket

BUCKETS = 64
CREATED = 1_800_000_030
MakeJob = Callable[..., TrainingJob]


def written(folder: Path, make_job: MakeJob) -> Record:
    """A record with rows 1 to 40 of `ad`; 50 is a candidate."""
    job = make_job(resources={"virtual_buckets": BUCKETS})
    uri = new_record_uri(str(folder), "clicks", "clicks-1", 7)
    groups = [answer(TABLES, range(BUCKETS))]
    with PartWriter(uri, "ps-0", groups=groups, dense_ranges=[(0, 10)]) as writer:
        ids = np.arange(1, 41)
        for bucket in range(BUCKETS):
            mine = ids[buckets_of(ids, "ad", BUCKETS) == bucket]
            waiting = np.array([50] if buckets_of(np.array([50]), "ad", BUCKETS)[0] == bucket else [], np.int64)
            arrays = {
                "ids": mine,
                "values": np.repeat(mine[:, None], 4, axis=1).astype(np.float32),
                "state": mine[:, None].astype(np.float32) / 2,
                "last_seen": (1_700_000_000 + mine).astype(np.uint32),
            }
            write_bucket(writer, bucket, 0, arrays)
            candidates = {
                "ids": waiting,
                "sightings": np.full(len(waiting), 3, np.uint16),
                "last_seen": np.full(len(waiting), CREATED - 333, np.uint32),
            }
            write_bucket(writer, bucket, 0, candidates, kind=SectionKind.CANDIDATES)
        writer.write_dense("over.weight", (2, 5), 0, {"value": np.zeros(10, np.float32)})
        part = writer.finish()
    commit_record(
        uri, [part], b"{}", job=job, job_id="clicks-1", kind="final", step=7, generation=0,
        created_unix_seconds=CREATED,
    )  # fmt: skip
    return open_record(uri)


def test_buckets_are_those_in_which_servers_put_rows():
    ids = np.random.default_rng(0).integers(-(2**63), 2**63, 1000)
    assert [bucket_of(int(one), "ad", 1000) for one in ids] == buckets_of(ids, "ad", 1000).tolist()


def test_the_outline_has_tables_rows_bytes_and_dense_parameters(tmp_path: Path, make_job: MakeJob) -> None:
    facts = record_facts(written(tmp_path, make_job))
    assert facts.rows == 40 and facts.step == 7 and facts.job_id == "clicks-1"
    assert [(table.name, table.rows, table.dimension) for table in facts.tables] == [("ad", 40, 4), ("user", 0, 4)]
    assert facts.tables[0].size_bytes >= 40 * (8 + 16 + 4 + 4)
    assert [(dense.name, dense.shape, dense.elements) for dense in facts.dense] == [("over.weight", (2, 5), 10)]


def test_a_row_is_found_with_its_state_and_last_sighting(tmp_path: Path, make_job: MakeJob) -> None:
    record = written(tmp_path, make_job)
    for row_id in (1, 17, 40):
        row = find_row(record, "ad", row_id)
        assert row.found == "row" and row.values == [float(row_id)] * 4
        assert row.optimizer_state == {"accumulator": [row_id / 2]}
        assert row.last_seen_unix_seconds == 1_700_000_000 + row_id and row.sightings is None


def test_a_candidate_has_its_sightings_and_the_time_of_the_last(tmp_path: Path, make_job: MakeJob) -> None:
    row = find_row(written(tmp_path, make_job), "ad", 50)
    assert (row.found, row.sightings, row.values) == ("candidate", 3, [])
    assert row.last_seen_unix_seconds == CREATED - 333


def test_unknown_ids_are_absent_and_unknown_tables_are_named(tmp_path: Path, make_job: MakeJob) -> None:
    record = written(tmp_path, make_job)
    assert find_row(record, "ad", 41).found == "absent" and find_row(record, "user", 1).found == "absent"
    with pytest.raises(CheckpointError, match="table 'adds' is not in the record; allowed: ad, user"):
        find_row(record, "adds", 1)
