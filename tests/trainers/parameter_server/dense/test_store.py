"""Dense buckets of one server: steps, copies, moves, records."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.platform.specs.errors import ElastrecError, IncompatibleError
from elastrec.platform.specs.optimizers import OptimizerKind, OptimizerSpec
from elastrec.trainers.parameter_server.dense import store as store_module
from elastrec.trainers.parameter_server.dense.rules import STATE_NAMES
from elastrec.trainers.parameter_server.dense.store import DenseBucket, DenseStore
from elastrec.trainers.parameter_server.messages import Parameter

LAYOUT = [Parameter("over.weight", (5, 3)), Parameter("none", (0,)), Parameter("over.bias", (2,)), Parameter("c", (7,))]
ELEMENTS, BUCKETS, SERVERS, STEPS = 24, 7, 3, 5
START = np.linspace(-1, 1, ELEMENTS).astype(np.float32)
GRADIENTS = np.random.default_rng(3).standard_normal((STEPS, ELEMENTS)).astype(np.float32)
ALL = np.ones(BUCKETS, np.bool_)
NONE = ~ALL


def spec_of(kind: OptimizerKind) -> OptimizerSpec:
    return OptimizerSpec(kind=kind, learning_rate=0.1, weight_decay=0.01)


def share_of(vector: np.ndarray, store: DenseStore) -> np.ndarray:
    return np.concatenate([vector[:0], *(vector[start:end] for start, end in store.runs)])


def store_of(kind: OptimizerKind, owned: np.ndarray = ALL) -> DenseStore:
    empty = DenseStore(LAYOUT, NONE, START[:0], spec_of(kind))
    whole = DenseStore(LAYOUT, ALL, START, spec_of(kind))
    empty.take_in(whole.copies(np.flatnonzero(owned).tolist()))
    return empty


def trained(kind: OptimizerKind, steps: int = STEPS) -> DenseStore:
    store = store_of(kind)
    for gradient in GRADIENTS[:steps]:
        store.apply(gradient)
    return store


def assert_same(left: list[DenseBucket], right: list[DenseBucket]) -> None:
    assert [(bucket.number, bucket.steps) for bucket in left] == [(bucket.number, bucket.steps) for bucket in right]
    for mine, theirs in zip(left, right, strict=True):
        np.testing.assert_array_equal(mine.values, theirs.values)
        np.testing.assert_array_equal(mine.state, theirs.state)


def buckets_of(stores: list[DenseStore]) -> list[DenseBucket]:
    found = [bucket for store in stores for bucket in store.copies(np.flatnonzero(store.owned).tolist())]
    return sorted(found, key=lambda bucket: bucket.number)


actions = st.lists(
    st.one_of(
        st.tuples(st.just("step"), st.integers(0, SERVERS - 1)),
        st.tuples(st.just("move"), st.integers(0, SERVERS - 1), st.sets(st.integers(0, BUCKETS - 1))),
    ),
    max_size=25,
)


@pytest.mark.parametrize("kind", STATE_NAMES)
@settings(max_examples=60, deadline=None)
@given(actions=actions)
def test_moved_dense_buckets_equal_unmoved_ones(kind: OptimizerKind, actions: list[Any]) -> None:
    """Servers take their steps at different times, so buckets that meet on one have taken different numbers of them."""
    stores = [store_of(kind, ALL if server == 0 else NONE) for server in range(SERVERS)]
    applied = np.zeros(BUCKETS, np.int64)

    def step(store: DenseStore) -> None:
        number = int(applied[store.owned].min(initial=STEPS))
        if number < STEPS:
            lacking = store.owned & (applied == number)
            gradient = share_of(GRADIENTS[number], store)
            if (lacking == store.owned).all():
                store.apply(gradient)
            else:
                store.apply(store.part_of(gradient, lacking), lacking)
            applied[lacking] += 1

    for kind_of_action, server, *moved in actions:
        if kind_of_action == "step":
            step(stores[server])
            continue
        for source in stores:
            numbers = [number for number in moved[0] if source.owned[number]]
            if source is not stores[server] and numbers:
                stores[server].take_in(source.copies(numbers))
                source.drop(numbers)
    for _ in range(STEPS * BUCKETS):
        for store in stores:
            step(store)
    assert_same(buckets_of(stores), buckets_of([trained(kind)]))
    assert sum(len(store.values) for store in stores) == ELEMENTS


def test_a_step_of_buckets_with_equal_counts_is_one_call_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, int]] = []
    apply = store_module.apply_rule

    def counted(spec: Any, values: Any, gradient: Any, state: Any, steps: int, *more: Any) -> None:
        calls.append((len(values), steps))
        apply(spec, values, gradient, state, steps, *more)

    monkeypatch.setattr(store_module, "apply_rule", counted)
    store = store_of(OptimizerKind.ADAM, np.arange(BUCKETS) % 2 == 0)
    store.apply(share_of(GRADIENTS[0], store))
    store.apply(share_of(GRADIENTS[1], store))
    assert calls == [(len(store.values), 1), (len(store.values), 2)]
    calls.clear()
    store.take_in(store_of(OptimizerKind.ADAM).copies([1]))
    store.apply(share_of(GRADIENTS[2], store))
    assert [steps for _, steps in calls] == [3, 1, 3]


def test_dense_buckets_without_a_step_do_not_change() -> None:
    store, before = trained(OptimizerKind.ADAM, 1), trained(OptimizerKind.ADAM, 1)
    chosen = np.isin(np.arange(BUCKETS), [2, 5])
    store.apply(store.part_of(GRADIENTS[1], chosen), chosen)
    left = [0, 1, 3, 4, 6]
    assert_same(store.copies(left), before.copies(left))
    after = trained(OptimizerKind.ADAM, 2)
    assert_same(store.copies([2, 5]), after.copies([2, 5]))


def test_values_that_were_read_do_not_change_later() -> None:
    store = store_of(OptimizerKind.SGD)
    values = store.values
    store.apply(GRADIENTS[0])
    store.drop([3])
    store.take_in(trained(OptimizerKind.SGD).copies([3]))
    np.testing.assert_array_equal(values, START)


def test_a_copy_stays_as_it_was() -> None:
    store = trained(OptimizerKind.ADAM, 2)
    copied = store.copy()
    store.apply(GRADIENTS[2])
    assert_same(buckets_of([copied]), buckets_of([trained(OptimizerKind.ADAM, 2)]))


def test_dropping_all_buckets_frees_their_memory() -> None:
    store = store_of(OptimizerKind.ADAM)
    store.drop(range(BUCKETS))
    assert store.values.nbytes == store.state.nbytes == 0 and store.runs == [] and store.steps == 0
    store.apply(START[:0])


def test_buckets_move_from_one_owner_to_another_and_are_never_doubled() -> None:
    store = store_of(OptimizerKind.ADAM, np.arange(BUCKETS) < 3)
    whole = store_of(OptimizerKind.ADAM)
    with pytest.raises(ElastrecError, match=r"dense buckets \[1\]; allowed: .* does not own"):
        store.take_in(whole.copies([1, 4]))
    for refused in (store.drop, store.copies):
        with pytest.raises(ElastrecError, match=r"dense buckets \[5\]; allowed: .* this server owns"):
            refused([0, 5])
    with pytest.raises(ElastrecError, match=r"dense buckets \[7\]"):
        store.copies([7])
    with pytest.raises(ElastrecError, match=r"dense buckets \[4, 4\]; allowed: each once"):
        store.take_in(whole.copies([4]) * 2)
    assert np.flatnonzero(store.owned).tolist() == [0, 1, 2]


def test_a_bucket_of_another_model_is_refused() -> None:
    store = store_of(OptimizerKind.ADAM, NONE)
    with pytest.raises(ElastrecError, match="take it from a server of the same model"):
        store.take_in(store_of(OptimizerKind.SGD).copies([1]))
    other = DenseStore([Parameter("a", (50,))], ALL, np.zeros(50, np.float32), spec_of(OptimizerKind.ADAM))
    with pytest.raises(ElastrecError, match=r"dense bucket 1 has values \(7,\)"):
        store.take_in(other.copies([1]))


def test_values_and_gradients_of_another_length_are_refused() -> None:
    with pytest.raises(IncompatibleError, match="23 dense values for 24 elements"):
        DenseStore(LAYOUT, ALL, START[1:], spec_of(OptimizerKind.SGD))
    store = store_of(OptimizerKind.SGD, np.arange(BUCKETS) < 3)
    with pytest.raises(IncompatibleError, match="a dense gradient of 24 elements for 10 values"):
        store.apply(GRADIENTS[0])
    np.testing.assert_array_equal(store.values, START[:10])


@pytest.mark.parametrize("kind", STATE_NAMES)
@settings(max_examples=30, deadline=None)
@given(
    before=st.lists(st.integers(0, 2), min_size=BUCKETS, max_size=BUCKETS), after=st.sets(st.integers(0, BUCKETS - 1))
)
def test_parts_saved_by_several_servers_are_restored_by_any_other(
    kind: OptimizerKind, before: list[int], after: set[int]
) -> None:
    """Records cut at other places than the buckets that are restored, with buckets of different counts of steps."""
    saved = []
    for server in range(SERVERS):
        store = store_of(kind, np.array(before) == server)
        for gradient in GRADIENTS[: server + 2]:
            store.apply(share_of(gradient, store))
        saved.append(store)
    restored = store_of(kind, np.isin(np.arange(BUCKETS), list(after)))
    restored.values[:] = 0
    taken = [
        restored.take(piece, found.start, arrays, keep_state=True)
        for piece in restored.pieces()
        for store in saved
        for found, arrays in store.saved()
        if found.parameter == piece.parameter
    ]
    assert sum(taken) == len(restored.values)
    wanted = [bucket for bucket in buckets_of(saved) if bucket.number in after]
    if kind is not OptimizerKind.ADAM:
        wanted = [DenseBucket(bucket.number, bucket.values, bucket.state, 0) for bucket in wanted]
    assert_same(buckets_of([restored]), wanted)


def test_new_dense_parameters_take_the_step_count_of_their_bucket() -> None:
    old = trained(OptimizerKind.ADAM, 3)
    restored = store_of(OptimizerKind.ADAM)
    for piece in restored.pieces():
        for found, arrays in old.saved():
            if found.parameter == piece.parameter and found.parameter.name == "over.weight":
                restored.take(piece, found.start, arrays, keep_state=True)
    assert [bucket.steps for bucket in buckets_of([restored])] == [3, 3, 3, 3, 3, 0, 0]
    assert restored.names() == ["over.weight", "over.bias", "c"] and restored.steps == 3
