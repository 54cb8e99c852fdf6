"""Update rules of segments compared with float64 and torch.optim, and the state after a change of rule."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from elastrec.checkpoints.summary import SegmentSummary
from elastrec.platform.specs.job import TableSpec
from elastrec.platform.specs.optimizers import FIRST_ORDER_RULE, OptimizerKind, OptimizerSpec, RowSegment
from elastrec.trainers.parameter_server.hashing import initial_rows
from elastrec.trainers.parameter_server.plan import make_plan
from elastrec.trainers.parameter_server.storage import RowStore
from elastrec.trainers.parameter_server.storage.conversion import SegmentError, converted_states
from tests.trainers.parameter_server.storage.copies import columns_of
from tests.trainers.reference_rules import ReferenceRows

IDS, DIMENSION = np.arange(70), 5
NONE = np.empty(0, np.int32)
RULES = {
    "sgd": OptimizerSpec(kind=OptimizerKind.SGD, learning_rate=0.1),
    "adagrad": OptimizerSpec(learning_rate=0.1, initial_accumulator=0.01),
    "adam": OptimizerSpec(kind=OptimizerKind.ADAM, learning_rate=0.05),
    "ftrl": OptimizerSpec(kind=OptimizerKind.FTRL, learning_rate=0.1, beta=0.5, l2=0.3),
    "ftrl_l1": OptimizerSpec(kind=OptimizerKind.FTRL, learning_rate=0.1, beta=0.1, l1=0.5, initial_accumulator=0.1),
    "decay": OptimizerSpec(learning_rate=0.1, weight_decay=0.05),
    "ftrl_decay": OptimizerSpec(kind=OptimizerKind.FTRL, learning_rate=0.2, weight_decay=0.1),
}


def store_of(rows: OptimizerSpec, first_order: OptimizerSpec | None) -> RowStore:
    plan = make_plan(
        {"t": DIMENSION}, initial_range=0.5, rows=rows, first_order=first_order, virtual_buckets=64, seed=9
    )
    return RowStore(plan, plan.groups[0], np.ones(64, np.bool_), 10_000)


def push(store: RowStore, ids: np.ndarray, gradients: np.ndarray, rate_scale: float = 1.0) -> None:
    store.push(np.array([len(ids)], np.int32), ids, NONE, gradients, 0.0, rate_scale=rate_scale)


def pull(store: RowStore, ids: np.ndarray = IDS) -> np.ndarray:
    return store.pull(np.array([len(ids)], np.int32), ids, read_only=False)[0]


@pytest.mark.parametrize(("rows", "first_order"), list(product(RULES, [None, *RULES])))
def test_segments_take_the_steps_of_their_rules(rows: str, first_order: str | None) -> None:
    store = store_of(RULES[rows], RULES[first_order] if first_order else None)
    first = pull(store)
    assert not first_order or not first[:, 0].any()
    reference = ReferenceRows(store.group.segments, first)
    random = np.random.default_rng(0)
    for step in range(30):
        ids = random.choice(IDS, 40, replace=False)
        gradients = random.normal(size=(40, DIMENSION)).astype(np.float32) * 0.1 ** (step % 3)
        gradients[::7] = 0.0
        rate_scale = (1.0, 0.25, 2.0)[step % 4 % 3]
        push(store, ids, gradients, rate_scale)
        reference.step(ids, gradients, rate_scale)
    np.testing.assert_allclose(pull(store), reference.values, rtol=2e-4, atol=2e-5)
    if first_order == "ftrl_l1":
        exact = pull(store)[:, 0]
        assert (exact == 0.0).any() and exact.any()


@pytest.mark.parametrize("gradient", [1e-18, 2e-22, 1e-24, 1e-40])
@pytest.mark.parametrize("rule", ["sgd", "adagrad", "adam", "ftrl", "ftrl_l1", "default"])
def test_a_first_gradient_whose_square_is_zero_in_float32_leaves_a_row_that_can_be_trained(
    rule: str, gradient: float
) -> None:
    store = store_of({**RULES, "default": OptimizerSpec()}[rule], FIRST_ORDER_RULE)
    first = pull(store)
    push(store, IDS, np.full((len(IDS), DIMENSION), gradient, np.float32))
    after = pull(store)
    np.testing.assert_allclose(after, first, atol=0.06)  # the first step of adam has the length of the learning rate
    push(store, IDS, np.full((len(IDS), DIMENSION), 0.7, np.float32))
    trained = pull(store)
    assert np.isfinite(trained).all() and (trained < after).all()


@pytest.mark.parametrize("rule", ["sgd", "adagrad", "adam", "ftrl_plain"])
def test_a_learning_rate_factor_scales_the_change_by_a_step(rule: str) -> None:
    plain = OptimizerSpec(kind=OptimizerKind.FTRL, learning_rate=0.1, beta=0.5)
    random, stores = np.random.default_rng(1), [store_of({**RULES, "ftrl_plain": plain}[rule], None) for _ in range(2)]
    for _ in range(3):
        gradients = random.normal(size=(len(IDS), DIMENSION)).astype(np.float32)
        for store in stores:
            push(store, IDS, gradients)
    before = pull(stores[0])
    push(stores[0], IDS, gradients)
    push(stores[1], IDS, gradients, 0.25)
    whole, scaled = (pull(store) - before for store in stores)
    np.testing.assert_allclose(scaled, 0.25 * whole, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("rule", "make"),
    [
        (RULES["sgd"], lambda p: torch.optim.SGD([p], lr=0.1)),
        (RULES["adam"], lambda p: torch.optim.Adam([p], lr=0.05)),
        (OptimizerSpec(learning_rate=0.1), lambda p: RowWiseAdagrad([p], lr=0.1, eps=1e-8)),
        # Without l1 and l2 it is Adagrad per value, with beta as epsilon.
        (
            OptimizerSpec(kind=OptimizerKind.FTRL, learning_rate=0.1, beta=0.5),
            lambda p: torch.optim.Adagrad([p], lr=0.1, eps=0.5),
        ),
    ],
)
def test_rows_that_all_are_in_every_batch_take_torchs_steps(
    rule: OptimizerSpec, make: Callable[[torch.nn.Parameter], torch.optim.Optimizer]
) -> None:
    store = store_of(rule, None)
    parameter = torch.nn.Parameter(torch.from_numpy(pull(store)))
    optimizer = make(parameter)
    random = np.random.default_rng(1)
    for _ in range(20):
        gradients = random.normal(size=(len(IDS), DIMENSION)).astype(np.float32)
        push(store, IDS, gradients)
        parameter.grad = torch.from_numpy(gradients)
        optimizer.step()
    np.testing.assert_allclose(pull(store), parameter.detach().numpy(), rtol=1e-4, atol=2e-6)


def test_the_initial_value_of_a_row_depends_on_its_id_not_on_its_rule() -> None:
    expected = initial_rows(IDS, "t", seed=9, initial_range=0.5, dimension=DIMENSION)
    for rule in RULES.values():
        store = store_of(rule, None)
        np.testing.assert_array_equal(pull(store), expected)
        push(store, IDS, np.full((len(IDS), DIMENSION), 1e-6, np.float32))
        if not rule.weight_decay and rule.kind is not OptimizerKind.ADAM and not rule.initial_accumulator:
            assert np.abs(pull(store) - expected).max() < 0.1


def test_a_table_may_have_a_rule_of_its_own() -> None:
    own = OptimizerSpec(kind=OptimizerKind.SGD, learning_rate=1.0)
    plan = make_plan({"a": 2, "b": 2, "c": 2}, settings={"b": TableSpec(optimizer=own)}, virtual_buckets=64)
    assert [[table.name for table in plan.tables[g.first_table : g.end_table]] for g in plan.groups] == [
        ["a", "c"],
        ["b"],
    ]
    assert plan.by_name["b"].segments[0].rule is own and plan.by_name["a"].segments[0].rule == OptimizerSpec()


def segments_of(first_order: OptimizerSpec, rows: OptimizerSpec) -> tuple[RowSegment, ...]:
    return RowSegment("first_order", 1, first_order, True), RowSegment("embedding", 2, rows)


def summary_of(*segments: tuple[str, int, OptimizerKind]) -> list[SegmentSummary]:
    return [SegmentSummary(name=name, width=width, optimizer=kind) for name, width, kind in segments]


def test_one_state_of_whole_rows_becomes_that_of_both_segments() -> None:
    values = np.ones((1, 3), np.float32)
    adam = np.arange(1, 8, dtype=np.float32)[None]  # two moments of three values, steps
    shared = summary_of(("row", 3, OptimizerKind.ADAM))
    states = converted_states(shared, segments_of(RULES["adam"], RULES["adam"]), values, adam)
    np.testing.assert_array_equal(states, [[1, 4, 7, 2, 3, 5, 6, 7]])
    shared = summary_of(("row", 3, OptimizerKind.ADAGRAD))
    states = converted_states(
        shared, segments_of(RULES["decay"], RULES["adagrad"]), values, np.array([[4.0]], np.float32)
    )
    np.testing.assert_array_equal(states, [[4, 4]])


def test_another_rule_starts_with_a_new_state_from_the_value() -> None:
    values = np.array([[0.5, 1, 1], [-0.5, 1, 1], [0, 1, 1]], np.float32)
    recorded = summary_of(("first_order", 1, OptimizerKind.SGD), ("embedding", 2, OptimizerKind.ADAGRAD))
    rule = OptimizerSpec(kind=OptimizerKind.FTRL, learning_rate=0.1, beta=1.0, l1=0.25, l2=0.5)
    states = converted_states(
        recorded, segments_of(rule, RULES["adagrad"]), values, np.array([[4.0], [5.0], [6.0]], np.float32)
    )
    z = 0.5 * (1.0 / 0.1 + 0.5) + 0.25
    np.testing.assert_allclose(states, [[-z, 0, 4], [z, 0, 5], [0, 0, 6]], rtol=1e-6)


def test_ftrl_continues_under_another_learning_rate() -> None:
    recorded = summary_of(("embedding", DIMENSION, OptimizerKind.FTRL))
    store = store_of(RULES["ftrl_l1"], None)
    random = np.random.default_rng(2)
    for _ in range(5):
        push(store, IDS, random.normal(size=(len(IDS), DIMENSION)).astype(np.float32))
    columns = columns_of(store)
    values, states = columns["values"], columns["state"]
    same = converted_states(recorded, store.group.segments, values, states)
    np.testing.assert_array_equal(same, states)
    faster = RULES["ftrl_l1"].model_copy(update={"learning_rate": 0.7})
    changed = converted_states(recorded, (RowSegment("embedding", DIMENSION, faster),), values, states)
    z, n = changed[:, :DIMENSION].astype(np.float64), changed[:, DIMENSION:]
    np.testing.assert_array_equal(n, states[:, DIMENSION:])
    given = -np.sign(z) * np.maximum(np.abs(z) - faster.l1, 0) / ((faster.beta + np.sqrt(n)) / faster.learning_rate)
    np.testing.assert_allclose(given, values, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(("columns", "numbers"), [(3, 2), (2, 1)])
def test_arrays_that_are_not_of_the_recorded_segments_are_refused(columns: int, numbers: int) -> None:
    recorded = summary_of(("row", 3, OptimizerKind.ADAGRAD))
    with pytest.raises(SegmentError, match="do not fit the segments"):
        converted_states(
            recorded, segments_of(RULES["adagrad"], RULES["adagrad"]), np.ones((1, columns), np.float32),
            np.ones((1, numbers), np.float32),
        )  # fmt: skip
