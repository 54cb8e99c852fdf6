"""Outputs, losses and predictions of models with one head and with several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from elastrec.platform.specs.data import TrainingData
from elastrec.platform.specs.errors import JobFailedError, SpecError
from elastrec.trainers.models import Head, JobHeads, Losses, Targets

B = 6
CLICK = {"name": "click"}
PRICE = {"name": "price", "kind": "value"}


def data(*labels: Mapping[str, str], weight: str | None = None) -> TrainingData:
    return TrainingData.model_validate({"path": "x", "labels": labels, "weight": weight, "sparse": [{"name": "user"}]})


def heads(*labels: Mapping[str, str], model: nn.Module | None = None, weight: str | None = None) -> JobHeads:
    return JobHeads(model or nn.Linear(1, 1), data(*labels, weight=weight))


def rows(columns: int, seed: int = 0) -> Tensor:
    return torch.randn(B, columns, generator=torch.Generator().manual_seed(seed))


def targets(columns: int) -> Tensor:
    return torch.randint(0, 2, (B, columns), generator=torch.Generator().manual_seed(9)).float()


class Model(nn.Module):
    """A model with heads and losses of its own."""

    def __init__(self, heads: Sequence[Any], result: Any = None) -> None:
        super().__init__()
        self.heads = heads
        self._result = result

    def loss(self, outputs: Mapping[str, Tensor], targets: Targets) -> Any:
        return self._result


def test_a_job_has_one_binary_head_with_cross_entropy_by_default() -> None:
    here = JobHeads(nn.Linear(1, 1), TrainingData.model_validate({"path": "x", "sparse": [{"name": "user"}]}))
    logits, label = rows(1)[:, 0], targets(1)
    outputs = here.outputs(logits, B)
    losses = here.losses(outputs, here.targets(label))
    wanted = functional.binary_cross_entropy_with_logits(logits, label[:, 0])
    assert here.names == ("label",) and here.kinds == ("binary",)
    assert torch.equal(losses.trained[0], wanted) and len(losses.trained) == 1 and list(losses.by_name) == ["label"]
    assert torch.equal(here.predictions(outputs), torch.sigmoid(logits).unsqueeze(1))


def test_several_labels_are_trained_by_the_sum_of_their_losses() -> None:
    here = heads(CLICK, PRICE)
    result, target = rows(2), targets(2)
    outputs = here.outputs(result, B)
    losses = here.losses(outputs, here.targets(target))
    click = functional.binary_cross_entropy_with_logits(result[:, 0], target[:, 0])
    price = functional.mse_loss(result[:, 1], target[:, 1])
    assert torch.allclose(losses.trained[0], click + price) and len(losses.trained) == 1
    assert torch.equal(losses.by_name["click"], click) and torch.equal(losses.by_name["price"], price)
    first, second = here.predicted(outputs, here.targets(target))
    assert (first.head, first.kind, second.head, second.kind) == ("click", "binary", "price", "value")
    assert torch.equal(torch.from_numpy(first.prediction_B), torch.sigmoid(result[:, 0]))
    assert torch.equal(torch.from_numpy(second.prediction_B), result[:, 1])


@pytest.mark.parametrize("kind", ["binary", "value"])
def test_a_row_of_weight_two_counts_twice_and_one_of_weight_zero_not_at_all(kind: str) -> None:
    label = {"name": "label", "kind": kind}
    here, plain = heads(label, weight="share"), heads(label)
    logits = rows(1)[:2, 0].requires_grad_()
    label_B1 = targets(1)[:2]
    weighted = torch.cat([label_B1, torch.tensor([[2.0], [0.0]])], dim=1)
    here.losses(here.outputs(logits, 2), here.targets(weighted)).trained[0].backward()
    found = logits.grad
    twice = logits.detach()[:1].repeat(2).requires_grad_()
    plain.losses(plain.outputs(twice, 2), plain.targets(label_B1[:1].repeat(2, 1))).trained[0].backward()
    assert found is not None and twice.grad is not None
    assert torch.allclose(found[0], twice.grad.sum()) and found[1] == 0
    logits.grad = None
    weighted[1, 1] = 5.0
    here.losses(here.outputs(logits, 2), here.targets(weighted)).trained[0].backward()
    assert logits.grad is not None and logits.grad[0] == found[0]


def test_a_model_names_its_heads_and_owns_its_losses() -> None:
    loss = rows(1).sum()
    model = Model(
        (Head("main", label="click"), Head("twin", label="click"), Head("price")), Losses({"x": loss}, [loss])
    )
    here = heads(CLICK, PRICE, model=model)
    assert here.names == ("main", "twin", "price") and here.kinds == ("binary", "binary", "value")
    result = {"main": rows(1)[:, 0], "twin": rows(1, 1)[:, 0], "price": rows(1, 2)[:, 0], "h_aux": rows(4)}
    outputs = here.outputs(result, B)
    assert torch.equal(outputs["h_aux"], result["h_aux"])
    assert here.losses(outputs, here.targets(targets(2))).trained == [loss]
    main, twin, _ = here.predicted(outputs, here.targets(targets(2)))
    assert (main.label_B == twin.label_B).all() and not (main.prediction_B == twin.prediction_B).any()


@pytest.mark.parametrize(
    ("result", "found"),
    [
        (torch.zeros(B, 3), r"shape \(6, 3\)"),
        (torch.zeros(B), r"shape \(6,\)"),
        ({"click": torch.zeros(B)}, r"names \['click'\]"),
        ({"click": torch.zeros(B), "price": torch.zeros(B, 2)}, r"shapes \{'price': \(6, 2\)\}"),
        ((torch.zeros(B), torch.zeros(B)), "a tuple"),
    ],
)
def test_outputs_that_are_not_those_of_the_heads_are_refused(result: Any, found: str) -> None:
    with pytest.raises(JobFailedError, match=rf"forward returned .*{found}.* for the heads click, price"):
        heads(CLICK, PRICE).outputs(result, B)


@pytest.mark.parametrize(
    ("result", "found"),
    [
        (torch.zeros(()), "a Tensor"),
        (Losses({}, []), "train nothing"),
        (Losses({"click": torch.zeros(2)}, [torch.zeros(())]), "no scalars"),
        (Losses({}, [torch.zeros(2)]), "no scalars"),
    ],
)
def test_losses_of_another_form_are_refused(result: Any, found: str) -> None:
    here = heads(CLICK, model=Model((Head("click"),), result))
    with pytest.raises(JobFailedError, match=rf"returned .*{found}.*Losses\(by_name, trained\)"):
        here.losses(here.outputs(torch.zeros(B), B), here.targets(targets(1)))


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ((), "at least one"),
        (("click",), "Head"),
        ((Head("other"),), "a head for one of the job's labels click, price"),
        ((Head("click"), Head("click")), "each name once"),
        ((Head("click"), Head("a/b", label="price")), "letters"),
        ((Head("click"), Head("is_bad", label="price")), "neither is_bad nor reason"),
    ],
)
def test_heads_that_do_not_fit_the_labels_are_refused(own: Sequence[Any], words: str) -> None:
    with pytest.raises(SpecError) as refused:
        heads(CLICK, PRICE, model=Model(own))
    assert words in str(refused.value)
