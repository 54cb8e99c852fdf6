"""Landing in an object store: an interrupted call shows nothing, and of two calls the later one lands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from elastrec.platform.data.files import list_files, locate, read_bytes
from elastrec.platform.data.stream import landing
from elastrec.platform.data.stream.guarded_object import GuardedObject, ReplacedError
from elastrec.platform.data.stream.landing import LandRecord, LandReport, land
from elastrec.platform.specs.errors import DataError
from tests.platform.data.stream.test_landing import ALL, DATA, Broker, broker, message
from tests.s3 import bucket_at, s3_server

__all__ = ["broker"]


@pytest.fixture
def destination(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    with s3_server() as endpoint:
        # The server keeps its objects from test to test.
        yield f"{bucket_at(endpoint, 'clicks', monkeypatch)}/{tmp_path.name}"


def landed(destination: str) -> LandReport:
    return land(DATA, "clicks", destination, servers="none")


def items(destination: str) -> list[int]:
    found = []
    for uri, _ in list_files(destination):
        filesystem, path = locate(uri)
        found += pq.read_table(path, filesystem=filesystem)["item"].to_pylist()
    return sorted(found)


def test_a_call_that_fails_shows_nothing(broker: Broker, destination: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landing, "ROW_GROUP_ROWS", 1)
    good, broker.messages[0][4] = broker.messages[0][4], b""
    with pytest.raises(DataError, match="message 4 is no row"):
        landed(destination)
    assert items(destination) == []
    broker.messages[0][4] = good
    assert landed(destination).record.rows == 12 and items(destination) == ALL
    assert not landed(destination).landed


class UnguardedObject(GuardedObject):
    """As in a store without conditions."""

    def __init__(self, uri: str, holder: str) -> None:
        super().__init__(uri.replace("s3://", "gs://"), holder)
        self._uri = uri


_MOMENTS = ["reading", "before files are visible", "when files are visible"]


@pytest.mark.parametrize(
    ("moment", "stored"),
    [*((moment, UnguardedObject) for moment in _MOMENTS), *((m, GuardedObject) for m in [*_MOMENTS, "at the record"])],
)
def test_of_two_calls_the_later_one_lands_and_the_earlier_one_changes_nothing(
    broker: Broker, destination: str, monkeypatch: pytest.MonkeyPatch, moment: str, stored: type[GuardedObject]
) -> None:
    monkeypatch.setattr(landing, "GuardedObject", stored)
    finish, read, write = landing._DayFiles.finish, landing.PartitionLog, landing._write
    others = iter(["the other call"])

    def other_call(now: str) -> None:
        if now == moment and next(others, None):
            # It finds messages that the earlier call does not know.
            broker.messages[0].append(message(0, 6))
            landed(destination)

    def finishing(files: Any, position: int) -> list[str]:
        other_call("before files are visible")
        found = finish(files, position)
        other_call("when files are visible")
        return found

    def recording(stored: GuardedObject, record: LandRecord) -> None:
        other_call("at the record")
        write(stored, record)

    def opening(topic: str, partition: int, servers: str, settings: object) -> Any:
        log = read(topic, partition, servers, settings)
        bounds = log.bounds()
        log.bounds = lambda: bounds
        other_call("reading")
        return log

    landed_first = landed(destination).record.next_offsets
    assert landed_first == {0: 6, 1: 6}
    broker.messages[0] += [message(0, 7), message(0, 8)]
    monkeypatch.setattr(landing, "PartitionLog", opening)
    monkeypatch.setattr(landing._DayFiles, "finish", finishing)
    monkeypatch.setattr(landing, "_write", recording)
    with pytest.raises(DataError, match="a later call lands into it"):
        landed(destination)
    assert items(destination) == [*ALL[:6], 6, 7, 8, *ALL[6:]]
    assert not landed(destination).landed


def test_a_record_whose_answer_was_lost_is_that_of_this_call(
    broker: Broker, destination: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = landing._write

    def twice(stored: GuardedObject, record: LandRecord) -> None:
        before = stored._version
        write(stored, record)
        stored._version = before  # the client repeats the request, with the condition of the first one
        write(stored, record)

    monkeypatch.setattr(landing, "_write", twice)
    assert landed(destination).record.rows == 12 and items(destination) == ALL
    broker.messages[0].append(message(0, 6))
    assert landed(destination).record.rows == 13 and items(destination) == [*ALL[:6], 6, *ALL[6:]]


def test_of_two_first_calls_one_begins_the_record(destination: str) -> None:
    first, second = (GuardedObject(f"{destination}/_landed.json", holder) for holder in ("a", "b"))
    second.replace(b"second")
    with pytest.raises(ReplacedError, match=r"_landed\.json: was replaced by another call"):
        first.replace(b"first")
    second.replace(b"again")
    assert read_bytes(f"{destination}/_landed.json") == b"again"
