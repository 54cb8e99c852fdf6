"""Update rules of embedding rows, float32.

With g a row's gradient summed over the batch, w its value [D], λ weight decay (g ← g + λ w):

    adagrad  a ← a + mean_d(g²);  w ← w - lr g / (sqrt(a) + eps)      one a per row, as torchrec's RowWiseAdagrad
    adam     as torch.optim.Adam with a step count per row (a row that is not in a batch is not touched)
    sgd      w ← w - lr g

A kernel notes the change of each row (`changes`) before it makes it. It stops where that needs slabs, and returns the
position in the stripe's order from which it is to be called again.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from elastrec.platform.specs.job import OptimizerKind, OptimizerSpec
from elastrec.trainers.parameter_server.prefetch import AHEAD
from elastrec.trainers.parameter_server.storage.arrays import CELL_VERSION, OWNER, VERSION
from elastrec.trainers.parameter_server.storage.changes import may_change, note_change
from elastrec.trainers.parameter_server.storage.kernel import inlined, kernel, kernel_with
from elastrec.trainers.parameter_server.storage.pools import offset_of, owner_of, prefetch_cell

Array = np.ndarray[Any, Any]


@kernel
def _note_older(shelf, settings, marks, order, places, first, last, stripe, now_seconds):  # type: ignore[no-untyped-def]
    """Notes that rows older than their bucket's version change and were seen; returns the first that needs slabs."""
    for k in range(first, last):
        place = places[order[k]]
        if place >= 0:
            bucket = owner_of(shelf.pool, place)
            if np.int64(shelf.pool.words[offset_of(shelf.pool.shape, place) + CELL_VERSION]) != marks[bucket, VERSION]:
                if not may_change(shelf, marks, bucket, stripe, 1):
                    return k
                note_change(shelf, marks, bucket, stripe, place)
                if settings.seen_word:
                    shelf.pool.words[offset_of(shelf.pool.shape, place) + settings.seen_word] = now_seconds
    return last


@kernel
def _prefetch_first(words, shape, order, places, begin, end):  # type: ignore[no-untyped-def]
    """Asks for the rows that `_locate` reads first; it asks for the others."""
    for k in range(begin, min(begin + AHEAD, end)):
        if places[order[k]] >= 0:
            prefetch_cell(words, shape, places[order[k]])


@kernel
def _locate(  # type: ignore[no-untyped-def]
    words, slabs, shape, seen_word, marks, order, places, first, last, end, now_seconds, offsets
):
    """Offsets of the rows at order[first:last], -1 of absent ones; whether one is older than its bucket's version.

    Says of the others that they were seen, and asks for the rows after them, up to `end`.
    """
    for k in range(first, last):
        place = places[order[k]]
        offsets[k - first] = -1
        if place >= 0:
            offsets[k - first] = offset_of(shape, place)
        if k + AHEAD < end and places[order[k + AHEAD]] >= 0:
            prefetch_cell(words, shape, places[order[k + AHEAD]])
    is_older = False
    for k in range(first, last):
        at = offsets[k - first]
        if at >= 0:
            version = marks[slabs[places[order[k]] >> shape.shift, OWNER], VERSION]
            if np.int64(words[at + CELL_VERSION]) != version:
                is_older = True  # its shadow must hold when it was seen before
            elif seen_word:
                words[at + seen_word] = now_seconds
    return is_older


@inlined
def _reach(shelf, settings, marks, order, places, first, last, end, stripe, now_seconds, offsets):  # type: ignore[no-untyped-def]
    """Locates the rows at order[first:last] and notes that they change; returns the first that needs slabs, or last."""
    pool = shelf.pool
    if _locate(
        pool.words, pool.slabs, pool.shape, settings.seen_word, marks, order, places, first, last, end, now_seconds,
        offsets,
    ):  # fmt: skip
        return _note_older(shelf, settings, marks, order, places, first, last, stripe, now_seconds)
    return last


# Unsigned numbers count the words of a row: numba lets a signed one count from an array's end, and then vectorises
# nothing.


@kernel
def _sgd(  # type: ignore[no-untyped-def]
    shelf,
    settings,
    marks,
    request,
    stripe,
    places,
    gradients,
    now_seconds,
    begin,
    offsets,
    rate,
    epsilon,
    decay,
    beta1,
    beta2,
):
    words, cells, shape = shelf.pool.words, shelf.pool.cells, shelf.pool.shape
    order, end, dimension = request.order, request.starts[stripe + 1], gradients.shape[1]
    value_word = settings.value_word
    _prefetch_first(words, shape, order, places, begin, end)
    for first in range(begin, end, AHEAD):
        last = min(first + AHEAD, end)
        stop = _reach(shelf, settings, marks, order, places, first, last, end, stripe, now_seconds, offsets)
        for k in range(first, stop):
            if offsets[k - first] >= 0:
                g, w = gradients[order[k]], np.uint64(offsets[k - first] + value_word)
                for d in range(dimension):
                    i = w + np.uint64(d)
                    cells[i] -= rate * (g[d] + decay * cells[i])
        if stop < last:
            return stop
    return end


@kernel_with(error_model="numpy", fastmath={"reassoc", "contract"})
def _adagrad(  # type: ignore[no-untyped-def]
    shelf,
    settings,
    marks,
    request,
    stripe,
    places,
    gradients,
    now_seconds,
    begin,
    offsets,
    rate,
    epsilon,
    decay,
    beta1,
    beta2,
):
    words, cells, shape = shelf.pool.words, shelf.pool.cells, shelf.pool.shape
    order, end, dimension = request.order, request.starts[stripe + 1], gradients.shape[1]
    value_word, state_word = settings.value_word, settings.state_word
    share = np.float32(1.0) / np.float32(dimension)
    _prefetch_first(words, shape, order, places, begin, end)
    for first in range(begin, end, AHEAD):
        last = min(first + AHEAD, end)
        stop = _reach(shelf, settings, marks, order, places, first, last, end, stripe, now_seconds, offsets)
        for k in range(first, stop):
            at = offsets[k - first]
            if at >= 0:
                j, w = order[k], np.uint64(at + value_word)
                squares = np.float32(0.0)
                for d in range(dimension):
                    g = gradients[j, d] + decay * cells[w + np.uint64(d)]
                    squares += g * g
                total = cells[at + state_word] + squares * share
                cells[at + state_word] = total
                step = rate / (np.sqrt(total) + epsilon)
                for d in range(dimension):
                    i = w + np.uint64(d)
                    cells[i] -= step * (gradients[j, d] + decay * cells[i])
        if stop < last:
            return stop
    return end


@kernel_with(error_model="numpy")
def _adam(  # type: ignore[no-untyped-def]
    shelf,
    settings,
    marks,
    request,
    stripe,
    places,
    gradients,
    now_seconds,
    begin,
    offsets,
    rate,
    epsilon,
    decay,
    beta1,
    beta2,
):
    words, cells, shape = shelf.pool.words, shelf.pool.cells, shelf.pool.shape
    order, end, dimension = request.order, request.starts[stripe + 1], gradients.shape[1]
    value_word, state_word = settings.value_word, settings.state_word
    one = np.float32(1.0)
    _prefetch_first(words, shape, order, places, begin, end)
    for first in range(begin, end, AHEAD):
        last = min(first + AHEAD, end)
        stop = _reach(shelf, settings, marks, order, places, first, last, end, stripe, now_seconds, offsets)
        for k in range(first, stop):
            at = offsets[k - first]
            if at >= 0:
                j, w, m = order[k], np.uint64(at + value_word), np.uint64(at + state_word)
                v = m + np.uint64(dimension)
                count = cells[v + np.uint64(dimension)] + one
                cells[v + np.uint64(dimension)] = count
                step = np.float32(rate / (1.0 - np.float64(beta1) ** count))
                root = np.float32(1.0 / np.sqrt(1.0 - np.float64(beta2) ** count))
                for n in range(dimension):
                    d = np.uint64(n)
                    g = gradients[j, n] + decay * cells[w + d]
                    first_moment = beta1 * cells[m + d] + (one - beta1) * g
                    second_moment = beta2 * cells[v + d] + (one - beta2) * g * g
                    cells[m + d] = first_moment
                    cells[v + d] = second_moment
                    cells[w + d] -= step * first_moment / (np.sqrt(second_moment) * root + epsilon)
        if stop < last:
            return stop
    return end


_KERNELS = {OptimizerKind.SGD: _sgd, OptimizerKind.ADAGRAD: _adagrad, OptimizerKind.ADAM: _adam}


class RowRule:
    """One update rule for rows of `dimension` numbers.

    Attributes:
        state_width: optimiser numbers per row.
        initial_state: [state_width] float32, of a new row.
    """

    def __init__(self, spec: OptimizerSpec, dimension: int) -> None:
        self.kind = spec.kind
        self._kernel = _KERNELS[spec.kind]
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

    def apply(self, *arguments: Any) -> int:
        """Updates a stripe's rows (absent ones are passed over) from position `begin` of the order on.

        Args:
            arguments: shelf, settings, marks, request, stripe, places [U], gradients [U, D], now_seconds uint32, begin,
                offsets [AHEAD] int64 (scratch).

        Returns the position at which it stopped for want of slabs, or the end of the stripe's order.
        """
        return int(self._kernel(*arguments, *self._numbers))
