"""One server's share of the dense parameters: a contiguous range of the flat vector, and its update rules.

The P dense parameters of the network form one float32 vector in the order of the layout; server i of n owns the
elements from i P / n to (i + 1) P / n, so that every server holds the same number of bytes. Rules follow
torch.optim.SGD, Adagrad and Adam, element by element.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from elastrec.platform.specs.job import OptimizerKind, OptimizerSpec
from elastrec.trainers.parameter_server.kernel import kernel_with
from elastrec.trainers.parameter_server.messages import Parameter

Array = np.ndarray[Any, Any]

STATE_NAMES: dict[OptimizerKind, tuple[str, ...]] = {
    OptimizerKind.SGD: (),
    OptimizerKind.ADAGRAD: ("accumulator",),
    OptimizerKind.ADAM: ("moment1", "moment2"),
}


def slice_bounds(total: int, server: int, servers: int) -> tuple[int, int]:
    """First element and one past the last of a server's slice."""
    return server * total // servers, (server + 1) * total // servers


def layout_size(layout: Sequence[Parameter]) -> int:
    return sum(math.prod(parameter.shape) for parameter in layout)


# A check for division by zero in the loop would keep it from being vectorised.
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


@dataclass(frozen=True)
class DenseRun:
    """Part of one parameter inside a slice.

    Attributes:
        start: first element, counted in the flattened parameter.
        arrays: `value` [length], the rule's state [length] by the names of STATE_NAMES, and for Adam `steps` [].
    """

    parameter: Parameter
    start: int
    arrays: dict[str, Array]


class DenseSlice:
    """Values and optimiser state of the elements [start, end) of the flat vector.

    Args:
        values: [end - start] float32, copied.

    Attributes:
        values: [end - start] float32; a step makes a new array, so that one handed out for sending stays as it was.
    """

    def __init__(self, layout: Sequence[Parameter], start: int, values: Array, optimizer: OptimizerSpec) -> None:
        self.layout = list(layout)
        self.start = start
        self.values = np.array(values, np.float32)
        self.state = np.zeros((len(STATE_NAMES[optimizer.kind]), len(values)), np.float32)
        self.steps = 0
        self._spec = optimizer
        if optimizer.kind is OptimizerKind.ADAGRAD:
            self.state[:] = optimizer.initial_accumulator

    def apply(self, gradient: Array) -> None:
        """One step of the rule with the slice's gradient [S] float32."""
        spec, out = self._spec, np.empty_like(self.values)
        rate, epsilon, decay = (np.float32(n) for n in (spec.learning_rate, spec.epsilon, spec.weight_decay))
        self.steps += 1
        if spec.kind is OptimizerKind.SGD:
            _sgd(self.values, gradient, rate, decay, out)
        elif spec.kind is OptimizerKind.ADAGRAD:
            _adagrad(self.values, gradient, self.state[0], rate, epsilon, decay, out)
        else:
            step = np.float32(spec.learning_rate / (1 - spec.beta1**self.steps))
            root = np.float32(1 / math.sqrt(1 - spec.beta2**self.steps))
            _adam(
                self.values, gradient, self.state[0], self.state[1], step, root, epsilon, decay,
                np.float32(spec.beta1), np.float32(spec.beta2), out,
            )  # fmt: skip
        self.values = out

    def copy(self) -> DenseSlice:
        """The slice as it is now, whatever steps follow."""
        copied = DenseSlice(self.layout, self.start, self.values, self._spec)
        copied.state[:], copied.steps = self.state, self.steps
        return copied

    def _overlaps(self) -> Iterator[tuple[Parameter, int, int, int]]:
        """(parameter, first element in the parameter, first element in the slice, length)."""
        at, end = 0, self.start + len(self.values)
        for parameter in self.layout:
            size = math.prod(parameter.shape)
            low, high = max(at, self.start), min(at + size, end)
            if low < high:
                yield parameter, low - at, low - self.start, high - low
            at += size

    def names(self) -> list[str]:
        """Parameters that have elements in the slice."""
        return [parameter.name for parameter, *_ in self._overlaps()]

    def runs(self) -> Iterator[DenseRun]:
        """What a checkpoint holds of the slice."""
        for parameter, start, at, length in self._overlaps():
            arrays = {"value": self.values[at : at + length]}
            for name, numbers in zip(STATE_NAMES[self._spec.kind], self.state, strict=True):
                arrays[name] = numbers[at : at + length]
            if self._spec.kind is OptimizerKind.ADAM:
                arrays["steps"] = np.array(self.steps, np.int64)
            yield DenseRun(parameter, start, arrays)

    def take(self, saved: dict[str, tuple[tuple[int, ...], dict[str, Array]]], *, keep_state: bool) -> list[str]:
        """Overwrites the parameters that `saved` (name → shape, whole arrays) holds with the same shape.

        Adam counts on from the saved steps. Returns the names that were not found.
        """
        missing, steps = [], []
        for parameter, start, at, length in self._overlaps():
            shape, arrays = saved.get(parameter.name, ((), {}))
            if "value" not in arrays or tuple(shape) != tuple(parameter.shape):
                missing.append(parameter.name)
                continue
            self.values[at : at + length] = arrays["value"].reshape(-1)[start : start + length]
            if keep_state:
                for name, numbers in zip(STATE_NAMES[self._spec.kind], self.state, strict=True):
                    numbers[at : at + length] = arrays[name].reshape(-1)[start : start + length]
                if "steps" in arrays:
                    steps.append(int(arrays["steps"].reshape(-1)[0]))
        if steps:
            # New parameters join with the others' count: their first steps are a little larger than a fresh Adam's.
            self.steps = max(steps)
        return missing
