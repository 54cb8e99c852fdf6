"""A server's share of the dense parameters: the values and optimiser state of its dense buckets."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from elastrec.platform.specs.errors import ElastrecError, IncompatibleError
from elastrec.platform.specs.optimizers import OptimizerKind, OptimizerSpec
from elastrec.trainers.parameter_server.dense.layout import Piece, Run, bucket_edges, dense_runs, layout_size, pieces_of
from elastrec.trainers.parameter_server.dense.rules import STATE_NAMES, apply_rule, new_state
from elastrec.trainers.parameter_server.messages import Parameter

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class DenseBucket:
    """The contents of one dense bucket, outside of a store.

    Attributes:
        number: of the bucket in the job.
        values: [E] float32.
        state: [n, E] float32, the rule's numbers in the order of STATE_NAMES.
        steps: number of steps of these elements.
    """

    number: int
    values: Array
    state: Array
    steps: int


class DenseStore:
    """The dense buckets of one server, one after the other in one array. Thread-safe.

    A step changes all buckets at once. Each bucket counts its steps, because buckets from different servers may have
    different numbers of steps, and Adam's rule needs the number.

    Args:
        layout: of the whole flat vector.
        owned: [B] bool, the server's buckets.
        values: [S] float32 of these buckets, copied.

    Attributes:
        owned: as above; changes with `take_in` and `drop`.
        runs: of the flat vector that the buckets make.
        values: [S] float32. Every change creates a new array, so that an array that is being sent does not change.
        state: [n, S] float32.

    Raises:
        IncompatibleError: the number of values differs from the number of the buckets' elements.
    """

    def __init__(self, layout: Sequence[Parameter], owned: Array, values: Array, optimizer: OptimizerSpec) -> None:
        self.layout = list(layout)
        self._edges = bucket_edges(len(owned), layout_size(layout))
        self._spec = optimizer
        self._steps = np.zeros(len(owned), np.int64)
        self._lock = threading.Lock()
        self._own(np.array(owned, np.bool_), np.array(values, np.float32), new_state(optimizer, len(values)))
        if len(self.values) != self._starts[-1]:
            raise IncompatibleError(f"{len(values)} dense values for {self._starts[-1]} elements, those of {self.runs}")

    def _own(self, owned: Array, values: Array, state: Array) -> None:
        self.owned, self.values, self.state = owned, values, state
        self._starts = np.concatenate(([0], np.cumsum(np.diff(self._edges) * owned)))
        self.runs: list[Run] = dense_runs(owned, int(self._edges[-1]))
        self._spans: list[tuple[int, int, int]] | None = None

    @property
    def steps(self) -> int:
        """The largest number of steps of a bucket."""
        return int(self._steps[self.owned].max(initial=0))

    # Steps

    def apply(self, gradient: Array, buckets: Array | None = None, rate_scale: float = 1.0) -> None:
        """One step of the rule with the gradient [S] float32.

        Args:
            buckets: [B] bool, those that take the step; None: all.
            rate_scale: a factor of the learning rate.

        Raises:
            IncompatibleError: the gradient is not as long as the values.
        """
        with self._lock:
            if len(gradient) != len(self.values):
                raise IncompatibleError(f"a dense gradient of {len(gradient)} elements for {len(self.values)} values")
            out = np.empty_like(self.values)
            if buckets is None:
                self._steps += 1
                if self._spans is None:
                    self._spans = self._equal_steps(self.owned)
                spans = self._spans
            else:
                self._steps[buckets] += 1
                self._spans = None
                spans = self._equal_steps(self.owned & buckets)
                np.copyto(out, self.values)
            for start, end, bucket in spans:
                steps = int(self._steps[bucket])
                if end - start == len(out):
                    apply_rule(self._spec, self.values, gradient, self.state, steps, out, rate_scale)
                else:
                    apply_rule(
                        self._spec, self.values[start:end], gradient[start:end], self.state[:, start:end], steps,
                        out[start:end], rate_scale,
                    )  # fmt: skip
            self.values = out

    def _equal_steps(self, buckets: Array) -> list[tuple[int, int, int]]:
        """Ranges of `values` with equal numbers of steps: first element, one past the last, a bucket."""
        found: list[tuple[int, int, int]] = []
        for bucket in np.flatnonzero(buckets).tolist():
            start, end = self._starts[bucket : bucket + 2].tolist()
            if start == end:
                continue
            if found and found[-1][1] == start and self._steps[found[-1][2]] == self._steps[bucket]:
                found[-1] = (found[-1][0], end, found[-1][2])
            else:
                found.append((start, end, bucket))
        return found

    def part_of(self, gradient: Array, buckets: Array) -> Array:
        """A gradient [S] that is zero outside of some buckets [B] bool."""
        part = np.zeros_like(gradient)
        for bucket in np.flatnonzero(buckets & self.owned).tolist():
            start, end = self._starts[bucket : bucket + 2].tolist()
            part[start:end] = gradient[start:end]
        return part

    def copy(self) -> DenseStore:
        """A snapshot of the store."""
        with self._lock:
            copied = DenseStore(self.layout, self.owned, self.values, self._spec)
            copied.state[:], copied._steps[:] = self.state, self._steps
            return copied

    # Buckets

    def copies(self, numbers: Collection[int]) -> list[DenseBucket]:
        """Copies of some buckets, of one moment.

        Raises:
            ElastrecError: one is not this server's.
        """
        with self._lock:
            self._require(numbers, owned=True)
            return [self._bucket(number) for number in numbers]

    def _bucket(self, number: int) -> DenseBucket:
        start, end = self._starts[number : number + 2].tolist()
        steps = int(self._steps[number])
        return DenseBucket(number, self.values[start:end].copy(), self.state[:, start:end].copy(), steps)

    def take_in(self, buckets: Sequence[DenseBucket]) -> None:
        """Adds these buckets.

        Raises:
            ElastrecError: the store owns one already, or its size or state is not that of the job's layout and rule.
        """
        with self._lock:
            self._require([bucket.number for bucket in buckets], owned=False)
            sizes = np.diff(self._edges)
            for bucket in buckets:
                values, state = (int(sizes[bucket.number]),), (len(self.state), int(sizes[bucket.number]))
                if (bucket.values.shape, bucket.state.shape) != (values, state):
                    raise ElastrecError(
                        f"dense bucket {bucket.number} has values {bucket.values.shape} and state "
                        f"{bucket.state.shape}; allowed: {values} and {state}; take it from a server of the same model"
                    )
            self._rebuild({bucket.number: bucket for bucket in buckets}, ())

    def drop(self, numbers: Collection[int]) -> None:
        """Drops some buckets and frees their memory.

        Raises:
            ElastrecError: one is not this server's.
        """
        with self._lock:
            self._require(numbers, owned=True)
            self._rebuild({}, numbers)

    def _require(self, numbers: Collection[int], *, owned: bool) -> None:
        wrong = sorted({number for number in numbers if not 0 <= number < len(self.owned)})
        wrong = wrong or sorted({number for number in numbers if self.owned[number] != owned})
        if wrong or len(set(numbers)) != len(numbers):
            raise ElastrecError(
                f"dense buckets {wrong or list(numbers)}; allowed: each once, of the {len(self.owned)} of the job "
                f"those that this server {'owns' if owned else 'does not own'}"
            )

    def _rebuild(self, arriving: dict[int, DenseBucket], leaving: Collection[int]) -> None:
        owned = self.owned.copy()
        owned[list(arriving)], owned[list(leaving)] = True, False
        values, state = [], []
        for number in np.flatnonzero(owned).tolist():
            if number in arriving:
                values.append(arriving[number].values)
                state.append(arriving[number].state)
                self._steps[number] = arriving[number].steps
            else:
                start, end = self._starts[number : number + 2].tolist()
                values.append(self.values[start:end])
                state.append(self.state[:, start:end])
        empty = new_state(self._spec, 0)
        self._own(owned, np.concatenate([np.empty(0, np.float32), *values]), np.concatenate([empty, *state], axis=1))

    # Records

    def names(self) -> list[str]:
        """Parameters that have elements in the store's buckets."""
        return list(dict.fromkeys(piece.parameter.name for piece in self.pieces()))

    def pieces(self) -> Iterator[Piece]:
        """The store's part of each parameter, in the order of the flat vector."""
        return pieces_of(self.layout, self.runs)

    def saved(self) -> Iterator[tuple[Piece, dict[str, Array]]]:
        """The contents of the store for a record: pieces with equal numbers of steps, with their arrays.

        The arrays are `value` [length], the rule's state [length] by the names of STATE_NAMES, and for Adam `steps` [].
        """
        spans = self._equal_steps(self.owned)
        for piece in self.pieces():
            for start, end, bucket in spans:
                low, high = max(start, piece.place), min(end, piece.place + piece.length)
                if low < high:
                    arrays = {"value": self.values[low:high]}
                    arrays |= zip(STATE_NAMES[self._spec.kind], self.state[:, low:high], strict=True)
                    if self._spec.kind is OptimizerKind.ADAM:
                        arrays["steps"] = np.array(self._steps[bucket])
                    yield Piece(piece.parameter, piece.start + low - piece.place, low, high - low), arrays

    def take(self, piece: Piece, start: int, arrays: dict[str, Array], *, keep_state: bool) -> int:
        """Overwrites a piece with recorded values, from element `start` of its parameter on; before any step.

        A bucket continues from the recorded steps. New parameters in it get the others' count, so that their first
        steps are slightly larger than those of a fresh Adam.

        Returns how many elements were overwritten.
        """
        first = max(piece.start, start)
        last = min(piece.start + piece.length, start + arrays["value"].size)
        if first >= last:
            return 0
        place, size, source = piece.place + first - piece.start, last - first, first - start
        self.values[place : place + size] = arrays["value"].reshape(-1)[source : source + size]
        if keep_state:
            for name, numbers in zip(STATE_NAMES[self._spec.kind], self.state, strict=True):
                numbers[place : place + size] = arrays[name].reshape(-1)[source : source + size]
            if "steps" in arrays:
                overlap = self.owned & (self._starts[:-1] < place + size) & (self._starts[1:] > place)
                self._steps[overlap] = np.maximum(self._steps[overlap], int(arrays["steps"].reshape(-1)[0]))
        return size
