"""Invalid gradients are not sent, and the error names the row; clipped gradients equal those of torch."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import hypothesis.extra.numpy as arrays
import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from elastrec.platform.specs.errors import JobFailedError
from elastrec.platform.specs.optimizers import Optimizers, OptimizerSpec
from elastrec.trainers.embedding.progress import RowGradients
from elastrec.trainers.embedding.routing import Router
from elastrec.trainers.models import heads
from elastrec.trainers.parameter_server.messages import Parameter
from elastrec.trainers.parameter_server.plan import make_plan
from elastrec.trainers.worker.gradients import GradientGuard
from tests.trainers.worker.setting import setting_fixture  # noqa: F401

PLAN = make_plan({"user": 4, "item": 4, "shop": 8}, virtual_buckets=8)
LAYOUT = [Parameter("over.weight", (3, 2)), Parameter("over.bias", (3,))]


def guard(rows: float | None = None, dense: float | None = None) -> GradientGuard:
    rules = {"rows": OptimizerSpec(max_gradient_norm=rows), "dense": OptimizerSpec(max_gradient_norm=dense)}
    plan = make_plan({"user": 4, "item": 4, "shop": 8}, virtual_buckets=8, rows=rules["rows"])
    return GradientGuard(Optimizers(**rules), plan, LAYOUT)


def left(ids: dict[str, list[int]]) -> RowGradients:
    """Gradients of zero for some ids of each table, on two servers."""
    router = Router(PLAN, [0, 1] * 4, 2, epoch=1, generation=0)
    names = [table.name for table in PLAN.tables]
    values = np.array([each for name in names for each in ids[name]], np.int64)
    ends = np.cumsum([len(ids[name]) for name in names])
    starts = np.concatenate(([0], ends[:-1]))
    routed = router.route(values, starts, ends, np.arange(len(names)))
    sizes = routed.group_sizes.sum(axis=1)
    gradients = [np.zeros((size, width), np.float32) for size, width in zip(sizes, (4, 8), strict=True)]
    pulled: Any = SimpleNamespace(routed=routed)
    return RowGradients(pulled, gradients)


def place_of(found: RowGradients, table: str, row_id: int) -> tuple[int, int]:
    """Group and row of an id, counted server by server and table by table as requests are laid out."""
    routed = found.pulled.routed
    at = 0
    for group in PLAN.groups:
        row = 0
        for server in range(2):
            for index in range(group.first_table, group.end_table):
                count = int(routed.counts[server, index])
                for offset in range(count):
                    if PLAN.tables[index].name == table and routed.ids[at + row + offset] == row_id:
                        return group.index, row + offset
                row += count
        at += row
    raise AssertionError(f"{table} {row_id} is not in the request")


IDS = {"user": [5, 9, 11, 5], "item": [5, 7, 9], "shop": [3, 11, 20]}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e25])
@pytest.mark.parametrize(("table", "row_id"), [("user", 9), ("item", 5), ("item", 7), ("shop", 20), ("shop", 3)])
def test_a_row_gradient_that_overflows_is_refused_with_table_and_id(value: float, table: str, row_id: int) -> None:
    found = left(IDS)
    group, row = place_of(found, table, row_id)
    found.gradients[group][row, 2] = value
    with pytest.raises(JobFailedError, match=f"table '{table}', id {row_id} is not finite"):
        guard().rows(found)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e25])
def test_a_dense_gradient_that_is_not_finite_is_refused_with_its_name(value: float) -> None:
    parts = [np.zeros(6, np.float32), np.array([0, value, 0], np.float32)]
    with pytest.raises(JobFailedError, match=r"over\.bias"):
        guard().dense(parts)


gradient = arrays.arrays(np.float32, 6, elements=st.floats(-1e3, 1e3, width=32))


@given(gradient, gradient, st.floats(0.01, 100))
def test_bounded_gradients_are_those_that_torch_clips(one: np.ndarray, other: np.ndarray, limit: float) -> None:
    parameters = [torch.nn.Parameter(torch.zeros(6)) for _ in range(2)]
    for parameter, value in zip(parameters, (one, other), strict=True):
        parameter.grad = torch.from_numpy(value.copy())
    torch.nn.utils.clip_grad_norm_(parameters, limit)
    bounded = guard(dense=limit).dense([one.copy(), other.copy()])
    for part, parameter in zip(bounded, parameters, strict=True):
        assert np.allclose(part, parameter.grad.numpy(), rtol=1e-4, atol=1e-6)


def test_first_order_weights_have_a_bound_of_their_own() -> None:
    rules = {"rows": OptimizerSpec(), "first_order": OptimizerSpec(max_gradient_norm=1.0)}
    plan = make_plan({"user": 4, "item": 4, "shop": 8}, virtual_buckets=8, first_order=rules["first_order"])
    found = left(IDS)
    for gradients in found.gradients:
        gradients[:] = 2.0
    bounded = GradientGuard(Optimizers(**rules), plan, LAYOUT).rows(found)
    weights = np.concatenate([part[:, 0] for part in bounded])
    assert np.linalg.norm(weights) == pytest.approx(1.0) and np.unique(weights).size == 1
    assert all((part[:, 1:] == 2.0).all() for part in bounded)
    assert all((part == 2.0).all() for part in found.gradients)


def test_gradients_within_the_bound_are_not_changed() -> None:
    found = left(IDS)
    found.gradients[0][:] = 0.1
    assert all(mine is theirs for mine, theirs in zip(guard(rows=1e3).rows(found), found.gradients, strict=True))
    assert all(mine is theirs for mine, theirs in zip(guard().rows(found), found.gradients, strict=True))


def test_a_step_with_gradients_that_are_not_finite_ends_the_job_and_is_not_pushed(
    setting: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def loss_without_a_derivative(logits: torch.Tensor, *_: object) -> torch.Tensor:
        return (logits - logits.detach()).abs().sqrt().sum()

    monkeypatch.setattr(heads, "mean_loss", loss_without_a_derivative)
    here = setting(mode="async")
    here.master.add_shards("train", 900, 250)
    here.start_worker()
    here.threads[0].join(60)
    (error,) = here.errors
    assert isinstance(error, JobFailedError) and "is not finite" in str(error)
    assert [server._pushes for server in here.servers] == [0]
