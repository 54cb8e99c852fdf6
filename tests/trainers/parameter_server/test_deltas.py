"""Delta records: together with their base they equal a full record."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.checkpoints import DamagedRecordError, PartManifest, commit_record, open_record, open_store
from elastrec.checkpoints.catalog import list_records, prune
from elastrec.checkpoints.inspection import find_row
from elastrec.checkpoints.manifest import Contents
from elastrec.platform.specs.errors import CheckpointError
from elastrec.platform.specs.job import TrainingJob
from elastrec.trainers.parameter_server.records import share as records
from elastrec.trainers.parameter_server.records.share import restore, save_part
from elastrec.trainers.parameter_server.serving.server import ParameterServer
from elastrec.trainers.parameter_server.storage import copying
from tests.checkpoints.verifying import verify
from tests.trainers.parameter_server.filled import Contents as Rows
from tests.trainers.parameter_server.filled import contents, push, servers_of
from tests.trainers.parameter_server.running import routing_of, training_job


def job_of(delta_values: str = "float32", **tables: dict[str, Any]) -> TrainingJob:
    checkpoint = {"deltas": 5, "delta_values": delta_values}
    return training_job(tables=tables, resources={"virtual_buckets": 64}, checkpoint=checkpoint)


class Job:
    """Servers and their records in one folder."""

    def __init__(
        self, folder: Path, servers: int = 2, *, delta_values: str = "float32", **tables: dict[str, Any]
    ) -> None:
        self.job, self.folder = job_of(delta_values, **tables), folder
        self.servers = servers_of(self.job, servers)
        self.uris: list[str] = []

    def parts(self, name: str, base: str = "") -> tuple[str, list[PartManifest]]:
        uri = f"{self.folder}/clicks/records/{name}"
        return uri, [save_part(server, uri, cut=name, base=base) for server in self.servers]

    def save(self, base: str = "") -> str:
        """A record that builds on the one of another name, if the servers know it."""
        step = len(self.uris) + 1
        uri, parts = self.parts(f"{step:012d}-8c99a8c9-0000000{step}", base)
        commit_record(
            uri, parts, b"{}", job=self.job, job_id="clicks-1", kind="periodic", step=step, generation=1,
            base=base and f"{uri.rpartition('/')[0]}/{base}",
        )  # fmt: skip
        self.uris.append(uri)
        return uri

    def restored(self, uri: str, count: int = 3) -> Rows:
        servers = servers_of(self.job, count)
        for server in servers:
            restore(server, uri, routing_of(["nowhere"] * count, buckets=64), 1)
        return contents(servers)


def name_of(uri: str) -> str:
    return uri.rpartition("/")[2]


@settings(max_examples=10, deadline=None)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("push"), st.integers(0, 150), st.integers(1, 40)),
            st.tuples(st.just("evict"), st.integers(20, 90), st.just(0)),
            st.tuples(st.just("save"), st.booleans(), st.integers(0, 2)),
        ),
        min_size=3,
        max_size=14,
    ),
    admit_after=st.sampled_from([1, 2]),
    dimension=st.sampled_from([None, 3]),
)
def test_a_chain_of_records_restores_all_rows_bit_for_bit(
    steps: list[tuple[str, int, int]], admit_after: int, dimension: int | None
) -> None:
    folder, now = Path(tempfile.mkdtemp()), 1000.0
    table = {"evict_after": 100.0, "admit_after": admit_after}
    made, known = Job(folder, user=table, item={**table, "dimension": dimension}), dict[str, Rows]()
    push(made.servers, range(100), 1.0, now)
    try:
        for what, first, second in [*steps, ("save", True, 0)]:
            now += 10.0
            if what == "push":
                push(made.servers, range(first, first + second), 0.5, now)
            elif what == "evict":
                now += first
                for server in made.servers:
                    for store in server.stores:
                        store.evict(now)
            else:
                # Not always on the newest one: that may not have become a record.
                base = made.uris[-1 - second] if first and len(made.uris) > second else ""
                uri = made.save(name_of(base) if base else "")
                known[uri] = contents(made.servers)
        for uri, expected in known.items():
            assert made.restored(uri) == expected
            rows = sum(1 for kind, *_ in expected if kind == "row")
            assert sum(open_record(uri).manifest.rows.values()) == rows
    finally:
        shutil.rmtree(folder)


def test_a_delta_contains_the_changed_rows_and_names_its_base(tmp_path: Path) -> None:
    made = Job(tmp_path)
    push(made.servers, range(2000), 1.0)
    base = made.save()
    push(made.servers, range(20), 1.0)
    delta = open_record(made.save(name_of(base)))
    assert open_record(base).manifest.contents is Contents.FULL
    assert delta.manifest.contents is Contents.DELTA and delta.manifest.base == name_of(base)
    assert delta.manifest.rows == {"user": 2000, "item": 2000}
    assert delta.manifest.size_bytes < open_record(base).manifest.size_bytes / 10
    shares = delta.shares()
    assert all((share.first > 0).all() and (share.last >= share.first).all() for share in shares)
    changed, unchanged = find_row(delta, "user", 7), find_row(delta, "user", 700)
    assert changed.found == unchanged.found == "row"
    assert changed.optimizer_state["accumulator"] > unchanged.optimizer_state["accumulator"]
    assert find_row(delta, "user", 5000).found == "absent"
    assert verify(delta) > verify(open_record(base))


def test_buckets_that_changed_much_or_have_a_new_server_are_written_whole(tmp_path: Path) -> None:
    made = Job(tmp_path)
    push(made.servers, range(50_000), 1.0)
    base = made.save()
    push(made.servers, range(50_000), 1.0)
    much = made.save(name_of(base))
    assert open_record(much).manifest.contents is Contents.FULL and not open_record(much).manifest.base
    push(made.servers, range(10), 1.0)
    restore(made.servers[1], much, routing_of(["nowhere"] * 2, buckets=64), 1)
    partly = open_record(made.save(name_of(much)))
    assert [bool(share.first.any()) for share in partly.shares()] == [True, False]
    assert made.restored(partly.uri) == contents(made.servers)


def values_and_rest(rows: Rows, row_id: int) -> tuple[np.ndarray, tuple[Any, ...]]:
    state, values, versions = rows["row", "user", row_id]
    return np.frombuffer(values, np.float32), (state, versions)


def test_only_changed_rows_are_rounded_and_only_if_the_job_file_sets_it(tmp_path: Path) -> None:
    made = Job(tmp_path, delta_values="int8")
    push(made.servers, range(2000), 1.0)
    base = made.save()
    assert made.restored(base) == contents(made.servers)
    push(made.servers, range(20), 1.0)
    delta = made.save(name_of(base))
    held, restored = contents(made.servers), made.restored(delta)
    assert held.keys() == restored.keys()
    assert {key for key, row in held.items() if restored[key] != row} <= {
        ("row", table, row_id) for table in ("user", "item") for row_id in range(20)
    }
    rounded = 0
    for row_id in range(20):
        values, rest = values_and_rest(held, row_id)
        after, rest_after = values_and_rest(restored, row_id)
        assert rest_after == rest
        np.testing.assert_allclose(after, values, rtol=0, atol=np.abs(values).max() * 0.501 / 127)
        rounded += bool((after != values).any())
    assert rounded > 10
    changed = find_row(open_record(delta), "user", 7)
    assert changed.found == "row"


def test_a_bucket_written_completely_into_a_delta_is_not_rounded(tmp_path: Path) -> None:
    made = Job(tmp_path, delta_values="int8")
    push(made.servers, range(2000), 1.0)
    base = made.save()
    push(made.servers, range(10), 1.0)
    restore(made.servers[1], base, routing_of(["nowhere"] * 2, buckets=64), 1)
    push(made.servers, range(10), 1.0)
    partly = open_record(made.save(name_of(base)))
    assert [bool(share.first.any()) for share in partly.shares()] == [True, False]
    held, restored = contents(made.servers), made.restored(partly.uri)
    theirs = contents(made.servers[1:])
    assert len(theirs) > 1000 and all(restored[key] == row for key, row in theirs.items())
    assert any(restored[key] != row for key, row in held.items())


def test_rows_evicted_since_the_base_are_not_restored(tmp_path: Path) -> None:
    made = Job(tmp_path, user={"evict_after": 100.0}, item={"evict_after": 100.0})
    push(made.servers, range(2000), 1.0, now=1000.0)
    push(made.servers, range(1950), 1.0, now=1050.0)
    base = made.save()
    for server in made.servers:
        for store in server.stores:
            store.evict(1120.0)
    delta = made.save(name_of(base))
    assert open_record(delta).manifest.rows == {"user": 1950, "item": 1950}
    assert find_row(open_record(base), "user", 1980).found == "row"
    assert find_row(open_record(delta), "user", 1980).found == "absent"
    assert made.restored(delta) == contents(made.servers)


def test_a_delta_whose_base_is_another_one_is_not_committed(tmp_path: Path) -> None:
    made = Job(tmp_path)
    push(made.servers, range(2000), 1.0)
    first = made.save()
    push(made.servers, range(10), 1.0)
    second = made.save(name_of(first))
    push(made.servers, range(10), 1.0)
    uri, parts = made.parts("000000000009-8c99a8c9-00000009", name_of(second))

    def commit(base: str) -> None:
        commit_record(
            uri, parts, b"{}", job=made.job, job_id="clicks-1", kind="periodic", step=9, generation=1, base=base
        )

    message = r"part ps-0 has changes of bucket 0 of the tables user, item from version 2, but .* ends with version "
    with pytest.raises(CheckpointError, match=message + "0"):
        commit(first)
    with pytest.raises(CheckpointError, match=message + "-1"):
        commit("")
    commit(second)
    assert made.restored(uri) == contents(made.servers)


def test_pruning_keeps_bases_of_kept_records_and_no_record_with_a_damaged_base(tmp_path: Path) -> None:
    made = Job(tmp_path)
    push(made.servers, range(2000), 1.0)
    for base in (None, 0, 1, None, 3):
        push(made.servers, range(10), 1.0)
        made.save("" if base is None else name_of(made.uris[base]))
    store = str(tmp_path)

    def listed() -> list[str]:
        return [name_of(uri) for uri, _ in list_records(store, "clicks", "clicks-1")]

    names = [name_of(uri) for uri in made.uris]
    assert listed() == names[::-1]
    prune(store, "clicks", "clicks-1", keep=3)
    assert listed() == names[::-1]
    prune(store, "clicks", "clicks-1", keep=2)
    assert listed() == [names[4], names[3]]
    push(made.servers, range(10), 1.0)
    made.save(names[4])
    prune(store, "clicks", "clicks-1", keep=1, damaged=[made.uris[4]])
    assert listed() == [names[3]]
    assert made.restored(made.uris[3])


def test_a_record_without_its_base_is_refused(tmp_path: Path) -> None:
    made = Job(tmp_path)
    push(made.servers, range(2000), 1.0)
    base = made.save()
    push(made.servers, range(10), 1.0)
    delta = made.save(name_of(base))
    shutil.rmtree(base)
    assert list_records(str(tmp_path), "clicks") == []
    server: ParameterServer = servers_of(made.job, 1)[0]
    with pytest.raises(CheckpointError, match=f"{name_of(base)}: no complete checkpoint record"):
        restore(server, delta, routing_of(["nowhere"], buckets=64), 1)


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_damage_is_that_of_the_record_in_the_chain_that_has_it(tmp_path: Path, bad: int) -> None:
    made = Job(tmp_path)
    push(made.servers, range(2000), 1.0)
    made.save()
    for _ in range(2):
        push(made.servers, range(10), 1.0)
        made.save(name_of(made.uris[-1]))
    server: ParameterServer = servers_of(made.job, 1)[0]

    def blamed() -> str:
        with pytest.raises(DamagedRecordError) as caught:
            restore(server, made.uris[-1], routing_of(["nowhere"], buckets=64), 1)
        return caught.value.record

    parts = [*Path(made.uris[bad], "parts").iterdir()]
    for part in parts:
        data = bytearray(part.read_bytes())
        data[len(data) // 4 : len(data) // 4 + 64] = bytes(byte ^ 0xFF for byte in data[len(data) // 4 :][:64])
        part.write_bytes(data)
    assert blamed() == open_store(made.uris[bad]).uri
    Path(made.uris[bad], "manifest.json").write_bytes(b"{}")
    assert blamed() == (open_store(made.uris[bad]).uri if bad < 2 else "")


@settings(max_examples=10, deadline=None)
@given(
    before=st.lists(st.tuples(st.integers(0, 400), st.integers(1, 60)), max_size=4),
    during=st.lists(st.tuples(st.sampled_from(["push", "push", "evict"]), st.integers(0, 450)), max_size=12),
    admit_after=st.sampled_from([1, 2]),
)
def test_rows_changed_during_a_delta_are_in_the_next_one(
    before: list[tuple[int, int]], during: list[tuple[str, int]], admit_after: int
) -> None:
    folder, now = Path(tempfile.mkdtemp()), 1000.0
    table = {"evict_after": 100.0, "admit_after": admit_after}
    made = Job(folder, 1, user=table, item=table)
    push(made.servers, range(400), 1.0, now)
    push(made.servers, range(100, 400), 1.0, now + 50.0)
    (server,) = made.servers
    left, looks = list(during), list[bool]()

    def change() -> bool:
        looks.append(True)
        if left and len(looks) > 1:  # the first time nothing is frozen yet
            what, value = left.pop()
            if what == "push":
                push(made.servers, range(value, value + 30), 0.25, now + 80.0)
            else:
                for store in server.stores:
                    store.evict(now + 110.0)
        return True

    with pytest.MonkeyPatch.context() as patch:
        # So that there are chunks, and pauses, in the middle of buckets.
        patch.setattr(records, "CHUNK_BYTES", 400)
        patch.setattr(copying, "COPY_STEP_CELLS", 7)
        try:
            base = made.save()
            for first, count in before:
                push(made.servers, range(first, first + count), 0.5, now + 60.0)
            expected = contents(made.servers, versions=False)
            uri = f"{folder}/clicks/records/000000000002-8c99a8c9-00000002"
            part = save_part(server, uri, change, cut=name_of(uri), base=name_of(base))
            commit_record(
                uri, [part], b"{}", job=made.job, job_id="clicks-1", kind="periodic", step=2, generation=1, base=base
            )
            made.uris.append(uri)
            found = servers_of(made.job, 1)
            restore(found[0], uri, routing_of(["nowhere"], buckets=64), 1)
            assert contents(found, versions=False) == expected
            assert made.restored(made.save(name_of(uri)), 1) == contents(made.servers)
        finally:
            shutil.rmtree(folder)


def test_a_delta_reads_only_changed_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Job(tmp_path, 1)
    for first in range(0, 50_000, 10_000):
        push(made.servers, range(first, first + 10_000), 1.0)
    base = made.save()
    push(made.servers, range(0, 50_000, 100), 1.0)
    listed: list[tuple[int, int]] = []
    list_buckets = copying._mark_changed

    def watched(*arguments: Any) -> Any:
        starts, bits = list_buckets(*arguments)
        listed.append((sum(int(word).bit_count() for word in bits.tolist()), 64 * len(bits)))
        return starts, bits

    monkeypatch.setattr(copying, "_mark_changed", watched)
    delta = open_record(made.save(name_of(base)))
    assert sum(changed for changed, _ in listed) == 2 * 500
    assert sum(cells for _, cells in listed) > 2 * 50_000
    written = sum(len(rows) for share in delta.shares() for rows in share.read())
    assert written == 2 * 500 and made.restored(delta.uri, 1) == contents(made.servers)
