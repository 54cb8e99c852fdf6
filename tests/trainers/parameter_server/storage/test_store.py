"""The row store: places, first values, rules, admission, eviction, accounting, and moving rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.platform.specs.errors import TransportError
from elastrec.platform.specs.job import TableSpec
from elastrec.platform.specs.optimizers import OptimizerKind, OptimizerSpec
from elastrec.trainers.parameter_server.hashing import buckets_of, initial_rows
from elastrec.trainers.parameter_server.plan import make_plan
from elastrec.trainers.parameter_server.storage import RowStore, ServerMemoryError
from tests.trainers.parameter_server.storage.copies import copied, take

NONE = np.empty(0, np.int32)
SGD = OptimizerSpec(kind=OptimizerKind.SGD, learning_rate=1.0)


def store_of(table: TableSpec | None = None, optimizer: OptimizerSpec = SGD, **arguments: object) -> RowStore:
    named = {"t": table} if table else {}
    plan = make_plan({"t": 3}, settings=named, initial_range=3**-0.5, rows=optimizer, virtual_buckets=64, seed=9)
    owned = arguments.pop("owned", np.ones(64, np.bool_))
    capacity = arguments.pop("capacity_rows", 10_000)
    return RowStore(plan, plan.groups[0], owned, capacity, **arguments)  # type: ignore[arg-type]


def push(store: RowStore, ids: list[int], gradient: float = 1.0, *, sightings: list[int] | None = None, now: float = 0):
    array = np.array(ids, np.int64)
    seen = np.array(sightings or [1] * len(ids), np.int32)
    store.push(np.array([len(ids)], np.int32), array, seen, np.full((len(ids), 3), gradient, np.float32), now)


def pull(store: RowStore, ids: list[int], *, read_only: bool = True) -> np.ndarray:
    return store.pull(np.array([len(ids)], np.int32), np.array(ids, np.int64), read_only=read_only)[0]


def first_values(ids: list[int]) -> np.ndarray:
    return initial_rows(np.array(ids), "t", seed=9, initial_range=3**-0.5, dimension=3)


def test_a_training_pull_of_a_missing_row_returns_its_initial_value_and_creates_no_row() -> None:
    store = store_of()
    np.testing.assert_array_equal(pull(store, [7, -1], read_only=False), first_values([7, -1]))
    assert store.rows == 0
    assert not pull(store, [7]).any()


def test_first_values_depend_on_seed_table_and_id_and_fill_their_range() -> None:
    ids = np.arange(20_000)
    values = initial_rows(ids, "t", seed=1, initial_range=0.5, dimension=2)
    assert np.abs(values).max() <= 0.5
    assert abs(values.mean()) < 0.01
    assert abs(values.std() - 0.5 / 3**0.5) < 0.01
    assert (values != initial_rows(ids, "t", seed=2, initial_range=0.5, dimension=2)).mean() > 0.999
    assert (values != initial_rows(ids, "u", seed=1, initial_range=0.5, dimension=2)).mean() > 0.999


@settings(max_examples=40, deadline=None)
@given(pushes=st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=200, unique=True), max_size=6))
def test_any_ids_are_found_again_and_counted_once(pushes: list[list[int]]) -> None:
    store, times = store_of(), {}
    for ids in pushes:
        push(store, ids)
        for key in ids:
            times[key] = times.get(key, 0) + 1
    ids = list(times)
    expected = first_values(ids)
    counts = np.array([times[key] for key in ids], np.float32).reshape(-1, 1)
    np.testing.assert_allclose(pull(store, ids), expected - counts if ids else expected, atol=1e-5)
    assert store.rows == len(ids) == store.usage()[0].rows


@pytest.mark.parametrize("stripes", [1, 8])
def test_a_long_request_finds_all_of_its_rows_among_absent_ids(stripes: int) -> None:
    store = store_of(stripes=stripes)
    trained = np.random.default_rng(0).choice(100_000, 5_000, replace=False)
    push(store, trained.tolist())
    asked = np.random.default_rng(1).permutation(np.concatenate([trained, np.arange(100_000, 104_000)]))
    expected = np.where(np.isin(asked, trained)[:, None], first_values(asked.tolist()) - np.float32(1), np.float32(0))
    np.testing.assert_array_equal(pull(store, asked.tolist()), expected)
    push(store, trained[::-1].tolist())
    assert store.rows == len(trained)


def test_a_row_changes_in_the_version_of_its_own_bucket_whatever_stripe_comes_first() -> None:
    store = store_of(stripes=8)
    ids = np.arange(2_000)
    push(store, ids.tolist())
    version = store.bucket(5).mark()
    push(store, ids.tolist())
    changes = store.bucket(5).changes(version)
    assert not changes.is_whole
    assert len(changes.rows) == np.count_nonzero(buckets_of(ids, "t", 64) == 5)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adam_rows_take_torchs_steps(decay: float) -> None:
    rule = OptimizerSpec(kind=OptimizerKind.ADAM, learning_rate=0.05, weight_decay=decay)
    store = store_of(optimizer=rule)
    parameter = torch.nn.Parameter(torch.from_numpy(first_values([1, 2])))
    optimizer = torch.optim.Adam([parameter], lr=0.05, weight_decay=decay)
    random = np.random.default_rng(0)
    for _ in range(10):
        gradient = random.normal(size=(2, 3)).astype(np.float32)
        store.push(np.array([2], np.int32), np.array([1, 2]), NONE, gradient, 0)
        parameter.grad = torch.from_numpy(gradient)
        optimizer.step()
    np.testing.assert_allclose(pull(store, [1, 2]), parameter.detach().numpy(), atol=1e-6)


def test_a_row_is_made_at_its_nth_sighting_and_is_zero_until_then() -> None:
    store = store_of(TableSpec(admit_after=3))
    push(store, [5], sightings=[2])
    assert store.rows == 0
    assert not pull(store, [5], read_only=False).any()
    push(store, [5, 6])
    assert store.rows == 1
    np.testing.assert_allclose(pull(store, [5]), first_values([5]) - 1, atol=1e-6)


def test_rows_not_seen_for_long_are_dropped_and_their_room_is_used_again() -> None:
    store = store_of(TableSpec(evict_after=100.0), capacity_rows=300)
    push(store, list(range(200)), now=1000)
    push(store, list(range(50)), now=1090)
    assert store.evict(1101) == 150
    assert store.rows == 50
    assert pull(store, list(range(50))).any(axis=1).all()
    assert not pull(store, list(range(50, 200))).any()
    push(store, list(range(1000, 1250)), now=1101)
    assert store.rows == 300
    with pytest.raises(ServerMemoryError, match="evict_after"):
        push(store, [9999], now=1101)


def test_a_candidate_is_removed_only_when_it_was_not_seen_for_long() -> None:
    today = 1_800_000_000
    store = store_of(TableSpec(admit_after=2, evict_after=600.0))
    push(store, [1, 2], now=today)
    assert store.evict(today + 600) == 0
    push(store, [1], now=today + 600)
    assert store.rows == 1
    assert store.evict(today + 900) == 1
    push(store, [2], now=today + 900)
    assert store.rows == 1


def test_moved_rows_keep_values_state_and_counters() -> None:
    table = TableSpec(admit_after=2, evict_after=100.0)
    rule = OptimizerSpec(learning_rate=0.1)
    ids = list(range(100))
    half = np.arange(64) < 32
    one = store_of(table, rule)
    push(one, ids, sightings=[1 + key % 2 for key in ids], now=500)
    parts = [store_of(table, rule, owned=half), store_of(table, rule, owned=~half)]
    chunks = copied(one)
    for part in parts:
        take(part, chunks)
    assert sum(part.rows for part in parts) == one.rows == 50
    push(one, ids, now=550)
    buckets = buckets_of(np.array(ids), "t", 64)
    for part, owned in zip(parts, (half, ~half), strict=True):
        mine = [key for key in ids if owned[buckets[key]]]
        push(part, mine, now=550)
        np.testing.assert_array_equal(pull(part, mine), pull(one, mine))
        assert part.evict(601) == 0
        assert part.evict(651) == len(mine)


def test_moved_rows_are_evicted_at_the_same_time_as_unmoved_ones() -> None:
    table = TableSpec(evict_after=100.0)
    one, other = store_of(table), store_of(table)
    push(one, list(range(60)), now=500)
    push(one, list(range(40, 100)), now=550)
    take(other, copied(one))
    assert one.evict(601) == other.evict(601) == 40
    np.testing.assert_array_equal(pull(other, list(range(100))), pull(one, list(range(100))))
    assert pull(other, list(range(40, 100))).any(axis=1).all()
    assert one.evict(651) == other.evict(651) == 60


def test_bytes_are_those_of_rows_and_index() -> None:
    plan = make_plan({"a": 4, "b": 4}, virtual_buckets=64)
    store = RowStore(plan, plan.groups[0], np.ones(64, np.bool_), 10_000)
    counts, ids = np.array([300, 100], np.int32), np.concatenate([np.arange(300), np.arange(100)])
    store.push(counts, ids, NONE, np.ones((400, 4), np.float32), 0)
    usage = store.usage()
    assert [table.rows for table in usage] == [300, 100]
    row_bytes = 4 * (2 + 1 + 1 + 1 + 4)  # id, version, table, accumulator, values
    assert 400 * (row_bytes + 6) < sum(table.bytes for table in usage) < 400 * (row_bytes + 9)
    # What few rows leave unused of slabs and index is in the memory alone.
    assert sum(table.bytes for table in usage) < store.memory_bytes


def test_a_push_with_a_bucket_of_another_server_is_refused_completely() -> None:
    owned = np.zeros(64, np.bool_)
    store = store_of(owned=owned)
    with pytest.raises(TransportError, match="another server"):
        push(store, [1, 2, 3])
    assert store.rows == 0


def test_a_push_with_rows_of_a_pull_equals_a_push_without() -> None:
    table = TableSpec(admit_after=2, evict_after=100.0)
    stores = [store_of(table), store_of(table)]
    counts, ids = np.array([4], np.int32), np.array([1, 2, 3, 4], np.int64)
    for store in stores:
        push(store, [1, 2], sightings=[2, 2])
        push(store, [3])
    _, known = stores[0].pull(counts, ids, read_only=False)
    assert (known.places >= 0).tolist() == [True, True, False, False]
    gradients, seen = np.arange(12, dtype=np.float32).reshape(4, 3), np.ones(4, np.int32)
    for store, lookup in zip(stores, (known, None), strict=True):
        store.push(counts, ids, seen, gradients, 7.0, lookup)
    np.testing.assert_array_equal(pull(stores[0], [1, 2, 3, 4]), pull(stores[1], [1, 2, 3, 4]))
    assert stores[0].usage() == stores[1].usage()
    assert stores[0].evict(105.0) == stores[1].evict(105.0)
