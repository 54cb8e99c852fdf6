"""In messages, passwords of URIs are hidden, and nothing else."""

from __future__ import annotations

import pytest

from elastrec.platform.specs.errors import HistoryError
from elastrec.platform.specs.text.uris import credentials, mask_event, masked, without_credentials


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


def test_errors_of_the_history_and_log_lines_hide_passwords() -> None:
    assert str(HistoryError("http://u:secret@h is away")) == "http://u:***@h is away"
    event = {"event": "away", "uri": "http://u:secret@h", "seconds": 3}
    assert mask_event(None, "info", event) == {"event": "away", "uri": "http://u:***@h", "seconds": 3}
