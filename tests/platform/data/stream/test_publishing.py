"""Problems of a log are reported before a broker is contacted."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from elastrec.platform.cli import main
from elastrec.platform.data.stream import publishing
from elastrec.platform.data.stream.broker import Topic
from elastrec.platform.data.stream.publishing import publish
from elastrec.platform.specs.errors import DataError, TransportError
from tests.platform.data.stream.rows import change, small_log


@pytest.mark.parametrize(
    ("column", "values", "said"),
    [
        ("visit", pa.array([1, 2, None, 4, None]), r"2 rows from row 7 on have no 'visit'"),
        ("visit", pa.array([1.0, 2.5, 3.0, 4.0, 5.0]), "'visit' holds numbers that are no signed 64-bit integers"),
        ("visit", pa.array([2**63, 0, 0, 0, 0], pa.uint64()), "no signed 64-bit integers"),
        ("visit", pa.array([True] * 5), "column 'visit' is a bool; allowed: integers or text"),
        ("when", pa.array([10**9] * 5), "'when' of row 5 lies before that of the row before"),
        ("when", pa.array([4 * 10**9, 4 * 10**9, 10**9, 5 * 10**9, 10**9]), "'when' of row 7 lies before"),
        ("when", pa.array([None] * 5, pa.int64()), "expected seconds since the epoch"),
        ("label", pa.array([0, 1, 2, 0, 1]), "part-1.parquet: row 2, column 'label'"),
    ],
    ids=str,
)  # fmt: skip
def test_a_bad_log_is_refused_before_a_broker_is_contacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: str, values: pa.Array, said: str
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(publishing, "describe_topic", lambda *args, **_: asked.append(args))
    data = small_log(tmp_path / "log", rows=10)
    change(data, column, values)
    with pytest.raises(DataError, match=said):
        publish(data, "clicks", servers="127.0.0.1:1")
    assert not asked


def test_a_missing_session_column_is_refused_with_the_existing_ones(tmp_path: Path) -> None:
    data = small_log(tmp_path / "log", rows=10).model_copy(update={"session": "trip"})
    with pytest.raises(DataError, match="'trip'"):
        publish(data, "clicks", servers="127.0.0.1:1")


class Producer:
    """Accepts messages; when the sender waits for their acknowledgement, the last ones are refused."""

    def __init__(self, refused: int) -> None:
        self.refused = refused
        self.waiting: list[Callable[[object, object], None]] = []

    def produce(self, topic: str, message: bytes, key: bytes, *, partition: int, on_delivery: Any) -> None:
        self.waiting.append(on_delivery)

    def poll(self, timeout: float) -> None:
        pass

    def flush(self, timeout: float) -> None:
        for on_delivery in self.waiting[len(self.waiting) - self.refused :]:
            on_delivery(SimpleNamespace(str=lambda: "timed out"), None)
        self.waiting = []

    def __len__(self) -> int:
        return len(self.waiting)

    def purge(self) -> None:
        pass


def test_rows_that_are_not_acknowledged_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = SimpleNamespace(Producer=None, KafkaException=KeyError)
    monkeypatch.setattr(publishing, "client_library", lambda: library)
    monkeypatch.setattr(publishing, "open_client", lambda *_: Producer(refused=7))
    monkeypatch.setattr(publishing, "describe_topic", lambda *_, **__: Topic("clicks", "cluster", "first", 2))
    said = r"not acknowledged \(timed out\); of 20 rows sent up to 7 are missing"
    with pytest.raises(TransportError, match=said):
        publish(small_log(tmp_path / "log", rows=20), "clicks", servers="none")


class Interrupted(Producer):
    """Ctrl-C comes with the 16th message, when the broker has acknowledged ten."""

    def produce(self, topic: str, message: bytes, key: bytes, *, partition: int, on_delivery: Any) -> None:
        if len(self.waiting) == 15:
            del self.waiting[:10]
            raise KeyboardInterrupt
        super().produce(topic, message, key, partition=partition, on_delivery=on_delivery)


def test_an_interrupted_call_says_how_many_rows_are_in_the_topic_and_that_another_call_would_double_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = small_log(tmp_path / "log", rows=20)
    (tmp_path / "job.yaml").write_text(data.model_dump_json(exclude_defaults=True))
    library = SimpleNamespace(Producer=None, KafkaException=KeyError)
    monkeypatch.setattr(publishing, "client_library", lambda: library)
    monkeypatch.setattr(publishing, "open_client", lambda *_: Interrupted(refused=0))
    monkeypatch.setattr(publishing, "describe_topic", lambda *_, **__: Topic("clicks", "cluster", "first", 2))
    code, said = ended("data", "publish", str(tmp_path / "job.yaml"), "clicks", "--brokers", "none")
    assert code == 130
    assert "interrupted; topic clicks: 10 to 15 rows of the log are sent; send the whole log to a new topic" in said


def ended(*arguments: str) -> tuple[int, str]:
    """Exit code and standard error of a command."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), pytest.raises(SystemExit) as end:
        main(list(arguments))
    return int(str(end.value.code)), said.getvalue()
