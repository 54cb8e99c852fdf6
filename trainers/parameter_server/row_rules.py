"""Update rules of embedding rows, float32.

With g a row's gradient summed over the batch, w its value [D], λ weight decay (g ← g + λ w):

    adagrad  a ← a + mean_d(g²);  w ← w - lr g / (sqrt(a) + eps)      one a per row, as torchrec's RowWiseAdagrad
    adam     as torch.optim.Adam with a step count per row (a row that is not in a batch is not touched)
    sgd      w ← w - lr g
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from elastrec.platform.specs.job import OptimizerKind, OptimizerSpec
from elastrec.trainers.parameter_server.prefetch import AHEAD, prefetch

Array = np.ndarray[Any, Any]


@njit(cache=True, nogil=True, inline="always")
def _ask(row, values, state, versions):  # type: ignore[no-untyped-def]
    """Prefetches what an update of the row reads and writes.

    Without asking whether there is a state: that branch alone doubled the time of an update.
    """
    prefetch(values, row)
    prefetch(state, row)
    prefetch(versions, row)


@njit(cache=True, nogil=True)
def _sgd(rows, gradients, values, state, versions, version, rate, decay):  # type: ignore[no-untyped-def]
    for j in range(rows.shape[0]):
        if j + AHEAD < rows.shape[0]:
            _ask(rows[j + AHEAD], values, state, versions)
        row = rows[j]
        if row >= 0:
            for d in range(values.shape[1]):
                values[row, d] -= rate * (gradients[j, d] + decay * values[row, d])
            versions[row] = version


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract"})
def _adagrad(rows, gradients, values, state, versions, version, rate, epsilon, decay):  # type: ignore[no-untyped-def]
    dimension = values.shape[1]
    share = np.float32(1.0) / np.float32(dimension)
    for j in range(rows.shape[0]):
        if j + AHEAD < rows.shape[0]:
            _ask(rows[j + AHEAD], values, state, versions)
        row = rows[j]
        if row >= 0:
            squares = np.float32(0.0)
            for d in range(dimension):
                g = gradients[j, d] + decay * values[row, d]
                squares += g * g
            state[row, 0] += squares * share
            step = rate / (np.sqrt(state[row, 0]) + epsilon)
            for d in range(dimension):
                values[row, d] -= step * (gradients[j, d] + decay * values[row, d])
            versions[row] = version


@njit(cache=True, nogil=True, error_model="numpy")
def _adam(  # type: ignore[no-untyped-def]
    rows, gradients, values, state, versions, version, rate, epsilon, decay, beta1, beta2
):
    dimension = values.shape[1]
    one = np.float32(1.0)
    for j in range(rows.shape[0]):
        if j + AHEAD < rows.shape[0]:
            _ask(rows[j + AHEAD], values, state, versions)
        row = rows[j]
        if row >= 0:
            count = state[row, 2 * dimension] + one
            state[row, 2 * dimension] = count
            step = np.float32(rate / (1.0 - np.float64(beta1) ** count))
            root = np.float32(1.0 / np.sqrt(1.0 - np.float64(beta2) ** count))
            for d in range(dimension):
                g = gradients[j, d] + decay * values[row, d]
                m = beta1 * state[row, d] + (one - beta1) * g
                v = beta2 * state[row, dimension + d] + (one - beta2) * g * g
                state[row, d] = m
                state[row, dimension + d] = v
                values[row, d] -= step * m / (np.sqrt(v) * root + epsilon)
            versions[row] = version


class RowRule:
    """One update rule for rows of `dimension` numbers.

    Attributes:
        state_width: optimiser numbers per row.
        initial_state: [state_width] float32, of a new row.
    """

    def __init__(self, spec: OptimizerSpec, dimension: int) -> None:
        self.kind = spec.kind
        self._numbers = [
            np.float32(number)
            for number in (spec.learning_rate, spec.epsilon, spec.weight_decay, spec.beta1, spec.beta2)
        ]
        self.state_width = {OptimizerKind.SGD: 0, OptimizerKind.ADAGRAD: 1, OptimizerKind.ADAM: 2 * dimension + 1}[
            spec.kind
        ]
        self.initial_state = np.zeros(self.state_width, np.float32)
        if spec.kind is OptimizerKind.ADAGRAD:
            self.initial_state[:] = spec.initial_accumulator

    def apply(
        self, rows: Array, gradients: Array, values: Array, state: Array, versions: Array, version: np.uint32
    ) -> None:
        """Updates rows [U] (negative numbers are passed over) with gradients [U, D], in place."""
        rate, epsilon, decay, beta1, beta2 = self._numbers
        if self.kind is OptimizerKind.SGD:
            _sgd(rows, gradients, values, state, versions, version, rate, decay)
        elif self.kind is OptimizerKind.ADAGRAD:
            _adagrad(rows, gradients, values, state, versions, version, rate, epsilon, decay)
        else:
            _adam(rows, gradients, values, state, versions, version, rate, epsilon, decay, beta1, beta2)
