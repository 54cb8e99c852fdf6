"""Reading a partition, with a client library whose clock and messages are the test's."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from elastrec.platform.data.stream import consuming
from elastrec.platform.data.stream.consuming import PartitionLog
from elastrec.platform.specs.errors import TransportError


class Consumer:
    """Messages from offset 0 on; None: a call in which none arrives."""

    def __init__(self, offsets: list[int | None]) -> None:
        self.offsets = offsets

    def assign(self, partitions: list[object]) -> None:
        pass

    def consume(self, count: int, timeout: float) -> Iterator[SimpleNamespace]:
        taken, self.offsets = self.offsets[:count], self.offsets[count:]
        for offset in taken:
            if offset is not None:
                yield SimpleNamespace(error=lambda: None, offset=lambda o=offset: o, value=lambda: b"")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(consuming, "time", clock)
    return clock


def opened(monkeypatch: pytest.MonkeyPatch, offsets: list[int | None]) -> PartitionLog:
    library = SimpleNamespace(Consumer=None, TopicPartition=lambda *_: None)
    monkeypatch.setattr(consuming, "client_library", lambda: library)
    monkeypatch.setattr(consuming, "open_client", lambda *_: Consumer(offsets))
    return PartitionLog("clicks", 0, "none", {})


def test_a_slow_writer_is_not_taken_for_a_silent_broker(
    monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace
) -> None:
    found = []
    for messages in opened(monkeypatch, [0, 1, 2, 3, None, 4]).read(0, 5, 2):
        found += [offset for offset, _ in messages]
        clock.now += 31
    assert found == [0, 1, 2, 3, 4]


def test_a_broker_without_messages_is_an_error(monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace) -> None:
    log = opened(monkeypatch, [0])
    consume = log._consumer.consume

    def later(count: int, timeout: float) -> Iterator[SimpleNamespace]:
        clock.now += 1
        return consume(count, timeout)

    log._consumer.consume = later
    with pytest.raises(TransportError, match="no message for 30 s"):
        list(log.read(0, 2, 2))
    assert clock.now == 32
