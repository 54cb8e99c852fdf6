"""land: writes a topic's messages as daily Parquet files per partition of the topic, each message exactly once.

First, the files of one partition of the topic become visible and durable; then `_landed.json` is replaced by one with
the offset after them. The name of a file contains the offset from which its messages were read: files that the record
does not cover are those of an interrupted call, and are removed before the same messages are landed again.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing, suppress
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import structlog

from elastrec.platform.data.convert import ByTime, converted_data
from elastrec.platform.data.files import join, list_files, locate, make_durable, shows_unfinished
from elastrec.platform.data.finished import ROW_GROUP_ROWS, ParquetFile, finished_report
from elastrec.platform.data.log_calendar import LogCalendar
from elastrec.platform.data.reading.numbers import combined
from elastrec.platform.data.stream.broker import Topic, describe_topic
from elastrec.platform.data.stream.claim import CLAIM_NAME, Claim, claimed
from elastrec.platform.data.stream.consuming import PartitionLog
from elastrec.platform.data.stream.guarded_object import GuardedObject, ReplacedError
from elastrec.platform.data.stream.messages import MessageForm, Row
from elastrec.platform.specs.base import Spec
from elastrec.platform.specs.data import TrainingData
from elastrec.platform.specs.errors import DataError

RECORD_NAME = "_landed.json"
_FILE = re.compile(r"/kafka-(\d{5})-(\d{20})(?:-[0-9a-f]{8})?\.parquet$")
_UNFINISHED_FILE = re.compile(r"/_kafka-\d{5}-\d{20}-[0-9a-f]{8}\.parquet\.tmp$")
_TYPES = {"integer": pa.int64(), "text": pa.string()}
_HELD_ROWS = 1_048_576
"""Rows in memory, of all days together."""
_OPEN_FILES = 64
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
    """Per partition of the topic, the offset of the first message that was not landed; at the beginning, that of the
    oldest one."""
    rows: int = 0
    skipped_messages: int = 0

    def next_offset(self, partition: int) -> int:
        """Also of a partition that was added to the topic later, whose messages begin at 0."""
        return self.next_offsets.get(partition, 0)


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
    the messages' key. If it is called after the end of each day, each day's sessions are whole. A call that finds many
    days at once writes several files per day, so that it needs memory and open files for some of them only.

    Args:
        data: the columns, as for `publish`; messages of another form are bad rows, see `data.bad_rows`.
        servers: `host:port,...` of the broker.
        settings: of the client library.

    Raises:
        DataError: the data has no session or timestamp; a message is unusable and the job does not allow it; the topic
            does not exist; the destination contains other files, or another call is writing to it (see `claim`); the
            broker deleted messages that were not landed.
        TransportError: the broker does not answer.
    """
    form = MessageForm(data)
    described = describe_topic(servers, topic, settings or {})
    landed = []

    def opened(partition: int) -> closing[PartitionLog]:
        return closing(PartitionLog(described.name, partition, servers, settings or {}))

    with claimed(destination) as claim:
        # Before it is read, so that a record that another call writes from now on is not replaced.
        stored = GuardedObject(join(destination, RECORD_NAME), claim.holder)
        record = _record_of(destination, stored, described, form, data.timezone, opened)
        unrecorded = _unrecorded(destination, record)
        _remove_unfinished(destination, claim)
        for partition in range(described.partitions):
            with opened(partition) as log:
                done, record = _land_partition(
                    data, form, destination, claim, stored, log, record, unrecorded[partition]
                )
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
    data: TrainingData,
    form: MessageForm,
    destination: str,
    claim: Claim,
    stored: GuardedObject,
    log: PartitionLog,
    record: LandRecord,
    unrecorded: list[str],
) -> tuple[LandedPartition | None, LandRecord]:
    oldest, end = log.bounds()
    begin = record.next_offset(log.partition)
    if begin < oldest:
        kept = f"; some are in files of an interrupted call, which are kept: {', '.join(unrecorded)}"
        raise DataError(
            f"topic {log.topic}: partition {log.partition}: the broker has dropped the messages {begin} to "
            f"{oldest - 1} before they were landed (retention){kept if unrecorded else ''}; land more often, and into "
            "a new destination from now on"
        )
    if begin > end:
        raise DataError(
            f"topic {log.topic}: partition {log.partition} ends at {end}, but {begin} messages were landed; it was cut "
            "off or made anew: land into a new destination"
        )
    if begin == end:
        return None, record
    # Not before it is known that the broker still has their messages.
    _remove(unrecorded)
    files = _DayFiles(destination, claim.suffix, LogCalendar(data.timezone), log.partition, begin)
    rows_before = record.rows

    def recorded(position: int) -> LandRecord:
        claim.check()
        finished = files.finish(position)
        offsets = {**record.next_offsets, log.partition: position}
        now = record.model_copy(update={"next_offsets": offsets, "rows": rows_before + files.rows})
        try:
            claim.check()
        except DataError:
            _remove(finished)
            raise
        try:
            _write(stored, now)
        except ReplacedError as error:
            _remove(finished)
            raise claim.lost() from error
        return now

    try:
        for messages in log.read(begin, end, ROW_GROUP_ROWS):
            rows, record = _decoded(data, form, log, record, messages)
            if rows:
                assert record.session_type is not None
                files.write(form.table(rows, _TYPES[record.session_type]), form.timestamp)
            if files.is_full:
                record = recorded(messages[-1][0] + 1)
        record = recorded(log.position)
    except BaseException:
        files.discard()
        raise
    return (
        LandedPartition(
            partition=log.partition,
            begin=begin,
            end=log.position,
            rows=files.rows,
            bytes=files.bytes,
            days=files.days,
        ),
        record,
    )


def _decoded(
    data: TrainingData,
    form: MessageForm,
    log: PartitionLog,
    record: LandRecord,
    messages: list[tuple[int, bytes | None]],
) -> tuple[list[Row], LandRecord]:
    """The rows of some messages, and the record with the type of their sessions and the number of bad ones."""
    rows: list[Row] = []
    skipped, session_type = record.skipped_messages, record.session_type
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
    return rows, record.model_copy(update={"session_type": session_type, "skipped_messages": skipped})


class _DayFiles:
    """The rows of one partition of the topic, one file per day, row groups of ROW_GROUP_ROWS.

    Args:
        suffix: of the files' names.
        begin: the offset of the first message.
    """

    def __init__(self, destination: str, suffix: str, calendar: LogCalendar, partition: int, begin: int) -> None:
        self._calendar = calendar
        self._destination, self._suffix = destination, suffix
        self._partition, self._begin = partition, begin
        self._held: dict[int, list[pa.Table]] = {}
        self._held_rows = 0
        self._open: dict[int, ParquetFile] = {}
        self.rows = self.bytes = 0
        self.days: tuple[str, ...] = ()

    @property
    def is_full(self) -> bool:
        """Whether the rows in memory or the open files are so many that they should be finished before others."""
        return self._held_rows > _HELD_ROWS or len(self._open) > _OPEN_FILES

    def write(self, table: pa.Table, timestamp: str) -> None:
        """Rows in the order of the topic, of any days."""
        day_B = self._calendar.keys_of(np.asarray(combined(table[timestamp])))
        self._held_rows += table.num_rows
        for day in np.unique(day_B).tolist():
            held = self._held.setdefault(day, [])
            held.append(table.filter(pa.array(day_B == day)))
            if sum(part.num_rows for part in held) >= ROW_GROUP_ROWS:
                self._row_groups(day, last=False)
        self.rows += table.num_rows

    def finish(self, position: int) -> list[str]:
        """Makes all files visible and durable, and returns them; later rows are of messages from `position` on."""
        finished = []
        # One after the other, because a topic may hold more days than a process may open files.
        for day in sorted(self._held):
            # None are left if the day's last rows filled a row group.
            if self._held[day]:
                self._row_groups(day, last=True)
            self.bytes += self._open[day].commit()
            finished.append(self._uri(day))
            del self._open[day], self._held[day]
        make_durable(self._destination, finished)
        self.days = tuple(sorted({*self.days, *(uri.split("/")[-2] for uri in finished)}))
        self._begin = position
        return finished

    def discard(self) -> None:
        """Removes files that are not visible yet."""
        for file in self._open.values():
            file.discard()

    def _row_groups(self, day: int, *, last: bool) -> None:
        table = pa.concat_tables(self._held[day])
        whole = table.num_rows if last else table.num_rows // ROW_GROUP_ROWS * ROW_GROUP_ROWS
        if whole:
            if day not in self._open:
                self._open[day] = ParquetFile(self._uri(day), table.schema)
            self._open[day].write(table.slice(0, whole))
        # Not an empty slice, which would keep the whole table in memory.
        self._held[day] = [table.slice(whole)] if whole < table.num_rows else []
        self._held_rows -= whole

    def _uri(self, day: int) -> str:
        name = f"kafka-{self._partition:05d}-{self._begin:020d}{self._suffix}.parquet"
        return join(self._destination, self._calendar.partition(day).folder, name)


def _record_of(
    destination: str,
    stored: GuardedObject,
    topic: Topic,
    form: MessageForm,
    timezone: str,
    opened: Callable[[int], AbstractContextManager[PartitionLog]],
) -> LandRecord:
    """The destination's record, or a new one that begins with the oldest messages of each partition."""
    inputs = {
        "topic": topic.name,
        "cluster_id": topic.cluster_id,
        "topic_id": topic.topic_id,
        "columns": form.columns,
        "timezone": timezone,
    }
    record = finished_report(destination, RECORD_NAME, LandRecord, "landed", inputs, own_files={CLAIM_NAME})
    if record is None:
        oldest = {}
        for partition in range(topic.partitions):
            with opened(partition) as log:
                oldest[partition], _ = log.bounds()
        record = LandRecord(**inputs, next_offsets=oldest)
        # Written first, so that a later call recognises the folder of an interrupted one, and messages that the broker
        # drops from now on.
        _write(stored, record)
    return record


def _write(stored: GuardedObject, record: LandRecord) -> None:
    stored.replace(record.model_dump_json(indent=1).encode())


def _unrecorded(destination: str, record: LandRecord) -> defaultdict[int, list[str]]:
    """Files of interrupted calls that the record does not cover, by partition of the topic."""
    found = defaultdict(list)
    for uri, _ in list_files(destination):
        match = _FILE.search(uri)
        if match and int(match[2]) >= record.next_offset(int(match[1])):
            found[int(match[1])].append(uri)
    return found


def _remove_unfinished(destination: str, claim: Claim) -> None:
    """Removes what earlier calls were writing when they were killed; their names, unlike local ones, are not used
    again."""
    filesystem, path = locate(destination)
    if claim.holder and shows_unfinished(filesystem):
        for info in filesystem.get_file_info(pafs.FileSelector(path, recursive=True)):
            if _UNFINISHED_FILE.search(info.path):
                filesystem.delete_file(info.path)


def _remove(unrecorded: list[str]) -> None:
    for uri in unrecorded:
        filesystem, path = locate(uri)
        # Another call may have removed it.
        with suppress(FileNotFoundError):
            filesystem.delete_file(path)
        _log.warning("file of an interrupted landing removed", file=uri)
