"""Landing without a broker: each message exactly once, despite interruptions. The topic is a list of messages."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elastrec.platform.data.stream import landing
from elastrec.platform.data.stream.broker import Topic
from elastrec.platform.data.stream.landing import RECORD_NAME, LandReport, land
from elastrec.platform.specs.data import BadRows, TrainingData
from elastrec.platform.specs.errors import DataError

DATA = TrainingData.model_validate(
    {"path": "log", "sparse": [{"name": "item"}], "session": "visit", "timestamp": "when"}
)
DAY = 86_400


@dataclass
class Broker:
    """What the topic holds, per partition: messages, and how many of the first ones were dropped."""

    messages: list[list[bytes | None]]
    dropped: int = 0
    topic_id: str = "first"
    broken_at: int | None = None
    reads: list[tuple[int, int, int]] = field(default_factory=list)

    def describe(self, servers: str, name: str, settings: object) -> Topic:
        return Topic(name, "cluster", self.topic_id, len(self.messages))

    def open(self, topic: str, partition: int, servers: str, settings: object) -> Log:
        return Log(self, topic, partition)


class Log:
    """As PartitionLog."""

    def __init__(self, broker: Broker, topic: str, partition: int) -> None:
        self._broker, self.topic, self.partition, self.position = broker, topic, partition, 0

    def bounds(self) -> tuple[int, int]:
        return self._broker.dropped, len(self._broker.messages[self.partition])

    def read(self, begin: int, end: int, most: int) -> Iterator[list[tuple[int, bytes | None]]]:
        self._broker.reads.append((self.partition, begin, end))
        for self.position in range(begin, end):
            if (self.partition, self.position) == (1, self._broker.broken_at):
                raise ConnectionError
            yield [(self.position, self._broker.messages[self.partition][self.position])]
        self.position = end

    def close(self) -> None:
        pass


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    made = Broker([[message(p, n) for n in range(6)] for p in range(2)])
    monkeypatch.setattr(landing, "describe_topic", made.describe)
    monkeypatch.setattr(landing, "PartitionLog", made.open)
    return made


def message(partition: int, number: int, **change: object) -> bytes:
    row = {"label": 1, "item": 10 * partition + number, "when": number * DAY // 3, "visit": partition}
    return msgspec.msgpack.encode({**row, **change})


def landed(destination: Path, data: TrainingData = DATA) -> LandReport:
    return land(data, "clicks", str(destination), servers="none")


def items(destination: Path) -> list[int]:
    return sorted(
        item for file in destination.glob("day=*/*.parquet") for item in pq.read_table(file)["item"].to_pylist()
    )


ALL = [0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15]


def test_rows_are_written_by_partition_and_day_and_the_next_call_continues(broker: Broker, tmp_path: Path) -> None:
    report = landed(tmp_path)
    assert items(tmp_path) == ALL
    assert [(each.begin, each.end, each.days) for each in report.landed] == [
        (0, 6, ("day=1970-01-01", "day=1970-01-02"))
    ] * 2
    assert len(list(tmp_path.glob("day=*/*"))) == 4
    assert landed(tmp_path).landed == () and items(tmp_path) == ALL
    broker.messages[0].append(message(0, 6))
    assert [(each.partition, each.begin, each.rows) for each in landed(tmp_path).landed] == [(0, 6, 1)]
    assert items(tmp_path) == [*ALL[:6], 6, *ALL[6:]]


@pytest.mark.parametrize("broken_at", range(6))
def test_an_interrupted_call_loses_and_repeats_nothing(broker: Broker, tmp_path: Path, broken_at: int) -> None:
    broker.broken_at = broken_at
    with pytest.raises(ConnectionError):
        landed(tmp_path)
    assert items(tmp_path) == ALL[:6]
    broker.broken_at = None
    broker.reads.clear()
    landed(tmp_path)
    assert items(tmp_path) == ALL and broker.reads == [(1, 0, 6)]


@pytest.mark.parametrize("shown", [0, 1, 2])
def test_visible_files_without_a_record_are_landed_again(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: int
) -> None:
    landed(tmp_path)
    broker.messages[0] += [message(0, 6), message(0, 9)]
    record = (tmp_path / RECORD_NAME).read_bytes()
    landed(tmp_path)
    (tmp_path / RECORD_NAME).write_bytes(record)
    new = sorted(tmp_path.glob("day=*/*-*6.parquet"))
    assert len(new) == 2
    for file in new[shown:]:
        file.unlink()
    # More came since, so that the file of the same begin holds more rows.
    broker.messages[0].append(message(0, 7))
    landed(tmp_path)
    assert items(tmp_path) == [*ALL[:6], 6, 7, 9, *ALL[6:]]


def test_a_bad_message_is_refused_or_counted_by_the_jobs_setting(broker: Broker, tmp_path: Path) -> None:
    broker.messages[0][2] = message(0, 2, label=7)
    with pytest.raises(DataError, match=r"partition 0: message 2 is no row: .*label"):
        landed(tmp_path / "a")
    assert items(tmp_path / "a") == []
    lenient = DATA.model_copy(update={"bad_rows": BadRows(policy="skip", at_most=1)})
    assert landed(tmp_path / "b", lenient).record.skipped_messages == 1
    assert items(tmp_path / "b") == [item for item in ALL if item != 2]
    broker.messages[1].append(None)
    with pytest.raises(DataError, match="partition 1: message 6 is no row"):
        landed(tmp_path / "b", lenient)


def test_sessions_of_two_types_are_refused_also_from_call_to_call(broker: Broker, tmp_path: Path) -> None:
    landed(tmp_path)
    assert pq.read_table(next(tmp_path.glob("day=*/*")))["visit"].type == pa.int64()
    broker.messages[0].append(message(0, 6, visit="seven"))
    with pytest.raises(DataError, match="type text, those before were integer"):
        landed(tmp_path)


def test_dropped_messages_and_a_recreated_topic_are_detected(broker: Broker, tmp_path: Path) -> None:
    landed(tmp_path)
    for partition in broker.messages:
        partition += [message(0, 8)] * 4
    broker.dropped = 8
    with pytest.raises(DataError, match="dropped the messages 6 to 7"):
        landed(tmp_path)
    broker.dropped, broker.messages[0] = 0, broker.messages[0][:3]
    with pytest.raises(DataError, match="ends at 3, but 6 messages were landed"):
        landed(tmp_path)
    broker.topic_id = "second"
    with pytest.raises(DataError, match="another topic_id 'first'"):
        landed(tmp_path)


def test_a_folder_with_other_files_and_one_that_is_in_use_are_not_changed(broker: Broker, tmp_path: Path) -> None:
    (tmp_path / "part-0.parquet").write_bytes(b"mine")
    with pytest.raises(DataError, match="files that were not landed"):
        landed(tmp_path)
    with pytest.raises(DataError, match="is a file"):
        landed(tmp_path / "part-0.parquet")
    free = tmp_path / "free"
    landed(free)
    with (free / "_landing.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="landed by another process"):
            landed(free)
