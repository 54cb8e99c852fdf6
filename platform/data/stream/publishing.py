"""publish: sends the rows of a click log as messages of a topic, keyed by session, in the order of the log.

All rows are read and checked before the first one is sent, so that bad input does not change the topic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import structlog

from elastrec.platform.data.convert import rows_as_written
from elastrec.platform.data.entries import DataManifest
from elastrec.platform.data.finished import Progress
from elastrec.platform.data.manifest import build_manifest
from elastrec.platform.data.partitions import Partition
from elastrec.platform.data.reading.bad_rows import BadRowLedger
from elastrec.platform.data.reading.numbers import combined
from elastrec.platform.data.stream.broker import Topic, client_library, describe_topic, open_client, reason
from elastrec.platform.data.stream.messages import MessageForm
from elastrec.platform.data.stream.partitioning import partitions_of, session_keys
from elastrec.platform.specs.base import Spec
from elastrec.platform.specs.data import TrainingData
from elastrec.platform.specs.errors import DataError, TransportError

_DELIVERY_SECONDS = 120
_EARLIEST = -(2**62)
"""Before every timestamp, and its distance to any fits into 64 bits."""
_log = structlog.get_logger()


class PublishReport(Spec):
    """The messages that were sent."""

    topic: str
    rows: int
    skipped_rows: int
    message_bytes: int
    """Of the messages before compression, without their keys."""
    partition_rows: tuple[int, ...]
    """Rows sent to each partition of the topic."""


def publish(
    data: TrainingData,
    topic: str,
    *,
    servers: str,
    partitions: Sequence[Partition] | None = None,
    topic_partitions: int = 0,
    settings: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> PublishReport:
    """Sends a log's rows; a second call sends them again.

    A message is acknowledged by all in-sync replicas and, with idempotence, written once and in order. Its timestamp is
    the time of sending, because the broker would immediately delete old logs with the time of their rows.

    Args:
        servers: `host:port,...` of the broker.
        partitions: of the log; default all.
        topic_partitions: see `describe_topic`.
        settings: of the client library, such as `security.protocol`.

    Raises:
        DataError: the data has no session or timestamp, a session is empty or neither an integer nor text, the rows are
            not in order of time, a row is bad, or the topic is not as expected. Then nothing was sent.
        TransportError: the broker does not answer or acknowledge; the message contains the number of rows it has.
        KeyboardInterrupt: as usual, with the same number as a note.
    """
    form = MessageForm(data)
    manifest = build_manifest(data, partitions, try_rows=False)
    text = _checked(data, form, manifest)
    described = describe_topic(servers, topic, settings or {}, create_partitions=topic_partitions)
    sender = _Sender(described, servers, settings or {})
    ledger = BadRowLedger(data.bad_rows)
    rows_P = np.zeros(described.partitions, np.int64)
    size = 0
    try:
        for table in rows_as_written(data, manifest, ledger):
            sessions = _session_column(combined(table[form.session]), form.session)
            if text:
                sessions = sessions.cast(pa.string())
            keys, code_B = session_keys(sessions)
            partition_B = partitions_of(keys, described.partitions)[code_B]
            place = table.schema.get_field_index(form.session)
            messages = form.messages(table.set_column(place, form.session, sessions))
            sender.send([keys[code] for code in code_B.tolist()], messages, partition_B.tolist())
            rows_P += np.bincount(partition_B, minlength=described.partitions)
            size += sum(map(len, messages))
            if progress is not None:
                progress(int(rows_P.sum()), manifest.rows)
        sender.finish()
    except KeyboardInterrupt as interrupt:
        interrupt.add_note(sender.left())
        raise
    report = PublishReport(
        topic=topic, rows=int(rows_P.sum()), skipped_rows=ledger.rows, message_bytes=size,
        partition_rows=tuple(rows_P.tolist()),
    )  # fmt: skip
    _log.info("log published", **report.model_dump(), manifest=manifest.digest)
    return report


class _Sender:
    """An idempotent producer that stops at the first failed delivery."""

    def __init__(self, topic: Topic, servers: str, settings: Mapping[str, str]) -> None:
        self._library = client_library()
        self._topic = topic
        self._sent = self._undelivered = 0
        self._failures: list[str] = []
        fixed = {
            "enable.idempotence": True, "acks": "all", "delivery.report.only.error": True,
            "error_cb": self._on_error,
        }  # fmt: skip
        defaults = {"compression.type": "zstd", "linger.ms": "50", "delivery.timeout.ms": str(1000 * _DELIVERY_SECONDS)}
        self._producer = open_client(self._library.Producer, servers, {**defaults, **settings}, fixed)

    def send(self, keys: Sequence[bytes], messages: Sequence[bytes], partitions: Sequence[int]) -> None:
        for key, message, partition in zip(keys, messages, partitions, strict=True):
            while True:
                try:
                    self._producer.produce(
                        self._topic.name, message, key, partition=partition, on_delivery=self._on_delivery
                    )
                    break
                except BufferError:
                    # The queue is full until messages are acknowledged.
                    self._producer.poll(0.1)
                    self._check()
                except self._library.KafkaException as error:
                    self._failures.append(f"{reason(error)} (a message of {len(message):,} bytes)")
                    self._check()
            self._sent += 1
        self._producer.poll(0)
        self._check()

    def finish(self) -> None:
        """Waits until all messages are acknowledged."""
        # `flush` does not wait for messages that failed after the delivery timeout.
        self._producer.flush(2 * _DELIVERY_SECONDS)
        self._check()
        if len(self._producer):
            self._failures.append("no answer")
            self._check()

    def left(self) -> str:
        """What the topic has after an interruption, for people: a log that is sent again is there twice."""
        waiting = len(self._producer) + self._undelivered
        self._producer.purge()
        return (
            f"topic {self._topic.name}: {max(0, self._sent - waiting):,} to {self._sent:,} rows of the log are sent; "
            "send the whole log to a new topic, because rows that are sent again are in the topic twice"
        )

    def _on_delivery(self, error: Any, _message: Any) -> None:
        if error is not None:
            self._undelivered += 1
            self._failures.append(str(error.str()))

    def _on_error(self, error: Any) -> None:
        if error.fatal():
            self._failures.append(str(error.str()))

    def _check(self) -> None:
        if self._failures:
            missing = len(self._producer) + self._undelivered
            self._producer.purge()
            raise TransportError(
                f"topic {self._topic.name}: a message was not acknowledged ({self._failures[0]}); of {self._sent:,} "
                f"rows sent up to {missing:,} are missing; send the log to a new topic when the broker is available"
            )


def _checked(data: TrainingData, form: MessageForm, manifest: DataManifest) -> bool:
    """Reads all rows; returns whether sessions are text.

    Raises:
        DataError: see `publish`.
    """
    ledger = BadRowLedger(data.bad_rows)
    text, first, before = False, 0, _EARLIEST
    for table in rows_as_written(data, manifest, ledger):
        column = combined(table[form.session])
        if column.null_count:
            row = first + int(np.flatnonzero(np.asarray(column.is_null()))[0])
            raise DataError(
                f"{data.path}: {column.null_count} rows from row {row} on have no {form.session!r}; allowed: a session "
                "in every row; fill the column (a row without a session gets a value that no other row has)"
            )
        text = text or pa.types.is_string(_session_column(column, form.session).type)
        time_B = np.asarray(combined(table[form.timestamp]))
        if len(time_B):
            falls_B = np.diff(time_B, prepend=before) < 0
            if falls_B.any():
                raise DataError(
                    f"{data.path}: {form.timestamp!r} of row {first + int(np.argmax(falls_B))} lies before that of the "
                    "row before; allowed: a log in order of time; sort its files"
                )
            before = int(time_B[-1])
        first += table.num_rows
    if not first:
        raise DataError(f"{data.path}: no row is left to send; fix the rows or data.bad_rows")
    return text


def _session_column(column: pa.Array, name: str) -> pa.Array:
    """Sessions as int64 or string.

    Raises:
        DataError: they are of another type, fractions, or beyond 64 bits.
    """
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return column.cast(pa.string())
    try:
        if pa.types.is_floating(column.type) or pa.types.is_integer(column.type):
            # Fields of text files come as floats.
            return column.cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise DataError(f"data.session: {name!r} holds numbers that are no signed 64-bit integers ({error})") from error
    raise DataError(f"data.session: column {name!r} is a {column.type}; allowed: integers or text")
