"""Heads, labels and losses: what a model's outputs are called, what they are compared with, and what it learns from.

A model that says nothing has one head per label of the job, of the label's name, and learns from the sum of their
losses: binary cross-entropy of a logit, or squared error of a number. It may say otherwise:

    class MyModel(nn.Module):
        heads = (Head("click"), Head("auxiliary", label="click"))

        def loss(self, outputs, targets):
            ...
            return Losses({"click": click, "auxiliary": auxiliary}, trained=(click + 0.1 * auxiliary,))

Legend of shapes: B batch, H heads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from elastrec.platform.data.metrics.heads import Kind, Predicted
from elastrec.platform.specs.data import TrainingData
from elastrec.platform.specs.errors import FieldProblem, JobFailedError, SpecError

IS_BAD, REASON = "is_bad", "reason"
"""Columns beside the predictions of an exported model; no head may bear these names."""
_NAME = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9_.\- ]{0,99}$")


@dataclass(frozen=True)
class Head:
    """One output of a model.

    Attributes:
        name: of its metrics, and of its column in the exported model's predictions.
        label: the label that it is compared with; empty: the one of the head's name.
    """

    name: str
    label: str = ""

    @property
    def label_name(self) -> str:
        return self.label or self.name


class Targets(NamedTuple):
    """What the model should have predicted for the rows of a minibatch.

    Attributes:
        labels: float32 [B] of each label, by its column's name.
        weight_B: float32 [B], from 0 on; None where the job has no weights.
    """

    labels: Mapping[str, Tensor]
    weight_B: Tensor | None


class Losses(NamedTuple):
    """What a model's `loss` returns.

    Attributes:
        by_name: scalars to be reported, a mean over the minibatch each. Names are free; those of heads are usual.
        trained: scalars that the model learns from. Each has a backward pass of its own, in this order; gradients add
            up, so that several are of use where the model changes something in between.
    """

    by_name: Mapping[str, Tensor]
    trained: Sequence[Tensor]


class JobHeads:
    """The heads of one job's model, and the way from its forward's result to losses and predictions.

    Args:
        data: of the job.

    Raises:
        SpecError: the model's heads do not fit the job's labels.
    """

    def __init__(self, model: nn.Module, data: TrainingData) -> None:
        self.heads = _heads_of(model, data)
        kinds = {label.name: label.kind for label in data.label_columns}
        self._labels = tuple(label.name for label in data.label_columns)
        self._is_weighted = data.weight is not None
        self.kinds: tuple[Kind, ...] = tuple(kinds[head.label_name] for head in self.heads)
        own: Callable[[Mapping[str, Tensor], Targets], Losses] | None = getattr(model, "loss", None)
        self._own_loss = own

    @property
    def names(self) -> tuple[str, ...]:
        """Of the heads, in their order."""
        return tuple(head.name for head in self.heads)

    def targets(self, target_BT: Tensor) -> Targets:
        """Labels and weights by name; `target_BT` as in `data.targets`, float32."""
        labels = {name: target_BT[:, index] for index, name in enumerate(self._labels)}
        return Targets(labels, target_BT[:, -1] if self._is_weighted else None)

    def outputs(self, result: Any, rows: int) -> dict[str, Tensor]:
        """Outputs by head, float32 [B], and whatever else the model returned by name.

        Args:
            result: of the model's forward: [B] of a single head, [B, H], or a mapping with a [B] for each head.

        Raises:
            JobFailedError: it is something else.
        """
        names = self.names
        if isinstance(result, Tensor):
            if len(names) == 1 and result.shape == (rows,):
                return {names[0]: result.float()}
            if result.shape == (rows, len(names)):
                return {name: result[:, index].float() for index, name in enumerate(names)}
            found = f"a tensor of shape {tuple(result.shape)}"
        elif isinstance(result, Mapping) and all(isinstance(result.get(name), Tensor) for name in names):
            wrong = {name: tuple(result[name].shape) for name in names if result[name].shape != (rows,)}
            if not wrong:
                return {**result, **{name: result[name].float() for name in names}}
            found = f"outputs of the shapes {wrong}"
        else:
            found = f"names {list(result)}" if isinstance(result, Mapping) else f"a {type(result).__name__}"
        several = f"outputs of shape ({rows}, {len(names)}), or a mapping with one of shape ({rows},) for each"
        single = f"logits of shape ({rows},)"
        raise JobFailedError(
            f"the model's forward returned {found}; expected {single if len(names) == 1 else several} for the heads "
            f"{', '.join(names)}"
        )

    def losses(self, outputs: Mapping[str, Tensor], targets: Targets) -> Losses:
        """The model's own losses, or the default ones.

        Raises:
            JobFailedError: the model's `loss` returned something else than Losses with at least one trained scalar.
        """
        if self._own_loss is None:
            return self._default(outputs, targets)
        losses = self._own_loss(outputs, targets)
        problem = ""
        if not isinstance(losses, Losses) or not losses.trained:
            problem = f"a {type(losses).__name__}" if not isinstance(losses, Losses) else "Losses that train nothing"
        elif any(loss.numel() != 1 for loss in (*losses.by_name.values(), *losses.trained)):
            problem = "losses that are no scalars"
        if problem:
            raise JobFailedError(
                f"the model's loss(outputs, targets) returned {problem}; expected "
                "elastrec.trainers.models.Losses(by_name, trained) of scalars, at least one of them trained"
            )
        return losses

    def predictions(self, outputs: Mapping[str, Tensor]) -> Tensor:
        """What the heads predict, float32 [B, H]: probabilities of binary labels, numbers of the others."""
        columns = [
            torch.sigmoid(outputs[name]) if kind == "binary" else outputs[name]
            for name, kind in zip(self.names, self.kinds, strict=True)
        ]
        return columns[0].unsqueeze(1) if len(columns) == 1 else torch.stack(columns, dim=1)

    def predicted(self, outputs: Mapping[str, Tensor], targets: Targets) -> tuple[Predicted, ...]:
        """Predictions beside their labels, for the heads' metrics."""
        with torch.no_grad():
            prediction_BH = self.predictions(outputs).numpy()
        return tuple(
            Predicted(head.name, kind, prediction_BH[:, index], targets.labels[head.label_name].numpy())
            for index, (head, kind) in enumerate(zip(self.heads, self.kinds, strict=True))
        )

    def _default(self, outputs: Mapping[str, Tensor], targets: Targets) -> Losses:
        by_name = {
            head.name: mean_loss(outputs[head.name], targets.labels[head.label_name], targets.weight_B, kind)
            for head, kind in zip(self.heads, self.kinds, strict=True)
        }
        values = list(by_name.values())
        return Losses(by_name, (values[0] if len(values) == 1 else torch.stack(values).sum(),))


def mean_loss(output_B: Tensor, label_B: Tensor, weight_B: Tensor | None, kind: Kind) -> Tensor:
    """Binary cross-entropy of logits, or squared error: Σ weight · loss / B, a scalar.

    Divided by the rows, not by the weights' sum, so that a row's gradient does not depend on other rows' weights.
    """
    loss = functional.binary_cross_entropy_with_logits if kind == "binary" else functional.mse_loss
    if weight_B is None:
        return loss(output_B, label_B)
    return (loss(output_B, label_B, reduction="none") * weight_B).mean()


def _heads_of(model: nn.Module, data: TrainingData) -> tuple[Head, ...]:
    labels = [label.name for label in data.label_columns]
    own = getattr(model, "heads", None)
    heads = tuple(Head(name) for name in labels) if own is None else tuple(own)
    where = "spec.data.labels" if own is None else f"{type(model).__name__}.heads"
    problems = []
    if not heads or not all(isinstance(head, Head) for head in heads):
        raise SpecError([FieldProblem(where, repr(own), "a sequence of at least one elastrec.trainers.models.Head")])
    for head in heads:
        if head.label_name not in labels:
            problems.append(FieldProblem(where, repr(head), f"a head for one of the job's labels {', '.join(labels)}"))
        if len(heads) > 1 and (not _NAME.match(head.name) or head.name in (IS_BAD, REASON)):
            allowed = f"letters, digits, spaces and _ . - in at most 100 characters, neither {IS_BAD} nor {REASON}"
            problems.append(FieldProblem(where, repr(head.name), allowed, "rename the column, or name the head"))
    doubled = sorted({head.name for head in heads if sum(head.name == other.name for other in heads) > 1})
    if doubled:
        problems.append(FieldProblem(where, repr(doubled), "each name once"))
    if problems:
        raise SpecError(problems, "the heads of the model")
    return heads
