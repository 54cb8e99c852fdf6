"""Lossless conversion between deduplicated tensors and torchrec's KeyedJaggedTensor."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from elastrec.platform.data.deduplicating.deduplicated_batch import deduplicate_batch
from elastrec.platform.data.deduplicating.deduplication import deduplicate
from elastrec.trainers.deduplication import DeduplicatedFeatures, InverseKeyedJaggedTensor, jagged_index_select
from elastrec.trainers.worker.inputs import inputs_of
from tests.trainers.deduplication.grouping import grouped

_lists = st.lists(st.sampled_from([[], [1], [1, 2], [2, 1], [7, 7, 7], [-(2**63)]]), min_size=1, max_size=12)


def keyed(**features: list[list[int]]) -> KeyedJaggedTensor:
    rows = [row for lists in features.values() for row in lists]
    return KeyedJaggedTensor(
        keys=list(features),
        values=torch.tensor([i for row in rows for i in row], dtype=torch.int64),
        lengths=torch.tensor([len(row) for row in rows], dtype=torch.int32),
        stride=len(next(iter(features.values()))),
    )


def lists_of(features: KeyedJaggedTensor) -> dict[str, list[list[int]]]:
    return {key: [row.tolist() for row in features[key].to_dense()] for key in features.keys()}  # noqa: SIM118


@given(_lists.flatmap(lambda a: st.tuples(st.just(a), st.permutations(a))))
@settings(max_examples=60, deadline=None)
def test_a_keyed_jagged_tensor_is_restored_from_its_deduplicated_form(pair: tuple[list[list[int]], ...]) -> None:
    plain = keyed(a=pair[0], b=list(pair[1]))
    group = grouped(plain, ["b", "a"])
    assert group.distinct_rows == len({(tuple(a), tuple(b)) for a, b in zip(*pair, strict=True)})
    assert lists_of(group.expand()) == {"b": list(pair[1]), "a": pair[0]}


def test_the_distinct_rows_are_a_keyed_jagged_tensor_on_the_same_memory() -> None:
    group = grouped(keyed(a=[[3, 4], [5], [3, 4]]), ["a"])
    assert lists_of(group.distinct()) == {"a": [[3, 4], [5]]}
    assert group.distinct().values().data_ptr() == group.values.data_ptr()
    assert group.inverse_lookup.tolist() == [0, 1, 0]


def test_arrow_and_torch_deduplicate_alike() -> None:
    lists = [[1, 2], [], [1, 2], [3]]
    ours = InverseKeyedJaggedTensor.from_numpy(deduplicate({"a": pa.array(lists, pa.list_(pa.int64()))}))
    theirs = grouped(keyed(a=lists), ["a"])
    for name in ("values", "offsets", "inverse_lookup"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name))


@given(st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=6), st.data())
@settings(max_examples=50, deadline=None)
def test_jagged_index_select_picks_lists_in_order(rows: list[list[int]], data: st.DataObject) -> None:
    picked = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=10))
    jagged = keyed(a=rows)
    values, offsets = jagged_index_select(jagged.values(), jagged.offsets().long(), torch.tensor(picked).long())
    assert [part.tolist() for part in torch.tensor_split(values, offsets[1:-1])][: len(picked)] == [
        rows[i] for i in picked
    ]


def test_gradients_of_picked_rows_add_up() -> None:
    rows_LD = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    offsets, index = torch.tensor([0, 2, 2, 5]), torch.tensor([2, 0, 2, 1])
    assert torch.autograd.gradcheck(lambda rows: jagged_index_select(rows, offsets, index)[0], rows_LD)


def test_a_batch_from_the_reader_gives_the_same_features_as_its_plain_form() -> None:
    rng = np.random.default_rng(0)
    pool = [rng.integers(0, 50, rng.integers(0, 6)).tolist() for _ in range(5)]
    columns = {name: [pool[i] for i in rng.integers(0, 5, 40)] for name in ("cart", "likes")}
    batch = pa.RecordBatch.from_pydict(
        {
            "label": pa.array(rng.random(40, np.float32)),
            "item": pa.array(rng.integers(0, 9, 40)),
            **{name: pa.array(lists, pa.list_(pa.int64())) for name, lists in columns.items()},
        }
    )
    for groups in ([["cart"], ["likes"]], [["cart", "likes"]], [["item", "likes"]], [["item"], ["cart", "likes"]]):
        features = DeduplicatedFeatures.from_batch(deduplicate_batch(batch, groups))
        assert features.rows == 40
        assert lists_of(features.expand()) == lists_of(inputs_of(batch).sparse)


def test_an_unknown_feature_of_a_group_is_refused() -> None:
    with pytest.raises(ValueError, match="feature: 'b' is not allowed; allowed: a"):
        grouped(keyed(a=[[1]]), ["a"]).feature("b")
