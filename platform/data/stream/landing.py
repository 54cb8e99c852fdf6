"""land: writes a topic's messages as daily Parquet files per partition of the topic, each message exactly once.

First, the files of one partition of the topic become visible; then `_landed.json` is replaced by one with the offset
after them. The name of a file contains the offset of its first message: files that the record does not cover are those
of an interrupted call, and are removed before the same messages are landed again.
"""

from __future__ import annotations

import fcntl
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import structlog

from elastrec.platform.data.convert import ByTime, converted_data
from elastrec.platform.data.files import join, list_files, locate
from elastrec.platform.data.finished import ROW_GROUP_ROWS, ParquetFile, finished_report, write_report
from elastrec.platform.data.log_calendar import LogCalendar
from elastrec.platform.data.reading.numbers import combined
from elastrec.platform.data.stream.broker import Topic, describe_topic
from elastrec.platform.data.stream.consuming import PartitionLog
from elastrec.platform.data.stream.messages import MessageForm, Row
from elastrec.platform.specs.base import Spec
from elastrec.platform.specs.data import TrainingData
from elastrec.platform.specs.errors import DataError

RECORD_NAME = "_landed.json"
_LOCK_NAME = "_landing.lock"
_FILE = re.compile(r"/kafka-(\d{5})-(\d{20})\.parquet$")
_TYPES = {"integer": pa.int64(), "text": pa.string()}
_log = structlog.get_logger()


class LandRecord(Spec):
    """The progress of landing a topic; the content of `_landed.json`."""

    topic: str
    cluster_id: str
    topic_id: str
    columns: tuple[str, ...]
    timezone: str = "UTC"
    """Of the days."""
    session_type: Literal["integer", "text"] | None = None
    """That of the first message."""
    next_offsets: dict[int, int] = {}
    """Per partition of the topic, the offset of the first message that was not landed."""
    rows: int = 0
    skipped_messages: int = 0


class LandedPartition(Spec):
    """The messages of one partition of the topic that one call landed, at offsets [begin, end)."""

    partition: int
    begin: int
    end: int
    rows: int
    bytes: int
    days: tuple[str, ...]


class LandReport(Spec):
    """The messages that one call landed, and the record of all."""

    landed: tuple[LandedPartition, ...]
    record: LandRecord
    data: TrainingData
    """The data section of a job that reads the files."""


def land(
    data: TrainingData, topic: str, destination: str, *, servers: str, settings: Mapping[str, str] | None = None
) -> LandReport:
    """Lands the messages that the topic contains at the time of the call and that were not landed before.

    Rows of one session are in one file per call and day, in the order in which they were sent, because the session is
    the messages' key. If it is called after the end of each day, each day's sessions are whole.

    Args:
        data: the columns, as for `publish`; messages of another form are bad rows, see `data.bad_rows`.
        servers: `host:port,...` of the broker.
        settings: of the client library.

    Raises:
        DataError: the data has no session or timestamp; a message is unusable and the job does not allow it; the topic
            does not exist; the destination contains other files, or another call is writing to it; the broker deleted
            messages that were not landed.
        TransportError: the broker does not answer.
    """
    form = MessageForm(data)
    described = describe_topic(servers, topic, settings or {})
    landed = []
    with _locked(destination):
        record = _record_of(destination, described, form, data.timezone)
        _remove_unrecorded(destination, record)
        for partition in range(described.partitions):
            log = PartitionLog(described.name, partition, servers, settings or {})
            try:
                done, record = _land_partition(data, form, destination, log, record)
            finally:
                log.close()
            if done is not None:
                landed.append(done)
    layout = ByTime()
    report = LandReport(landed=tuple(landed), record=record, data=converted_data(data, destination, layout))
    _log.info(
        "topic landed", topic=topic, destination=destination, rows=sum(each.rows for each in landed),
        next_offsets=record.next_offsets, skipped_messages=record.skipped_messages,
    )  # fmt: skip
    return report


def _land_partition(
    data: TrainingData, form: MessageForm, destination: str, log: PartitionLog, record: LandRecord
) -> tuple[LandedPartition | None, LandRecord]:
    oldest, end = log.bounds()
    begin = record.next_offsets.get(log.partition, oldest)
    if begin < oldest:
        raise DataError(
            f"topic {log.topic}: partition {log.partition}: the broker has dropped the messages {begin} to "
            f"{oldest - 1} before they were landed (retention); land more often, and into a new destination from now on"
        )
    if begin > end:
        raise DataError(
            f"topic {log.topic}: partition {log.partition} ends at {end}, but {begin} messages were landed; it was cut "
            "off or made anew: land into a new destination"
        )
    if begin == end:
        return None, record
    writer = _DayFiles(destination, LogCalendar(data.timezone), log.partition, begin)
    skipped, session_type = record.skipped_messages, record.session_type
    try:
        for messages in log.read(begin, end, ROW_GROUP_ROWS):
            rows: list[Row] = []
            for offset, message in messages:
                try:
                    row = form.row(message)
                    kind: Literal["integer", "text"] = "text" if isinstance(form.session_of(row), str) else "integer"
                    if kind != (session_type or kind):
                        raise DataError(f"its session is of type {kind}, those before were {session_type}")
                except DataError as error:
                    skipped += 1
                    if data.bad_rows.policy == "fail" or skipped > data.bad_rows.at_most:
                        raise DataError(
                            f"topic {log.topic}: partition {log.partition}: message {offset} {error}; fix the "
                            "producer, or allow such messages with data.bad_rows (policy: skip, at_most)"
                        ) from error
                    continue
                session_type = kind
                rows.append(row)
            if rows:
                assert session_type is not None
                writer.write(form.table(rows, _TYPES[session_type]), form.timestamp)
        writer.finish()
    except BaseException:
        writer.discard()
        raise
    record = record.model_copy(
        update={
            "session_type": session_type,
            "next_offsets": {**record.next_offsets, log.partition: log.position},
            "rows": record.rows + writer.rows,
            "skipped_messages": skipped,
        }
    )
    write_report(destination, RECORD_NAME, record)
    return (
        LandedPartition(
            partition=log.partition,
            begin=begin,
            end=log.position,
            rows=writer.rows,
            bytes=writer.bytes,
            days=writer.days,
        ),
        record,
    )


class _DayFiles:
    """The rows of one partition of the topic, one file per day, row groups of ROW_GROUP_ROWS."""

    def __init__(self, destination: str, calendar: LogCalendar, partition: int, begin: int) -> None:
        self._calendar = calendar
        self._destination = destination
        self._name = f"kafka-{partition:05d}-{begin:020d}.parquet"
        self._held: dict[int, list[pa.Table]] = {}
        self._open: dict[int, ParquetFile] = {}
        self.rows = self.bytes = 0
        self.days: tuple[str, ...] = ()

    def write(self, table: pa.Table, timestamp: str) -> None:
        """Rows in the order of the topic, of any days."""
        day_B = self._calendar.keys_of(np.asarray(combined(table[timestamp])))
        for day in np.unique(day_B).tolist():
            held = self._held.setdefault(day, [])
            held.append(table.filter(pa.array(day_B == day)))
            if sum(part.num_rows for part in held) >= ROW_GROUP_ROWS:
                self._row_groups(day, last=False)
        self.rows += table.num_rows

    def finish(self) -> None:
        """Makes all files visible."""
        for day in sorted(self._held):
            self._row_groups(day, last=True)
        self.days = tuple(self._folder(day) for day in sorted(self._open))
        while self._open:
            self.bytes += self._open.pop(next(iter(self._open))).commit()

    def discard(self) -> None:
        """Removes files that are not visible yet."""
        for file in self._open.values():
            file.discard()

    def _row_groups(self, day: int, *, last: bool) -> None:
        table = pa.concat_tables(self._held[day])
        whole = table.num_rows if last else table.num_rows // ROW_GROUP_ROWS * ROW_GROUP_ROWS
        if whole:
            if day not in self._open:
                uri = join(self._destination, self._folder(day), self._name)
                self._open[day] = ParquetFile(uri, table.schema)
            self._open[day].write(table.slice(0, whole))
        self._held[day] = [table.slice(whole)] if whole < table.num_rows else []

    def _folder(self, day: int) -> str:
        return self._calendar.partition(day).folder


def _record_of(destination: str, topic: Topic, form: MessageForm, timezone: str) -> LandRecord:
    """The destination's record, or a new one."""
    inputs = {
        "topic": topic.name,
        "cluster_id": topic.cluster_id,
        "topic_id": topic.topic_id,
        "columns": form.columns,
        "timezone": timezone,
    }
    record = finished_report(destination, RECORD_NAME, LandRecord, "landed", inputs, own_files={_LOCK_NAME})
    if record is None:
        record = LandRecord(**inputs)
        # Written first, so that a later call recognises the folder of an interrupted one.
        write_report(destination, RECORD_NAME, record)
    return record


def _remove_unrecorded(destination: str, record: LandRecord) -> None:
    for uri, _ in list_files(destination):
        match = _FILE.search(uri)
        # No message of a partition that is not in the record was landed.
        if match and int(match[2]) >= record.next_offsets.get(int(match[1]), 0):
            filesystem, path = locate(uri)
            filesystem.delete_file(path)
            _log.warning("file of an interrupted landing removed", file=uri)


@contextmanager
def _locked(destination: str) -> Iterator[None]:
    """Locks a local destination against other calls on this machine."""
    filesystem, path = locate(destination)
    if not isinstance(filesystem, pafs.LocalFileSystem):
        yield
        return
    if Path(path).is_file():
        raise DataError(f"{destination}: is a file; choose a folder")
    Path(path).mkdir(parents=True, exist_ok=True)
    with (Path(path) / _LOCK_NAME).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DataError(f"{destination}: is being landed by another process; wait for its end") from error
        yield
