"""In messages, passwords of URIs are hidden, and nothing else."""

from __future__ import annotations

import json

import pytest

from elastrec.platform.specs.errors import (
    CheckpointError,
    ClusterError,
    DataError,
    ElastrecError,
    FieldProblem,
    HistoryError,
    JobFailedError,
    SpecError,
    TransportError,
)
from elastrec.platform.specs.text.uris import credentials, mask_event, masked, passwords, without_credentials


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://user:secret@host:5000/path", "http://user:***@host:5000/path"),
        ("https://user:12345@host", "https://user:***@host"),
        ("http://user:sec@ret@host", "http://user:***@host"),
        ("http://user:sec/ret?x#y@host", "http://user:***@host"),
        ("http://:secret@host", "http://:***@host"),
        (
            "postgresql+psycopg2://u:secret@host/db?sslmode=require",
            "postgresql+psycopg2://u:***@host/db?sslmode=require",
        ),
        ("postgresql://host/db?user=u&password=secret&x=1", "postgresql://host/db?user=u&password=***&x=1"),
        ("at http://a:secret@h: refused by 'http://b:secret@h/x'", "at http://a:***@h: refused by 'http://b:***@h/x'"),
    ],
)
def test_a_password_is_masked_at_every_position(text: str, shown: str) -> None:
    assert masked(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "sqlite:////home/user/mlflow.db",
        "http://host:5000/#/experiments/1/runs?owner=a@b.c",
        "http://[::1]:5000/x",
        "MLflow at http://127.0.0.1:5000 does not answer; ask admin@example.com",
        "models:/m-1",
    ],
)
def test_text_without_a_password_is_left_alone(text: str) -> None:
    assert masked(text) == text


def test_credentials_are_separated_from_the_address() -> None:
    uri = "https://us%40er:p%2Fw@host:5000/base"
    assert credentials(uri) == ("us@er", "p/w")
    assert without_credentials(uri) == "https://host:5000/base"
    assert credentials("http://host/a@b") is None
    assert without_credentials("http://host/a@b") == "http://host/a@b"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("{'store': 's3://key:se%2Fcret@bucket', 'n': 1}", {"se%2Fcret", "se/cret"}),
        ("postgresql://u:one@h/db and http://h/x?token=two&y=3", {"one", "two"}),
        ("http://host:5000/a@b", set()),
    ],
)
def test_passwords_are_found_in_their_spellings(text: str, found: set[str]) -> None:
    assert passwords(text) == found


@pytest.mark.parametrize("uri", ["http://h/x?token=secret", "s3://key:secret@bucket", r"http://h/x?token=se\cret"])
def test_json_within_json_is_json_after_it_was_masked(uri: str) -> None:
    text = json.dumps({"launch.json": json.dumps({"path": uri})})
    shown = json.loads(json.loads(masked(text))["launch.json"])["path"]
    assert "***" in shown and "cret" not in shown


@pytest.mark.parametrize(
    "kind", [CheckpointError, ClusterError, DataError, HistoryError, JobFailedError, TransportError]
)
def test_errors_hide_passwords(kind: type[ElastrecError]) -> None:
    assert str(kind("http://u:secret@h is away")) == "http://u:***@h is away"


def test_problems_of_fields_and_log_lines_hide_passwords() -> None:
    assert "secret" not in str(SpecError([FieldProblem("path", "'s3://u:secret@h'", "a folder")], "s3://u:secret@h"))
    event = {"event": "away", "uri": "http://u:secret@h", "seconds": 3}
    assert mask_event(None, "info", event) == {"event": "away", "uri": "http://u:***@h", "seconds": 3}
