"""Marks of applied pushes in records: after a restore a push that the record holds does not count again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from elastrec.checkpoints import (
    DamagedRecordError,
    PartManifest,
    PartWriter,
    SectionKind,
    answer,
    commit_record,
    open_record,
)
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.splits import TRAINING_STREAM
from elastrec.platform.transport.messages.directive import RoutingTable
from elastrec.trainers.parameter_server.messages import WHOLE, InitDense, Push, Stale
from elastrec.trainers.parameter_server.model import Model
from elastrec.trainers.parameter_server.records.recorded_marks import encode_marks, marks_of
from elastrec.trainers.parameter_server.records.share import restore, save_part
from elastrec.trainers.parameter_server.serving.marks import BucketMarks, StreamMarks
from elastrec.trainers.parameter_server.serving.server import ParameterServer
from tests.processes import wait_for
from tests.splits import origin_of
from tests.trainers.parameter_server.calls import (
    BATCH,
    LAYOUT,
    SGD,
    applied,
    gradient,
    leave,
    origin,
    pull,
    push,
    stamp,
)
from tests.trainers.parameter_server.running import routing_of, training_job

FORMAT_1 = Path(__file__).parent / "format_1" / "record"
MODES = ["async", "ssp", "bsp"]


def job_of(mode: str = "async", buckets: int = 256, workers: int = 1) -> TrainingJob:
    training = {"batch_size": BATCH, "consistency": {"mode": mode}}
    resources = {"virtual_buckets": buckets, "worker": {"count": workers}}
    return training_job(optimizers=SGD, training=training, resources=resources, checkpoint={"deltas": 5})


def started(job: TrainingJob, count: int = 1) -> list[ParameterServer]:
    servers = [ParameterServer(f"ps-{number}", job.spec, capacity_rows=1000) for number in range(count)]
    for server in servers:
        server.start_empty(routing(job, count), 1)
        server.init_dense(InitDense(stamp=stamp("a"), layout=LAYOUT), [np.zeros(2 // count, np.float32)])
    return servers


def routing(job: TrainingJob, count: int) -> RoutingTable:
    return routing_of(["here:1"] * count, buckets=job.spec.resources.virtual_buckets)


def commit(job: TrainingJob, uri: Path, parts: Sequence[PartManifest], base: str = "") -> str:
    commit_record(
        str(uri), list(parts), b"{}", job=job, job_id="clicks-1", kind="periodic", step=1, generation=1,
        base=base and f"{uri.parent}/{base}",
    )  # fmt: skip
    return str(uri)


def saved(job: TrainingJob, servers: Sequence[ParameterServer], uri: Path, base: str = "") -> str:
    return commit(job, uri, [save_part(server, str(uri), cut=uri.name, base=base) for server in servers], base)


def restored(job: TrainingJob, uri: str, count: int = 1, *, with_marks: bool = True) -> list[ParameterServer]:
    """Other servers, which have restored the record."""
    servers = [ParameterServer(f"ps-{number}", job.spec, capacity_rows=1000) for number in range(count)]
    for server in servers:
        restore(server, uri, routing(job, count), 1, with_marks=with_marks)
    return servers


def steps(server: ParameterServer) -> float:
    """Gradients of 1 that the dense parameters, and the row that all pushes name, have taken."""
    assert server.dense is not None
    row = pull(server, "reader", [1])[1][0]
    first = pull(started(job_of())[0], "reader", [1])[1][0]
    leave(server, "reader")
    np.testing.assert_allclose(first - row, -server.dense.values[0], atol=1e-5)
    return float(-server.dense.values[0])


@pytest.mark.parametrize("mode", MODES)
def test_a_push_in_the_record_is_answered_as_applied_and_changes_nothing(tmp_path: Path, mode: str) -> None:
    job = job_of(mode)
    (server,) = started(job)
    for place in range(2):
        assert push(server, "a", place, [1], 1.0)[0] == applied(place)
    uri = saved(job, [server], tmp_path / "record")
    # Neither is this push in the record, nor its answer with the worker.
    assert push(server, "a", 2, [1], 1.0)[0] == applied(2)
    (server,) = restored(job, uri)
    assert push(server, "a", 1, [1], 1.0)[0] == applied(1)
    assert steps(server) == 2
    assert push(server, "a", 2, [1], 1.0)[0] == applied(2)
    assert steps(server) == 3


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("acknowledged", [0, 1, 2])
def test_rows_count_once_even_if_positions_are_behind_the_marks(tmp_path: Path, mode: str, acknowledged: int) -> None:
    """Another worker trains the split from where the first one had reported."""
    job = job_of(mode)
    (server,) = started(job)
    for place in range(2):
        push(server, "a", place, [1], 1.0)
    (server,) = restored(job, saved(job, [server], tmp_path / "record"))
    for place in range(acknowledged, 4):
        again = msgspec.structs.replace(origin("a", place), attempt=2, is_first=place == acknowledged)
        message = Push(stamp=stamp("b"), origin=again, samples=BATCH, number=place + 1)
        assert server.push(message, gradient([1], 1.0))[0] == applied(max(1, place))
    assert steps(server) == 4


def test_a_bsp_worker_whose_push_is_in_the_record_continues_while_others_train(tmp_path: Path) -> None:
    job = job_of("bsp", workers=2)
    (server,) = started(job)
    for worker in "ab":
        pull(server, worker, [1])
    at_once(lambda: push(server, "a", 0, [1], 1.0), lambda: push(server, "b", 0, [1], 1.0))
    assert server.dense is not None and server.dense.values[0] == -1
    # Of this round the record holds nothing: its step has not been taken.
    waiting = threading.Thread(target=lambda: push(server, "a", 1, [1], 1.0))
    waiting.start()
    wait_for(lambda: server.pushes.waiting == 1, 60, "a push that waits")
    uri = saved(job, [server], tmp_path / "record")
    push(server, "b", 1, [1], 1.0)
    waiting.join()
    (server,) = restored(job, uri)
    for worker in "ab":
        pull(server, worker, [1])
    # The worker of split b had reported nothing.
    assert push(server, "b", 0, [1], 1.0)[0] == applied(0)
    at_once(lambda: push(server, "a", 1, [1], 1.0), lambda: push(server, "b", 1, [1], 1.0))
    assert server.dense is not None and server.dense.values[0] == -2


def at_once(*calls: Callable[[], object]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_a_restore_of_only_weights_reads_no_marks(tmp_path: Path) -> None:
    job = job_of()
    (server,) = started(job)
    push(server, "a", 0, [1], 1.0)
    (server,) = restored(job, saved(job, [server], tmp_path / "record"), with_marks=False)
    assert server.pushes.marks.offset(origin("a", 0).split) == -1
    assert push(server, "a", 0, [1], 1.0)[0] == applied(0)
    assert steps(server) == 2


def test_a_push_that_arrives_while_the_part_is_written_is_not_in_its_marks(tmp_path: Path) -> None:
    job = job_of()
    (server,) = started(job)
    push(server, "a", 0, [1], 1.0)
    looks: list[bool] = []

    def is_wanted() -> bool:
        looks.append(True)
        if len(looks) == 2:  # the buckets are frozen, nothing is written yet
            assert push(server, "a", 1, [1], 1.0)[0] == applied(1)
        return True

    uri = commit(job, tmp_path / "record", [save_part(server, str(tmp_path / "record"), is_wanted)])
    assert len(looks) > 2 and steps(server) == 2
    (server,) = restored(job, uri)
    assert steps(server) == 1
    assert push(server, "a", 1, [1], 1.0)[0] == applied(1)
    assert steps(server) == 2


def test_a_save_waits_for_a_push_that_is_in_the_parameters_and_not_yet_marked(tmp_path: Path) -> None:
    job = job_of()
    (server,) = started(job)
    push(server, "a", 0, [1], 1.0)
    is_applied, may_go_on = threading.Event(), threading.Event()
    apply = server.pushes.applied

    def applied_late(pushes: object) -> None:
        is_applied.set()
        assert may_go_on.wait(60)
        apply(pushes)  # type: ignore[arg-type]

    server.pushes.applied = applied_late  # type: ignore[method-assign, assignment]
    pushing = threading.Thread(target=lambda: push(server, "a", 1, [1], 1.0))
    parts: list[PartManifest] = []
    saving = threading.Thread(target=lambda: parts.append(save_part(server, str(tmp_path / "record"))))
    pushing.start()
    assert is_applied.wait(60)
    saving.start()
    saving.join(0.3)
    assert saving.is_alive() and not parts, "the save waits at the gate"
    may_go_on.set()
    for thread in (pushing, saving):
        thread.join(60)
    (server,) = restored(job, commit(job, tmp_path / "record", parts))
    assert push(server, "a", 1, [1], 1.0)[0] == applied(1)
    assert steps(server) == 2


def test_a_chain_of_records_has_the_marks_of_its_last_delta(tmp_path: Path) -> None:
    job = job_of()
    (server,) = started(job)
    push(server, "a", 0, list(range(1, 200)), 1.0)
    saved(job, [server], tmp_path / "first")
    push(server, "a", 1, [1], 1.0)
    uri = saved(job, [server], tmp_path / "second", base="first")
    assert open_record(uri).manifest.base == "first"
    (server,) = restored(job, uri)
    assert push(server, "a", 1, [1], 1.0)[0] == applied(1)
    assert steps(server) == 2
    assert push(server, "a", 2, [1], 1.0)[0] == applied(2)
    assert steps(server) == 3


def buckets_of(server: ParameterServer) -> list[int]:
    """Its virtual buckets, then its dense ones."""
    assert server.place is not None
    numbers: list[int] = np.flatnonzero(np.append(server.place.owned, server.place.dense_owned)).tolist()
    return numbers


@pytest.mark.parametrize(("before", "after"), [(2, 2), (2, 1), (2, 3), (1, 2)])
def test_every_bucket_is_restored_with_its_own_marks(tmp_path: Path, before: int, after: int) -> None:
    """A worker was lost when one of two servers had its push and the other had not."""
    job = job_of(buckets=64)
    servers = started(job, before)
    for server in servers:
        server.pushes.marks.advance(origin_of(0))
    servers[0].pushes.marks.advance(origin_of(1))
    servers[0].pushes.marks.advance(origin_of(0, number=7, is_last=True))
    expected = {
        bucket: ahead for server, ahead in zip(servers, (True, False), strict=False) for bucket in buckets_of(server)
    }
    uri = saved(job, servers, tmp_path / "record")
    for server in restored(job, uri, after):
        marks = server.pushes.marks
        mine = buckets_of(server)
        is_mixed = len({expected[bucket] for bucket in mine}) > 1
        lacking = marks.lacking(origin_of(1))
        found = np.ones(len(mine), np.bool_) if lacking is None else lacking[mine]
        if marks.offset(origin_of(1).split) >= origin_of(1).end:
            found = np.zeros(len(mine), np.bool_)
        assert found.tolist() == [not expected[bucket] for bucket in mine]
        assert marks.offset(origin_of(0).split) >= 20
        done = marks.offset((TRAINING_STREAM, 7))
        assert done == (-1 if is_mixed or not expected[mine[0]] else WHOLE)


def test_another_number_of_buckets_uses_the_lowest_of_all_marks(tmp_path: Path) -> None:
    job = job_of(buckets=64)
    servers = started(job, 2)
    for server in servers:
        server.pushes.marks.advance(origin_of(0))
    servers[0].pushes.marks.advance(origin_of(1))
    uri = saved(job, servers, tmp_path / "record")
    for server in restored(job_of(buckets=96), uri, 3):
        assert server.pushes.marks.offset(origin_of(0).split) == 20
        assert server.pushes.marks.lacking(origin_of(1)) is None


def test_damaged_marks_are_a_damaged_record(tmp_path: Path) -> None:
    job = job_of()
    (server,) = started(job)
    push(server, "a", 0, [1], 1.0)
    uri = saved(job, [server], tmp_path / "record")
    record = open_record(uri)
    (part,) = record.manifest.parts
    (entry,) = (each for each in record.index(part) if each.key.kind is SectionKind.MARKS)
    file = tmp_path / "record" / part.file
    data = bytearray(file.read_bytes())
    data[entry.span[0]] ^= 1
    file.write_bytes(data)
    with pytest.raises(DamagedRecordError, match="array 'bytes' of section marks//0 is damaged"):
        restored(job, uri)
    restored(job, uri, with_marks=False)


DENSE = [3, 4]
STREAMS = [StreamMarks(TRAINING_STREAM, offsets={0: 20})]


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (b"\xc1", "the marks of applied pushes cannot be read"),
        (encode_marks([]) + b"\x00", "the marks of applied pushes cannot be read"),
        (msgspec.msgpack.encode([{"buckets": [0], "dense_buckets": [], "streams": [{"stream": 3}]}]), "cannot be read"),
        (encode_marks([BucketMarks(list(range(63)), DENSE, STREAMS)]), "name 63 virtual and 2 dense .* for 64 and 2"),
        (encode_marks([BucketMarks([*range(63), 64], DENSE, STREAMS)]), "name 64 virtual and 2 dense .* for 64 and 2"),
        (encode_marks([BucketMarks([*range(64), 3], DENSE, STREAMS)]), "name 65 virtual and 2 dense .* for 64 and 2"),
        (encode_marks([BucketMarks(list(range(64)), [4], STREAMS)]), "name 64 virtual and 1 dense .* for 64 and 2"),
    ],
)
def test_marks_that_are_none_or_contradict_their_part_are_damage(tmp_path: Path, written: bytes, message: str) -> None:
    with pytest.raises(DamagedRecordError, match=message):
        restored(job_of(buckets=64), with_part(tmp_path, written))


def with_part(folder: Path, marks: bytes | None) -> str:
    """A record of one part without rows."""
    groups = [answer(["user", "item"], range(64))]
    with PartWriter(str(folder), "ps-0", groups=groups, dense_buckets=DENSE, generation=1) as writer:
        if marks is not None:
            writer.write_marks(marks)
        part = writer.finish()
    return commit(job_of(buckets=64), folder, [part])


def test_a_part_without_marks_has_no_applied_push(tmp_path: Path) -> None:
    job = job_of(buckets=64)
    (server,) = restored(job, with_part(tmp_path, None))
    assert server.ready and server.pushes.marks.offset(origin_of(0).split) == -1
    record = open_record(with_part(tmp_path / "other", encode_marks([BucketMarks(list(range(64)), DENSE, STREAMS)])))
    taken = marks_of(record, np.arange(4, 8), np.arange(4), has_same_buckets=True)
    assert taken == [BucketMarks([4, 5, 6, 7], [3], STREAMS)]


def test_a_record_of_format_1_has_no_marks() -> None:
    record = open_record(str(FORMAT_1))
    count = record.manifest.virtual_buckets
    for same in (True, False):
        marks = marks_of(record, np.arange(count), np.arange(count), has_same_buckets=same)
        assert not any(each.streams for each in marks)


def test_a_pull_in_progress_during_a_restore_is_answered_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of()
    (server,) = started(job)
    push(server, "a", 0, [1, 2], 1.0)
    uri = saved(job, [server], tmp_path / "record")
    is_pulling, may_go_on = threading.Event(), threading.Event()
    original = Model.pull

    def slow(self: Model, *arguments: Any, **options: Any) -> Any:
        is_pulling.set()
        assert may_go_on.wait(60)
        return original(self, *arguments, **options)

    monkeypatch.setattr(Model, "pull", slow)
    answers: list[Any] = []
    pulling = threading.Thread(target=lambda: answers.append(pull(server, "a", [1, 2])[0]))
    pulling.start()
    assert is_pulling.wait(60)
    # The same generation and epoch, so that nothing but the restore makes the answer stale.
    restore(server, uri, routing(job, 1), 1)
    may_go_on.set()
    pulling.join(60)
    assert isinstance(answers[0], Stale)
