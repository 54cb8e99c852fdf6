"""PartitionLog: the messages of one partition of a topic between two offsets, without a consumer group: the caller
stores offsets together with rows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from elastrec.platform.data.stream.broker import client_library, open_client, reason
from elastrec.platform.specs.errors import TransportError

_ANSWER_SECONDS = 10.0
_SILENCE_SECONDS = 30.0
_AT_ONCE = 1_000
"""Messages per call of the client, which waits for so many until its time-out."""


class PartitionLog:
    """Reads one partition; must be closed.

    Raises:
        DataError: a setting is not allowed.
    """

    def __init__(self, topic: str, partition: int, servers: str, settings: Mapping[str, str]) -> None:
        self._library = client_library()
        self.topic, self.partition = topic, partition
        self.position = 0
        """The offset after the last message from `read` and the transaction markers that follow it."""
        fixed = {
            # The library requires a name; no group is joined and no offset is committed.
            "group.id": "elastrec-landing", "enable.auto.commit": False, "enable.partition.eof": True,
            "isolation.level": "read_committed", "auto.offset.reset": "error",
        }  # fmt: skip
        self._consumer = open_client(self._library.Consumer, servers, settings, fixed)

    def bounds(self) -> tuple[int, int]:
        """Offsets of the oldest message and after the newest one."""
        try:
            oldest, end = self._consumer.get_watermark_offsets(
                self._library.TopicPartition(self.topic, self.partition), timeout=_ANSWER_SECONDS
            )
        except self._library.KafkaException as error:
            raise self._unreadable(reason(error)) from error
        return oldest, end

    def read(self, begin: int, end: int, most: int) -> Iterator[list[tuple[int, bytes | None]]]:
        """Lists of up to `most` (offset, message) at offsets [begin, end).

        Ends before `end` if a producer's transaction is still open: see `position`.

        Raises:
            TransportError: the broker does not answer.
        """
        self._consumer.assign([self._library.TopicPartition(self.topic, self.partition, begin)])
        held: list[tuple[int, bytes | None]] = []
        self.position, last_message, ended = begin, time.monotonic(), False
        while self.position < end and not ended:
            for message in self._consumer.consume(min(most - len(held), _AT_ONCE), timeout=0.1):
                last_message = time.monotonic()
                error = message.error()
                if error is None:
                    if message.offset() < end:
                        held.append((message.offset(), message.value()))
                    self.position = min(message.offset() + 1, end)
                elif error.code() == self._library.KafkaError._PARTITION_EOF:
                    # Transaction markers have offsets, too, and are never delivered.
                    self.position, ended = min(message.offset(), end), True
                else:
                    raise self._unreadable(str(error.str()))
            if len(held) == most:
                yield held
                # The caller may have written rows for a long time.
                held, last_message = [], time.monotonic()
            if time.monotonic() - last_message > _SILENCE_SECONDS:
                raise self._unreadable(f"no message for {_SILENCE_SECONDS:.0f} s")
        if held:
            yield held

    def close(self) -> None:
        """Closes the connection."""
        self._consumer.close()

    def _unreadable(self, why: str) -> TransportError:
        return TransportError(
            f"topic {self.topic}: partition {self.partition} cannot be read ({why}); rows landed before "
            "are kept; land again when the broker is available",
            retryable=True,
        )
