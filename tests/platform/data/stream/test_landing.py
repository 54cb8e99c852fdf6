"""Landing without a broker: each message exactly once, despite interruptions. The topic is a list of messages."""

from __future__ import annotations

import fcntl
import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elastrec.platform.data.finished import ParquetFile
from elastrec.platform.data.log_calendar import FIRST_SECOND, LAST_SECOND
from elastrec.platform.data.stream import landing
from elastrec.platform.data.stream.broker import Topic
from elastrec.platform.data.stream.guarded_object import GuardedObject
from elastrec.platform.data.stream.landing import RECORD_NAME, LandRecord, LandReport, land
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


@pytest.mark.parametrize("rows", [2, 3, 4, 5])
def test_row_groups_of_any_number_of_rows_are_landed(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(landing, "ROW_GROUP_ROWS", 2)
    broker.messages = [[message(0, number, when=0) for number in range(rows)]]
    assert landed(tmp_path).record.rows == rows
    assert items(tmp_path) == [*range(rows)]


@pytest.mark.parametrize(("held", "opened"), [(2, 99), (99, 2)], ids=["rows in memory", "open files"])
def test_a_topic_of_many_days_is_landed_and_recorded_in_steps(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int, opened: int
) -> None:
    monkeypatch.setattr(landing, "_HELD_ROWS", held)
    monkeypatch.setattr(landing, "_OPEN_FILES", opened)
    monkeypatch.setattr(landing, "ROW_GROUP_ROWS", 2)
    # Of each day two rows, an older day in between.
    broker.messages = [[message(0, number, when=(0 if number % 5 == 4 else number // 2) * DAY) for number in range(40)]]
    files: list[int] = []
    written = landing._write

    def noted(stored: GuardedObject, record: LandRecord) -> None:
        files.append(len([*tmp_path.glob("day=*/*.parquet")]))
        written(stored, record)

    monkeypatch.setattr(landing, "_write", noted)
    report = landed(tmp_path)
    assert items(tmp_path) == [*range(40)] and report.record.rows == 40
    (done,) = report.landed
    assert (done.begin, done.end, done.rows, len(done.days)) == (0, 40, 40, 20)
    assert len(files) > 4 and files[0] == 0 and max(np.diff(files)) < 10
    # The same, but interrupted in a later step.
    again, broker.broken_at = tmp_path / "again", 30
    broker.messages.insert(0, [])
    with pytest.raises(ConnectionError):
        landed(again)
    recorded = LandRecord.model_validate_json((again / RECORD_NAME).read_bytes())
    assert 0 < recorded.next_offsets[1] <= 30 and len(items(again)) == recorded.rows == recorded.next_offsets[1]
    broker.broken_at = None
    broker.reads.clear()
    assert landed(again).record.rows == 40 and items(again) == [*range(40)]
    assert broker.reads == [(1, recorded.next_offsets[1], 40)]


def test_a_topic_may_hold_more_days_than_a_process_may_open_files(broker: Broker, tmp_path: Path) -> None:
    broker.messages = [[message(0, number, when=number * DAY) for number in range(300)]]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len([*Path("/proc/self/fd").iterdir()]) + 100, hard))
    try:
        landed(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert items(tmp_path) == [*range(300)]


def test_files_and_their_folders_are_on_disk_before_they_are_recorded(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[str] = set()
    at_record: list[tuple[int, set[str]]] = []
    sync, written = os.fsync, landing._write

    def noted_sync(descriptor: int) -> None:
        synced.add(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        sync(descriptor)

    def noted_record(stored: GuardedObject, record: LandRecord) -> None:
        at_record.append((record.rows, {*synced}))
        written(stored, record)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(landing, "_write", noted_record)
    landed(tmp_path)
    rows, synced = at_record[-1]
    assert rows == 12
    assert {str(tmp_path), *map(str, tmp_path.glob("day=*")), *map(str, tmp_path.glob("day=*/*"))} <= synced


def test_a_file_that_cannot_be_completed_is_removed(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(file: ParquetFile) -> int:
        raise OSError("no space left")

    monkeypatch.setattr(ParquetFile, "commit", full_disk)
    with pytest.raises(OSError, match="no space left"):
        landed(tmp_path)
    assert not [*tmp_path.glob("day=*/*")]


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


@pytest.mark.parametrize("timezone", ["Pacific/Kiritimati", "America/Los_Angeles"])
def test_the_first_and_the_last_timestamp_of_the_calendar_have_a_day_in_every_time_zone(
    broker: Broker, tmp_path: Path, timezone: str
) -> None:
    broker.messages[0] += [message(0, 6, when=FIRST_SECOND), message(0, 7, when=LAST_SECOND)]
    landed(tmp_path, DATA.model_copy(update={"timezone": timezone}))
    assert items(tmp_path) == [*ALL[:6], 6, 7, *ALL[6:]]


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


@pytest.mark.parametrize("before", [0, 1], ids=["added later", "empty at first"])
def test_dropped_messages_of_a_partition_without_landed_ones_are_detected(
    broker: Broker, tmp_path: Path, before: int
) -> None:
    later = [message(2, number) for number in range(9)]
    broker.messages += [[]] * before
    landed(tmp_path)
    broker.messages[2:] = [later]
    for partition in broker.messages[:2]:
        partition += [message(0, 8)] * 4
    broker.dropped = 4
    with pytest.raises(DataError, match="partition 2: the broker has dropped the messages 0 to 3"):
        landed(tmp_path)
    assert items(tmp_path)[-1] < 20


def test_a_first_call_that_was_killed_while_it_wrote_its_record_is_repeated(broker: Broker, tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    def killed(*_: object, **__: object) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(os, "fsync", killed)
        # The process has no time to remove the file.
        patch.setattr(Path, "unlink", lambda *_, **__: None)
        landed(tmp_path)
    assert [*tmp_path.glob(".*.tmp")]
    assert landed(tmp_path).record.rows == 12


def test_the_first_call_begins_with_the_oldest_messages(broker: Broker, tmp_path: Path) -> None:
    broker.dropped = 2
    assert landed(tmp_path).record.next_offsets == {0: 6, 1: 6}
    assert items(tmp_path) == [2, 3, 4, 5, 12, 13, 14, 15]


def test_files_of_an_interrupted_call_are_kept_if_the_broker_dropped_their_messages(
    broker: Broker, tmp_path: Path
) -> None:
    landed(tmp_path)
    record = (tmp_path / RECORD_NAME).read_bytes()
    broker.messages[0] += [message(0, 6), message(0, 7)]
    broker.messages[1] += [message(1, 6), message(1, 7)]
    landed(tmp_path)
    everything = items(tmp_path)
    (tmp_path / RECORD_NAME).write_bytes(record)
    broker.dropped = 7
    with pytest.raises(DataError, match=r"dropped the messages 6 to 6 .*are kept: .*kafka-00000-0+6\.parquet"):
        landed(tmp_path)
    assert items(tmp_path) == everything


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
