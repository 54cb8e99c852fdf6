"""`inspect` on a small record."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from elastrec.checkpoints import PartWriter, answer, commit_record, new_record_uri
from elastrec.checkpoints.inspection import bucket_of
from elastrec.platform.cli.commands.inspect_record import inspect
from elastrec.platform.data.features.steps import MISSING_ID
from elastrec.platform.specs.errors import SpecError
from tests.checkpoints.writing import write_bucket
from tests.platform.master.fakes import job

KEYS = {"user": 0x68FD1E64, "age": 7}


@pytest.fixture
def record(tmp_path: Path) -> str:
    """URI of a record with one row for the key 68fd1e64 of `user`, 7 and none (missing) of `age`."""
    sparse = [{"name": "user", "encoding": "hexadecimal"}, {"name": "age"}]
    made = job(data={"path": "data", "sparse": sparse})
    uri = new_record_uri(str(tmp_path), "clicks", "clicks-1", 5)
    groups = [answer(["user", "age"], range(64))]
    with PartWriter(uri, "ps-0", groups=groups, dense_ranges=[(0, 6)]) as writer:
        for number, (table, ids) in enumerate((("user", [0x68FD1E64]), ("age", [7, MISSING_ID]))):
            for row_id in ids:
                arrays = {
                    "ids": np.array([row_id]),
                    "values": np.full((1, 16), 0.5, np.float32),
                    "state": np.full((1, 1), 2.0, np.float32),
                }
                write_bucket(writer, bucket_of(row_id, table, 64), number, arrays)
        writer.write_dense("w", (3, 2), 0, {"value": np.zeros(6, np.float32)})
        part = writer.finish()
    encodings = msgspec.json.encode({"user": "hexadecimal", "age": "integer"}).decode()
    commit_record(
        uri, [part], b'{"cursor": 9, "begun": [[3, 4, 1]]}', job=made, job_id="clicks-1", kind="final", step=5,
        generation=0, attributes={"encodings": encodings},
    )  # fmt: skip
    return uri


def shown(*arguments: str) -> str:
    result = CliRunner().invoke(inspect, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_record_is_shown_with_tables_dense_parameters_and_positions(record: str) -> None:
    text = shown(record)
    assert "8 shards done, 1 begun (4 of their rows trained)" in text
    assert "user" in text and "3 x 2" in text and "3 rows" in text


def test_the_newest_record_of_a_store_is_found_by_the_jobs_name(record: str, tmp_path: Path) -> None:
    found = json.loads(shown(str(tmp_path), "--job", "clicks", "--output", "json"))
    assert found["uri"] == record and found["positions"]["shards_handed_out"] == 9
    with pytest.raises(SpecError, match=r"'clocks'.*clicks"):
        shown(str(tmp_path), "--job", "clocks")


def test_a_row_is_found_by_its_raw_key_in_the_features_encoding(record: str) -> None:
    row = json.loads(shown(record, "-t", "user", "-k", "68fd1e64", "-o", "json"))
    assert row["found"] == "row" and row["id"] == 0x68FD1E64 and row["values"] == [0.5] * 16
    assert row["optimizer_state"] == {"accumulator": [2.0]}
    assert json.loads(shown(record, "-t", "age", "-k", "", "-o", "json"))["found"] == "row"
    assert "absent" in shown(record, "-t", "age", "-k", "8")
    assert "last seen: not recorded" in shown(record, "-t", "age", "-k", "7")


def test_text_that_cannot_be_a_key_is_refused(record: str) -> None:
    with pytest.raises(SpecError, match=r"--key.*hexadecimal digits"):
        shown(record, "-t", "user", "-k", "seven")
    with pytest.raises(SpecError, match=r"--table.*'users'.*user, age"):
        shown(record, "-t", "users", "-k", "1")
    with pytest.raises(SpecError, match=r"--key.*together with --table"):
        shown(record, "-t", "user")
    with pytest.raises(SpecError, match=r"CHECKPOINT.*a complete record.*add --job NAME"):
        shown(record.rpartition("/")[0])
