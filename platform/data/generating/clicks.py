"""ClickMaker: chunks of generated rows as numpy arrays, each a function of the seed, its day and its first row."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from elastrec.platform.data.deduplicating.deduplication import Longs, offsets_of, take_rows
from elastrec.platform.data.generating.teacher import Features, Teacher

if TYPE_CHECKING:
    from elastrec.platform.data.generating.generator import GenerateSpec

_SAMPLE_ROWS = 65_536
_MISSING_SHARE = 0.05
_DENSE_MISSING_SHARE = 0.1
_CONVERSION_SEED = 1_000_003
"""Added to the seed of the log: conversions do not have the weights of clicks."""


@dataclass(frozen=True)
class Clicks:
    """Rows [B] in order of time.

    Attributes:
        sparse: per scalar feature ids int64 [B] within 32 bits, -1 for an empty field.
        lists: per list feature (ids [L], offsets [B + 1]).
        dense: per dense feature int32 [B], -1 for an empty field.
        probability: of a click, float64 [B].
        conversion: int8 [B], 1 only where `label` is 1; None if the spec has no conversions.
        conversion_probability: of a click with a conversion, float64 [B].
    """

    label: NDArray[np.int8]
    delay_seconds: NDArray[np.int32]
    timestamp: Longs
    session_id: Longs
    sparse: list[Longs]
    lists: list[tuple[Longs, Longs]]
    dense: list[NDArray[np.int32]]
    probability: NDArray[np.float64]
    conversion: NDArray[np.int8] | None = None
    conversion_probability: NDArray[np.float64] | None = None


class ClickMaker:
    """Makes any chunk of a spec's rows.

    Args:
        rows: of the whole log, for the size of its vocabularies.
    """

    def __init__(self, spec: GenerateSpec, rows: int) -> None:
        self._spec = spec
        third = max(1, spec.sparse // 3)
        self._users = range(third)
        self._items = range(third, min(2 * third, spec.sparse))
        self._fixed = [self._fixed_size(f) for f in range(spec.sparse)]
        largest = max(rows, _SAMPLE_ROWS)
        final = [self._vocabulary(f, largest) for f in range(spec.sparse)]
        list_final = [self._vocabulary(-1, largest)] * spec.lists
        pairs = [(a, b) for a, b in ((1, third + 1), (2, third + 2), (1, 2 * third)) if b < spec.sparse and a < third]

        def teacher(seed: int) -> Teacher:
            return Teacher(seed, final, list_final, spec.dense, pairs, spec.drift_radians)

        self._teacher = teacher(spec.seed)
        self._conversion_teacher = teacher(spec.seed + _CONVERSION_SEED) if spec.conversion_rate is not None else None
        rng = np.random.default_rng([spec.seed, 5])
        self._dense_mean = rng.uniform(0.5, 2.5, spec.dense)
        self._salts = rng.integers(0, 2**32, spec.sparse + spec.lists, dtype=np.uint32)
        sample, _ = self._features(np.random.default_rng([spec.seed, 6]), _SAMPLE_ROWS, _SAMPLE_ROWS)
        self._teacher.calibrate(sample, spec.click_rate, spec.best_auc)
        if self._conversion_teacher is not None and spec.conversion_rate is not None:
            self._conversion_teacher.calibrate(sample, spec.conversion_rate, spec.best_auc)

    def prepare(self, day: int) -> None:
        """Sets the teachers' weights to those of a day; `make` for that day may then run in several threads."""
        self._teacher.prepare(day)
        if self._conversion_teacher is not None:
            self._conversion_teacher.prepare(day)

    def make(
        self,
        *,
        day: int,
        first_row: int,
        rows: int,
        begin_seconds: float,
        end_seconds: float,
        partition_end_seconds: float,
    ) -> Clicks:
        """Rows [first_row, first_row + rows) of a day, between two moments (seconds since the epoch)."""
        spec = self._spec
        rng = np.random.default_rng([spec.seed, 7, day, first_row])
        rows_so_far = day * spec.rows_per_day + first_row + rows
        features, (dense, session_B) = self._features(rng, rows, rows_so_far)
        sessions = int(session_B.max()) + 1
        start_S = rng.uniform(begin_seconds, end_seconds, sessions)
        time_B = np.minimum(
            start_S[session_B] + rng.exponential(max(spec.session_seconds, 1e-9), rows), end_seconds - 1e-3
        )
        order = np.argsort(time_B, kind="stable")
        probability = self._teacher.probability(features)
        label = rng.random(rows) < probability
        delay = np.where(label, rng.exponential(max(spec.delay_seconds, 1e-9), rows), 0.0)
        if spec.labels == "observed":
            label &= time_B + delay <= partition_end_seconds
            delay = np.where(label, delay, 0.0)
        conversion = conversion_probability = None
        if self._conversion_teacher is not None:
            converts_B = self._conversion_teacher.probability(features)
            # Another generator, so that the other columns are those of the same spec without conversions.
            drawn_B = np.random.default_rng([spec.seed, 8, day, first_row]).random(rows)
            conversion = (label & (drawn_B < converts_B))[order].astype(np.int8)
            conversion_probability = (probability * converts_B)[order]
        session_id = _mix32((session_B + first_row).astype(np.uint32), np.uint32(day + 1)).astype(np.int64)
        return Clicks(
            label=label[order].astype(np.int8),
            delay_seconds=np.minimum(delay[order], 2**31 - 1).astype(np.int32),
            timestamp=time_B[order].astype(np.int64),
            session_id=(session_id + ((day + 1) << 32))[order],
            sparse=[self._id(f, rank_B[order]) for f, rank_B in enumerate(features.ranks)],
            lists=[
                take_rows(self._id(spec.sparse + i, rank_L), offset_B, order)
                for i, (rank_L, offset_B) in enumerate(features.lists)
            ],
            dense=[value_B[order] for value_B in dense],
            probability=probability[order],
            conversion=conversion,
            conversion_probability=conversion_probability,
        )

    def _features(
        self, rng: np.random.Generator, rows: int, rows_so_far: int
    ) -> tuple[Features, tuple[list[NDArray[np.int32]], Longs]]:
        """The teacher's inputs, and dense values int32 [B] with the session of every row [B]."""
        spec = self._spec
        length = rng.geometric(1 / spec.session_length, rows)
        session_B = np.repeat(np.arange(rows), length)[:rows]
        sessions = int(session_B[-1]) + 1
        ranks: list[Longs] = []
        user_S = self._zipf(rng.random(sessions), self._vocabulary(0, rows_so_far))
        item_B = np.zeros(0, np.int64)
        for f in range(spec.sparse):
            size = self._vocabulary(f, rows_so_far)
            if f == 0:
                rank_B = user_S[session_B]
            elif f in self._users:
                rank_B = self._zipf(_uniform_of(user_S, f), size)[session_B]
            elif f == self._items.start:
                rank_B = item_B = self._zipf(rng.random(rows), size)
            elif f in self._items:
                rank_B = self._zipf(_uniform_of(item_B, f), size)
            else:
                rank_B = self._zipf(rng.random(rows), size)
                if f % 2:
                    rank_B[rng.random(rows) < _MISSING_SHARE] = -1
            ranks.append(rank_B)
        lists = [self._list(rng, user_S, session_B, rows_so_far) for _ in range(spec.lists)]
        dense, terms = [], []
        for i in range(spec.dense):
            # The first third describes the user and stays the same within a session.
            count = sessions if i < spec.dense // 3 else rows
            value = np.expm1(rng.standard_normal(count) + self._dense_mean[i]).clip(0, 2e9)
            whole = value.astype(np.int32)
            whole[rng.random(count) < _DENSE_MISSING_SHARE] = -1
            # An empty field counts as 0, as it does for a model that reads the default `missing`.
            term = (np.log1p(whole.clip(0)) - self._dense_mean[i]).astype(np.float32)
            if count != rows:
                whole, term = whole[session_B], term[session_B]
            dense.append(whole)
            terms.append(term)
        return Features(ranks, lists, terms), (dense, session_B)

    def _list(self, rng: np.random.Generator, user_S: Longs, session_B: Longs, rows_so_far: int) -> tuple[Longs, Longs]:
        """A user's history: the same list for every row of a session."""
        length_S = np.minimum(rng.poisson(self._spec.list_length, len(user_S)), 4 * self._spec.list_length)
        offset_S = offsets_of(length_S)
        rank_L = self._zipf(rng.random(int(offset_S[-1])), self._vocabulary(-1, rows_so_far))
        return take_rows(rank_L, offset_S, session_B)

    def _fixed_size(self, feature: int) -> int:
        """Size of a fixed vocabulary, 0 for one that grows: those of the user, the item and every sixth feature."""
        if feature in (0, self._items.start) or feature % 6 == 5:
            return 0
        return int(10 ** (1 + (feature * 7 % 5) * 0.6))

    def _vocabulary(self, feature: int, rows_so_far: int) -> int:
        """Number of ids after so many rows; feature -1 stands for the list features."""
        if feature >= 0 and self._fixed[feature]:
            return self._fixed[feature]
        return max(16, int(self._spec.heaps_factor * rows_so_far**self._spec.heaps_exponent))

    def _zipf(self, uniform: NDArray[np.float64], size: int) -> Longs:
        """Ranks 0 to size − 2 by the inverse of the continuous Zipf distribution; the last id stays free."""
        a = self._spec.zipf_exponent
        if abs(a - 1) < 1e-9:
            rank = np.exp(uniform * math.log(size)) - 1
        else:
            rank = (1 + uniform * (float(size) ** (1 - a) - 1)) ** (1 / (1 - a)) - 1
        return np.minimum(rank.astype(np.int64), size - 2)

    def _id(self, salt: int, rank_B: Longs) -> Longs:
        mixed = _mix32(rank_B.astype(np.uint32), self._salts[salt]).astype(np.int64)
        return np.where(rank_B < 0, -1, mixed) if rank_B.size and rank_B.min() < 0 else mixed


def _mix32(values: NDArray[np.uint32], salt: np.uint32) -> NDArray[np.uint32]:
    """A bijection of 32-bit numbers (murmur3's finaliser), so that different ranks have different ids."""
    x = values ^ salt
    x ^= x >> np.uint32(16)
    x *= np.uint32(0x85EBCA6B)
    x ^= x >> np.uint32(13)
    x *= np.uint32(0xC2B2AE35)
    x ^= x >> np.uint32(16)
    return x


def _uniform_of(ranks: Longs, feature: int) -> NDArray[np.float64]:
    """A uniform number for each (rank, feature), so that a user's attributes are constant."""
    return (_mix32(ranks.astype(np.uint32), np.uint32(feature * 0x9E3779B1 % 2**32)).astype(np.float64) + 0.5) / 2**32
