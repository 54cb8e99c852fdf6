"""The update rules of dense parameters: torch.optim.SGD, Adagrad and Adam, element by element."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from elastrec.platform.specs.optimizers import OptimizerKind, OptimizerSpec
from elastrec.trainers.parameter_server.kernel import kernel_with

Array = np.ndarray[Any, Any]

STATE_NAMES: dict[OptimizerKind, tuple[str, ...]] = {
    OptimizerKind.SGD: (),
    OptimizerKind.ADAGRAD: ("accumulator",),
    OptimizerKind.ADAM: ("moment1", "moment2"),
}


# A check for division by zero in the loop would prevent its vectorisation.
@kernel_with(error_model="numpy")
def _sgd(values, gradient, rate, decay, out):  # type: ignore[no-untyped-def]
    for i in range(values.shape[0]):
        out[i] = values[i] - rate * (gradient[i] + decay * values[i])


@kernel_with(error_model="numpy")
def _adagrad(values, gradient, sums, rate, epsilon, decay, out):  # type: ignore[no-untyped-def]
    for i in range(values.shape[0]):
        g = gradient[i] + decay * values[i]
        sums[i] += g * g
        out[i] = values[i] - rate * g / (np.sqrt(sums[i]) + epsilon)


@kernel_with(error_model="numpy")
def _adam(  # type: ignore[no-untyped-def]
    values, gradient, first, second, step, root, epsilon, decay, beta1, beta2, out
):
    one = np.float32(1.0)
    for i in range(values.shape[0]):
        g = gradient[i] + decay * values[i]
        first[i] = beta1 * first[i] + (one - beta1) * g
        second[i] = beta2 * second[i] + (one - beta2) * g * g
        out[i] = values[i] - step * first[i] / (np.sqrt(second[i]) * root + epsilon)


def new_state(spec: OptimizerSpec, elements: int) -> Array:
    """State [n, E] float32 of elements that have taken no step, in the order of STATE_NAMES."""
    state = np.zeros((len(STATE_NAMES[spec.kind]), elements), np.float32)
    if spec.kind is OptimizerKind.ADAGRAD:
        state[:] = spec.initial_accumulator
    return state


def apply_rule(
    spec: OptimizerSpec, values: Array, gradient: Array, state: Array, steps: int, out: Array, rate_scale: float = 1.0
) -> None:
    """One step.

    Args:
        values, gradient: [E] float32; state: [n, E], changed in place; out: [E], the new values.
        steps: number of steps of the elements, including this one.
        rate_scale: a factor of the learning rate.
    """
    learning_rate = spec.learning_rate * rate_scale
    rate, epsilon, decay = (np.float32(n) for n in (learning_rate, spec.epsilon, spec.weight_decay))
    if spec.kind is OptimizerKind.SGD:
        _sgd(values, gradient, rate, decay, out)
    elif spec.kind is OptimizerKind.ADAGRAD:
        _adagrad(values, gradient, state[0], rate, epsilon, decay, out)
    else:
        step = np.float32(learning_rate / (1 - spec.beta1**steps))
        root = np.float32(1 / math.sqrt(1 - spec.beta2**steps))
        _adam(
            values, gradient, state[0], state[1], step, root, epsilon, decay, np.float32(spec.beta1),
            np.float32(spec.beta2), out,
        )  # fmt: skip
