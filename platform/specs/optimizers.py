"""Update rules of a job's parameters, and the segments of an embedding row that they update."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, NamedTuple

from pydantic import Field, model_validator

from elastrec.platform.specs.base import Spec


class OptimizerKind(StrEnum):
    """Update rules, which servers apply."""

    ADAGRAD = "adagrad"
    ADAM = "adam"
    SGD = "sgd"
    FTRL = "ftrl"


_KINDS_WITH = {
    "epsilon": (OptimizerKind.ADAGRAD, OptimizerKind.ADAM),
    "initial_accumulator": (OptimizerKind.ADAGRAD, OptimizerKind.FTRL),
    "beta1": (OptimizerKind.ADAM,),
    "beta2": (OptimizerKind.ADAM,),
    "beta": (OptimizerKind.FTRL,),
    "l1": (OptimizerKind.FTRL,),
    "l2": (OptimizerKind.FTRL,),
}
"""The rules that use a field; all rules use the others."""


class OptimizerSpec(Spec):
    """One update rule. For embedding rows, `adagrad` is row-wise: one accumulator per row. `ftrl` (McMahan et al. 2013)
    is for rows only; with `l1` it makes values exactly zero."""

    kind: OptimizerKind = OptimizerKind.ADAGRAD
    """The update rule."""
    learning_rate: Annotated[float, Field(gt=0, le=100)] = 0.02
    """The step size, which is constant during the job."""
    epsilon: Annotated[float, Field(gt=0)] = 1e-8
    """Added to the denominator, `adagrad` and `adam`."""
    initial_accumulator: Annotated[float, Field(ge=0)] = 0.0
    """Initial value of the sum of squared gradients, `adagrad` and `ftrl`."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of the first moment, `adam`."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """Decay of the second moment, `adam`."""
    beta: Annotated[float, Field(ge=0)] = 0.01
    """Added to the root of the sum of squared gradients, `ftrl`. The larger it is, the slower rare ids learn. Gradients
    are means over a minibatch, for which the 1.0 of the paper is large."""
    l1: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the sum of absolute values, `ftrl`."""
    l2: Annotated[float, Field(ge=0)] = 0.0
    """Weight of half the sum of squares, `ftrl`."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Factor of the value that is added to its gradient."""
    max_gradient_norm: Annotated[float, Field(gt=0)] | None = None
    """Gradients of one worker's step are scaled down so that their norm, over all of these parameters together, is at
    most this; absent: they are not scaled. Gradients that are not finite fail the job in any case."""

    @model_validator(mode="after")
    def _has_effect(self) -> OptimizerSpec:
        for name, kinds in _KINDS_WITH.items():
            value = getattr(self, name)
            if self.kind not in kinds and value != type(self).model_fields[name].default:
                others = " and ".join(kinds)
                raise ValueError(
                    f"{name} {value:g} has no effect with kind: {self.kind}, only with {others}; remove it or change "
                    "the kind"
                )
        return self

    @model_validator(mode="after")
    def _consistent(self) -> OptimizerSpec:
        if self.kind is OptimizerKind.FTRL and not self.beta + self.initial_accumulator + self.l2:
            raise ValueError("one of beta, initial_accumulator and l2 must be above 0: ftrl divides by them")
        return self


FIRST_ORDER_RULE = OptimizerSpec(kind=OptimizerKind.FTRL, learning_rate=0.1, beta=0.01)
"""Default rule of first-order weights; chosen by `python -m benchmarks first_order`."""


class Optimizers(Spec):
    """Rules of the embedding rows and of the dense parameters."""

    rows: OptimizerSpec = OptimizerSpec()
    """The rule of embeddings, for tables without their own rule."""
    first_order: OptimizerSpec | None = None
    """The rule of the first-order weights of `wide_and_deep`, `deepfm` and `xdeepfm`; absent: `ftrl` with learning rate
    0.1 and beta 0.01."""
    dense: OptimizerSpec = OptimizerSpec(kind=OptimizerKind.ADAM, learning_rate=1e-3)
    """The rule of the dense parameters."""

    @model_validator(mode="after")
    def _consistent(self) -> Optimizers:
        if self.dense.kind is OptimizerKind.FTRL:
            raise ValueError("dense.kind must be adagrad, adam or sgd: ftrl is a rule of embedding rows")
        return self


class RowSegment(NamedTuple):
    """Adjacent numbers of an embedding row with the same update rule.

    Attributes:
        name: `first_order` or `embedding`.
        starts_at_zero: otherwise they are initialised uniformly in the table's initial range.
    """

    name: str
    width: int
    rule: OptimizerSpec
    starts_at_zero: bool = False


def row_segments(dimension: int, rows: OptimizerSpec, first_order: OptimizerSpec | None) -> tuple[RowSegment, ...]:
    """The segments of rows of `dimension` numbers.

    Args:
        first_order: the rule of the first number, the id's first-order weight; None: rows have none.
    """
    if first_order is None:
        return (RowSegment("embedding", dimension, rows),)
    return RowSegment("first_order", 1, first_order, True), RowSegment("embedding", dimension - 1, rows)


def row_state(kind: OptimizerKind, width: int) -> tuple[tuple[str, int], ...]:
    """Names of a rule's state arrays for a segment of `width` values, in order, and the length of each."""
    return {
        OptimizerKind.SGD: (),
        OptimizerKind.ADAGRAD: (("accumulator", 1),),
        OptimizerKind.ADAM: (("moment1", width), ("moment2", width), ("steps", 1)),
        OptimizerKind.FTRL: (("z", width), ("accumulators", width)),
    }[kind]
