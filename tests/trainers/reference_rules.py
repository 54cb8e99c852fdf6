"""The update rules of embedding rows in float64, after their papers, as an oracle for kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from elastrec.platform.specs.optimizers import OptimizerKind, OptimizerSpec, RowSegment


class ReferenceRule:
    """One rule for values [N, W]: `step` changes the rows that are touched."""

    def __init__(self, spec: OptimizerSpec, values: np.ndarray) -> None:
        self.spec, self.values = spec, values.astype(np.float64)
        self.sums = np.full(len(values), spec.initial_accumulator)
        self.first, self.second = np.zeros_like(self.values), np.zeros_like(self.values)
        self.steps = np.zeros(len(values))
        self.n = np.full_like(self.values, spec.initial_accumulator)
        scale = (spec.beta + np.sqrt(self.n)) / spec.learning_rate + spec.l2
        self.z = -self.values * scale - np.sign(self.values) * spec.l1

    def step(self, rows: np.ndarray, gradient: np.ndarray, rate_scale: float = 1.0) -> None:
        """rows [U], gradient [U, W]."""
        spec, w, rate = self.spec, self.values[rows], self.spec.learning_rate * rate_scale
        g = gradient.astype(np.float64) + spec.weight_decay * w
        if spec.kind is OptimizerKind.SGD:
            w = w - rate * g
        elif spec.kind is OptimizerKind.ADAGRAD:
            self.sums[rows] += (g * g).mean(axis=1)
            w = w - rate * g / (np.sqrt(self.sums[rows])[:, None] + spec.epsilon)
        elif spec.kind is OptimizerKind.ADAM:
            self.steps[rows] += 1
            self.first[rows] = spec.beta1 * self.first[rows] + (1 - spec.beta1) * g
            self.second[rows] = spec.beta2 * self.second[rows] + (1 - spec.beta2) * g * g
            count = self.steps[rows][:, None]
            mean = self.first[rows] / (1 - spec.beta1**count)
            root = np.sqrt(self.second[rows] / (1 - spec.beta2**count))
            w = w - rate * mean / (root + spec.epsilon)
        else:
            # McMahan et al. 2013, algorithm 1.
            n, z = self.n[rows], self.z[rows]
            sigma = (np.sqrt(n + g * g) - np.sqrt(n)) / spec.learning_rate
            z, n = z + rate_scale * g - sigma * w, n + g * g
            with np.errstate(divide="ignore", invalid="ignore"):
                moved = -(z - np.sign(z) * spec.l1) / ((spec.beta + np.sqrt(n)) / spec.learning_rate + spec.l2)
            w = np.where(g == 0, w, np.where(np.abs(z) <= spec.l1, 0.0, moved))
            self.n[rows], self.z[rows] = n, z
        self.values[rows] = w


class ReferenceRows:
    """Rows [N, D] of segments, a rule each."""

    def __init__(self, segments: Sequence[RowSegment], values: np.ndarray) -> None:
        ends = np.cumsum([segment.width for segment in segments])
        self.columns = [slice(int(end) - segment.width, int(end)) for segment, end in zip(segments, ends, strict=True)]
        self.rules = [
            ReferenceRule(segment.rule, values[:, columns])
            for segment, columns in zip(segments, self.columns, strict=True)
        ]

    @property
    def values(self) -> np.ndarray:
        return np.concatenate([rule.values for rule in self.rules], axis=1)

    def step(self, rows: np.ndarray, gradient: np.ndarray, rate_scale: float = 1.0) -> None:
        """rows [U], gradient [U, D]."""
        for rule, columns in zip(self.rules, self.columns, strict=True):
            rule.step(rows, gradient[:, columns], rate_scale)


class SegmentOptimizer:
    """A torch optimiser of one embedding table's weight."""

    def __init__(self, parameter: torch.nn.Parameter, segments: Sequence[RowSegment]) -> None:
        self.parameter = parameter
        self.rows = ReferenceRows(segments, parameter.detach().numpy())

    def zero_grad(self) -> None:
        self.parameter.grad = None

    def step(self) -> None:
        assert self.parameter.grad is not None
        gradient = self.parameter.grad.numpy()
        touched = np.flatnonzero(gradient.any(axis=1))
        self.rows.step(touched, gradient[touched])
        self.parameter.data = torch.from_numpy(self.rows.values.astype(np.float32))
