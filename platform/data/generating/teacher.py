"""Teacher: the click probability of generated rows as a function of their features.

logit = bias + scale * (id weights + list weights + dense terms + pairwise factors), where

- the weight of an id decreases with its popularity rank, so that most of the variance is that of frequent ids;
- each day, the weights are rotated by `drift` radians between two random vectors, so that their variance is constant;
- three pairs of features interact by the product of latent vectors, as in a factorisation machine;
- dense features enter as log1p(x), every third one by its absolute value.

`scale` and `bias` are solved for on a sample, so that the best possible AUC and the click rate are those of the spec.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

_FACTORS = 4
# Shares of the logit's variance.
_IDS, _LISTS, _DENSE, _PAIRS = 0.62, 0.08, 0.20, 0.10
# From this rank on, the weights of ids shrink.
_HEAD = 100.0
_LARGEST_SCALE = 12.0

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Features:
    """The teacher's inputs; ranks are popularity ranks of ids, -1 for an empty field.

    Attributes:
        ranks: per scalar feature int64 [B].
        lists: per list feature (ranks int64 [L], offsets int64 [B + 1]).
        dense: per dense feature float32 [B], centred log1p; an empty field counts as 0 before it.
    """

    ranks: Sequence[NDArray[np.int64]]
    lists: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]]
    dense: Sequence[Floats]


class Teacher:
    """Weights of all ids, drawn from the seed.

    Args:
        vocabulary: ids per scalar feature at the end of the log.
        list_vocabulary: the same per list feature.
        pairs: indexes of scalar features that interact.
    """

    def __init__(
        self,
        seed: int,
        vocabulary: Sequence[int],
        list_vocabulary: Sequence[int],
        dense: int,
        pairs: Sequence[tuple[int, int]],
        drift_radians: float,
    ) -> None:
        self._drift = drift_radians
        self._ids = [_weights(seed, 1, f, size) for f, size in enumerate(vocabulary)]
        self._list_ids = [_weights(seed, 2, f, size) for f, size in enumerate(list_vocabulary)]
        self._dense = np.random.default_rng([seed, 3]).normal(size=dense).astype(np.float32)
        self._pairs = list(pairs)
        self._factors = [
            (_factors(seed, p, 0, vocabulary[a]), _factors(seed, p, 1, vocabulary[b])) for p, (a, b) in enumerate(pairs)
        ]
        self._shares = np.ones(4)
        self.scale, self.bias = 1.0, 0.0
        self._day = -1
        self._day_weights: tuple[list[Floats], list[Floats]] = ([], [])

    def calibrate(self, sample: Features, click_rate: float, auc: float) -> None:
        """Solves for the shares of the parts, the scale and the bias on a sample of day 0."""
        parts = self._parts(sample, 0)
        deviations = [float(part.std()) for part in parts]
        present = [
            share if sd > 0 else 0.0 for share, sd in zip((_IDS, _LISTS, _DENSE, _PAIRS), deviations, strict=True)
        ]
        self._shares = np.array(
            [math.sqrt(s / sum(present)) / sd if s else 0.0 for s, sd in zip(present, deviations, strict=True)]
        )
        raw = np.sort(np.tensordot(self._shares, np.stack(parts), 1))

        def excess_auc(scale: float) -> float:
            return _expected_auc(raw * scale + _bias_for(raw * scale, click_rate)) - auc

        is_within_reach = excess_auc(_LARGEST_SCALE) > 0
        self.scale = _root(excess_auc, 0.0, _LARGEST_SCALE) if is_within_reach else _LARGEST_SCALE
        self.bias = _bias_for(raw * self.scale, click_rate)

    def prepare(self, day: int) -> None:
        """Sets the weights to those of a day; afterwards, several threads may call `probability`."""
        angle = self._drift * day
        c, s = np.float32(math.cos(angle)), np.float32(math.sin(angle))
        self._day_weights = ([c * a + s * b for a, b in self._ids], [c * a + s * b for a, b in self._list_ids])
        self._day = day

    def probability(self, features: Features) -> NDArray[np.float64]:
        """Click probabilities [B] on the day last prepared."""
        raw = sum(
            share * part for share, part in zip(self._shares, self._parts(features, self._day), strict=True) if share
        )
        return 1 / (1 + np.exp(-(np.asarray(raw, np.float64) * self.scale + self.bias)))

    def _parts(self, features: Features, day: int) -> list[Floats]:
        if self._day != day:
            self.prepare(day)
        ids, list_ids = self._day_weights
        rows = len(features.ranks[0])
        total = np.zeros(rows, np.float32)
        for weights, rank_B in zip(ids, features.ranks, strict=True):
            # The index -1 of an empty field is the last weight.
            total += weights[rank_B]
        lists = np.zeros(rows, np.float32)
        for weights, (rank_L, offset_B) in zip(list_ids, features.lists, strict=True):
            sums = np.concatenate(([0.0], np.cumsum(weights[rank_L], dtype=np.float64)))
            length_B = np.maximum(np.diff(offset_B), 1)
            lists += ((sums[offset_B[1:]] - sums[offset_B[:-1]]) / length_B).astype(np.float32)
        dense = np.zeros(rows, np.float32)
        for i, (weight, value_B) in enumerate(zip(self._dense, features.dense, strict=True)):
            dense += weight * (np.abs(value_B) if i % 3 == 2 else value_B)
        pairs = np.zeros(rows, np.float32)
        for (left, right), (a, b) in zip(self._factors, self._pairs, strict=True):
            pairs += np.einsum("bk,bk->b", left[features.ranks[a]], right[features.ranks[b]])
        return [total, lists, dense, pairs]


def _falling(size: int) -> Floats:
    return (1 / (1 + np.arange(size) / _HEAD)).astype(np.float32)


def _weights(seed: int, kind: int, feature: int, size: int) -> tuple[Floats, Floats]:
    # Drawn one after the other, so that a longer vocabulary begins with the same weights.
    falling = _falling(size)
    first, second = (
        np.random.default_rng([seed, kind, feature, side]).standard_normal(size, np.float32) * falling
        for side in (0, 1)
    )
    # The weight of an empty field must not depend on the vocabulary's size.
    first[-1], second[-1] = 0.25, -0.25
    return first, second


def _factors(seed: int, pair: int, side: int, size: int) -> Floats:
    drawn = np.random.default_rng([seed, 4, pair, side]).standard_normal((size, _FACTORS), np.float32)
    drawn *= _falling(size)[:, None]
    drawn[-1] = 0.0
    return drawn


def _bias_for(logits: NDArray[np.float64], click_rate: float) -> float:
    return _root(lambda bias: float(np.mean(1 / (1 + np.exp(-(logits + bias))))) - click_rate, -30.0, 30.0)


def _root(rising: Callable[[float], float], low: float, high: float) -> float:
    return float(brentq(rising, low, high, xtol=1e-9))


def _expected_auc(rising: NDArray[np.float64]) -> float:
    """AUC of true probabilities, given logits in rising order."""
    p = 1 / (1 + np.exp(-rising))
    below = np.cumsum(1 - p) - (1 - p)
    return float(np.dot(p, below) / (p.sum() * (1 - p).sum()))
