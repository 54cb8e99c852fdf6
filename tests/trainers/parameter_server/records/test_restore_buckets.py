"""A server restores some of its buckets while it keeps the others."""

from __future__ import annotations

import shutil
import tempfile
import threading
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.checkpoints import DamagedRecordError, commit_record, open_record
from elastrec.checkpoints import record as record_module
from elastrec.platform.specs.errors import CheckpointError, ElastrecError
from elastrec.platform.specs.job import TrainingJob
from elastrec.trainers.parameter_server.hashing import buckets_of
from elastrec.trainers.parameter_server.messages import InitDense, Stale
from elastrec.trainers.parameter_server.model import Model
from elastrec.trainers.parameter_server.records import share as records
from elastrec.trainers.parameter_server.records.share import restore, restore_buckets, save_part
from elastrec.trainers.parameter_server.serving.server import ParameterServer
from tests.trainers.parameter_server import calls
from tests.trainers.parameter_server.calls import BATCH, LAYOUT, SGD, applied, leave, origin, stamp
from tests.trainers.parameter_server.filled import Contents, contents, job_with, push, save, servers_of
from tests.trainers.parameter_server.running import routing_of, training_job

BUCKETS = 64
TABLE: dict[str, Any] = {"evict_after": 100.0, "admit_after": 2}


def of_buckets(held: Contents, buckets: Sequence[int]) -> Contents:
    return {
        key: value for key, value in held.items() if int(buckets_of(np.array([key[2]]), key[1], BUCKETS)[0]) in buckets
    }


def rest(buckets: Sequence[int], servers: int = 1) -> list[int]:
    """Buckets of ps-0 that are not these."""
    return [bucket for bucket in range(0, BUCKETS, servers) if bucket not in buckets]


def routing(servers: int = 1, epoch: int = 1) -> Any:
    return routing_of(["nowhere"] * servers, buckets=BUCKETS, epoch=epoch)


@settings(max_examples=12, deadline=None)
@given(
    chosen=st.sets(st.integers(0, BUCKETS - 1), max_size=BUCKETS),
    later=st.lists(st.tuples(st.integers(0, 300), st.integers(1, 60)), max_size=4),
    evicts=st.booleans(),
    delta=st.booleans(),
)
def test_restored_buckets_equal_a_full_restore_and_others_do_not_change(
    chosen: set[int], later: list[tuple[int, int]], evicts: bool, delta: bool
) -> None:
    folder, buckets = Path(tempfile.mkdtemp()), sorted(chosen)
    try:
        job = training_job(
            tables={"user": TABLE, "item": {}}, resources={"virtual_buckets": BUCKETS}, checkpoint={"deltas": 5}
        )
        (server,) = servers_of(job, 1)
        push([server], range(200), 1.0)
        uri = saved(job, server, folder / "first")
        if delta:
            push([server], range(150, 160), 1.0)
            uri = saved(job, server, folder / "second", base="first")
            assert open_record(uri).manifest.base
        (whole,) = servers_of(job, 1)
        restore(whole, uri, routing(), 1)
        for first, count in later:
            push([server], range(first, first + count), 0.5, now=1050.0)
        if evicts:
            for store in server.stores:
                store.evict(1120.0)
        before = contents([server])
        restore_buckets(server, uri, np.array(buckets, np.int64), routing(epoch=2), 1, with_marks=True)
        after = contents([server])
        assert of_buckets(after, buckets) == of_buckets(contents([whole]), buckets)
        assert of_buckets(after, rest(buckets)) == of_buckets(before, rest(buckets))
        assert server.ready and server.epoch == 2
        rows = {usage.table: usage.rows for usage in server.usage()}
        assert rows == {table: sum(key[:2] == ("row", table) for key in after) for table in ("user", "item")}
        # And what is saved from here on is what is held.
        (other,) = servers_of(job, 1)
        restore(other, saved(job, server, folder / "third", base=Path(uri).name), routing(), 1)
        assert contents([other]) == contents([server])
    finally:
        shutil.rmtree(folder)


def saved(job: TrainingJob, server: ParameterServer, uri: Path, base: str = "") -> str:
    part = save_part(server, str(uri), cut=uri.name, base=base)
    commit_record(
        str(uri), [part], b"{}", job=job, job_id="job-1", kind="periodic", step=1, generation=1,
        base=base and f"{uri.parent}/{base}",
    )  # fmt: skip
    return str(uri)


def test_a_server_restores_the_buckets_of_a_lost_server_and_keeps_its_own(tmp_path: Path) -> None:
    job = job_with()
    servers = servers_of(job, 2)
    for server, value in zip(servers, (5.0, 7.0), strict=True):
        server.init_dense(InitDense(stamp=stamp("a"), layout=LAYOUT), [np.full(1, value, np.float32)])
    push(servers, range(300), 1.0)
    uri = save(servers, job, str(tmp_path / "record"))
    lost = of_buckets(contents(servers), range(1, BUCKETS, 2))
    push(servers, range(300), 1.0)
    kept = contents(servers[:1])
    buckets = np.arange(1, BUCKETS, 2)
    with pytest.raises(ElastrecError, match="has to keep dense bucket 32, which it does not hold"):
        restore_buckets(servers[0], uri, buckets, routing(1, epoch=2), 2, with_marks=True)
    assert servers[0].ready
    dense = np.arange(32, 64)
    restore_buckets(servers[0], uri, buckets, routing(1, epoch=2), 2, dense_buckets=dense, with_marks=True)
    assert contents(servers[:1]) == kept | lost
    assert servers[0].dense is not None and servers[0].dense.values.tolist() == [5.0, 7.0]
    assert servers[0].place is not None and servers[0].place.owned.all()


def test_a_restore_frees_the_old_rows_first_and_needs_little_memory_besides_the_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "CHUNK_BYTES", 100_000)
    monkeypatch.setattr(record_module, "READ_AHEAD_BYTES", 200_000)
    job = job_with(BUCKETS)
    (server,) = servers_of(job, 1)
    for first in range(0, 60_000, 10_000):
        push([server], range(first, first + 10_000), 1.0)
    uri = save([server], job, str(tmp_path / "record"))
    buckets = np.arange(0, BUCKETS, 2)
    restore_buckets(server, uri, buckets, routing(), 1, with_marks=True)  # the first one compiles
    (store,), held = server.stores, []
    load = records.Loader.take

    def take(self: Any, share: Any) -> Any:
        held.append(store.memory_bytes)
        for _ in load(self, share):
            held.append(store.memory_bytes)
            yield

    monkeypatch.setattr(records.Loader, "take", take)
    before = store.memory_bytes
    tracemalloc.start()
    restore_buckets(server, uri, buckets, routing(), 1, with_marks=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert store.rows == 120_000 and len(held) > 10
    restored = before - held[0]
    assert 0.4 * before < restored < 0.6 * before, "what is restored was given back first"
    assert max(held) + peak < held[0] + 1.1 * restored + 2_000_000
    assert max(held) < held[0] + 1.1 * restored


def server_of(mode: str = "async", workers: int = 1) -> tuple[TrainingJob, ParameterServer]:
    training = {"batch_size": BATCH, "consistency": {"mode": mode}}
    resources = {"virtual_buckets": BUCKETS, "worker": {"count": workers}}
    job = training_job(optimizers=SGD, training=training, resources=resources)
    server = ParameterServer("ps-0", job.spec, capacity_rows=1000)
    server.start_empty(routing(), 1)
    server.init_dense(InitDense(stamp=stamp("a"), layout=LAYOUT), [np.zeros(2, np.float32)])
    return job, server


IDS = list(range(40))
"""Of the table `user`."""
HALF = np.arange(0, BUCKETS, 2)


def expected(of_half: float, of_others: float) -> list[float]:
    return [of_half if bucket in HALF else of_others for bucket in buckets_of(np.array(IDS), "user", BUCKETS).tolist()]


def pushed(server: ParameterServer, place: int, **names: Any) -> Any:
    return calls.push(server, "a", place, IDS, 1.0, **names)[0]


def test_kept_buckets_apply_no_push_twice_when_splits_return_to_the_record(tmp_path: Path) -> None:
    job, server = server_of()
    pushed(server, 0)
    uri = saved(job, server, tmp_path / "record")
    for place in (1, 2):
        pushed(server, place)
    restore_buckets(server, uri, HALF, routing(epoch=2), 2, with_marks=True)
    assert steps_at(server) == expected(1, 3)
    for place in range(4):
        assert pushed(server, place, epoch=2, generation=2) == applied(max(0, place))
    assert steps_at(server) == expected(4, 4)
    assert server.dense is not None and server.dense.values[0] == -4
    assert len(server.pushes.marks.values()) == 1


def steps_at(server: ParameterServer) -> list[float]:
    _, fresh = server_of()
    mine = {"epoch": server.epoch, "generation": server.generation}
    rows = [
        calls.pull(each, "reader", IDS, **names)[1][0].reshape(len(IDS), -1)[:, 0]
        for each, names in ((fresh, {}), (server, mine))
    ]
    leave(server, "reader", **mine)
    return [round(float(value), 4) for value in rows[0] - rows[1]]


def test_without_a_rollback_of_splits_restored_buckets_lose_later_pushes(tmp_path: Path) -> None:
    job, server = server_of()
    pushed(server, 0)
    uri = saved(job, server, tmp_path / "record")
    pushed(server, 1)
    restore_buckets(server, uri, HALF, routing(epoch=2), 1, with_marks=False)
    # A worker goes on behind its last push; nothing is missing before it.
    assert pushed(server, 2, epoch=2) == applied(2)
    assert steps_at(server) == expected(2, 3)
    assert pushed(server, 1, epoch=2) == applied(2)
    assert steps_at(server) == expected(2, 3)


def test_restored_dense_buckets_have_the_step_counts_of_their_record(tmp_path: Path) -> None:
    job, server = server_of()
    pushed(server, 0)
    uri = saved(job, server, tmp_path / "record")
    pushed(server, 1)
    dense = range(32)  # the first of two elements
    restore_buckets(server, uri, HALF, routing(epoch=2), 2, dense_buckets=dense, with_marks=True)
    assert server.dense is not None and server.dense.values.tolist() == [-1, -2]
    pushed(server, 1, epoch=2, generation=2)
    assert server.dense.values.tolist() == [-2, -2] and steps_at(server) == expected(2, 2)


def test_dense_parameters_that_the_record_does_not_hold_are_refused(tmp_path: Path) -> None:
    job, server = server_of()
    (empty,) = servers_of(job, 1)
    uri = saved(job, empty, tmp_path / "record")
    with pytest.raises(CheckpointError, match=r"does not hold the dense parameters \['w'\]"):
        restore_buckets(server, uri, HALF, routing(), 1, dense_buckets=range(64), with_marks=True)
    assert not server.ready
    restore_buckets(server, uri, HALF, routing(), 1, with_marks=True)
    assert server.ready and server.dense is not None


def test_a_push_that_waits_for_its_round_is_applied_to_restored_and_kept_buckets(tmp_path: Path) -> None:
    job, server = server_of("bsp", workers=2)
    uri = saved(job, server, tmp_path / "record")
    for worker in "ab":
        calls.pull(server, worker, IDS)
    waiting = threading.Thread(target=lambda: calls.push(server, "a", 0, IDS, 1.0))
    waiting.start()
    deadline = threading.Event()
    while not server.pushes.waiting:
        assert not deadline.wait(0.005)
    restore_buckets(server, uri, HALF, routing(epoch=2), 1, with_marks=True)
    waiting.join(30)
    assert calls.push(server, "b", 0, IDS, 1.0, epoch=2)[0] == applied(0)
    assert server.pushes.marks.offset(origin("a", 0).split) == BATCH
    assert server.dense is not None and server.dense.values[0] == -1


def test_after_a_damaged_record_the_kept_buckets_are_intact_and_another_can_be_restored(tmp_path: Path) -> None:
    job = job_with()
    (server,) = servers_of(job, 1)
    push([server], range(300), 1.0)
    older = save([server], job, str(tmp_path / "older"))
    expected_rows = of_buckets(contents([server]), HALF.tolist())
    push([server], range(300), 1.0)
    newer = save([server], job, str(tmp_path / "newer"))
    push([server], range(300), 1.0)
    kept = of_buckets(contents([server]), rest(HALF.tolist()))
    (part,) = open_record(newer).manifest.parts
    flip(tmp_path / "newer" / part.file, open_record(newer).index(part)[0].span[0])
    with pytest.raises(DamagedRecordError):
        restore_buckets(server, newer, HALF, routing(), 1, with_marks=True)
    assert not server.ready and contents([server]) == kept
    with pytest.raises(ElastrecError, match="server ps-0 has to keep bucket 0, which it does not hold"):
        restore_buckets(server, older, np.array([2]), routing(), 1, with_marks=True)
    restore_buckets(server, older, HALF, routing(), 1, with_marks=True)
    assert server.ready
    assert without_versions(contents([server])) == without_versions(expected_rows | kept)


def without_versions(held: Contents) -> set[tuple[str, str, int]]:
    return set(held)


def flip(file: Path, place: int) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)


def test_a_pull_in_progress_is_answered_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, server = server_of()
    pushed(server, 0)
    uri = saved(job, server, tmp_path / "record")
    is_pulling, may_go_on = threading.Event(), threading.Event()
    pull = Model.pull

    def slow(self: Model, *arguments: Any, **options: Any) -> Any:
        is_pulling.set()
        assert may_go_on.wait(30)
        return pull(self, *arguments, **options)

    monkeypatch.setattr(Model, "pull", slow)
    answers: list[Any] = []
    pulling = threading.Thread(target=lambda: answers.append(calls.pull(server, "a", IDS)[0]))
    pulling.start()
    assert is_pulling.wait(30)
    restore_buckets(server, uri, HALF, routing(), 1, with_marks=True)
    may_go_on.set()
    pulling.join(30)
    assert isinstance(answers[0], Stale)


@pytest.mark.parametrize(
    ("buckets", "servers", "message"),
    [
        ([1], 2, "has to restore bucket 1, which another server owns"),
        ([0], 1, "has to keep bucket 1, which it does not hold"),
        ([0], 3, "holds bucket 2, which another server owns"),
    ],
)
def test_a_restore_that_contradicts_the_routing_changes_nothing(
    tmp_path: Path, buckets: list[int], servers: int, message: str
) -> None:
    job = job_with()
    pair = servers_of(job, 2)
    push(pair, range(100), 1.0)
    uri, before = save(pair, job, str(tmp_path / "record")), contents(pair[:1])
    with pytest.raises(ElastrecError, match=f"server ps-0 {message}"):
        restore_buckets(pair[0], uri, np.array(buckets), routing(servers, epoch=2), 1, with_marks=True)
    assert pair[0].ready and pair[0].epoch == 1 and contents(pair[:1]) == before


def test_a_record_of_another_number_of_buckets_is_refused(tmp_path: Path) -> None:
    job = job_with(96)
    uri = save(servers_of(job, 1), job, str(tmp_path / "record"))
    (server,) = servers_of(job_with(), 1)
    with pytest.raises(CheckpointError, match=r"has 96 virtual buckets, the job has 64: .* restore all of them"):
        restore_buckets(server, uri, HALF, routing(), 1, with_marks=True)
    assert server.ready
