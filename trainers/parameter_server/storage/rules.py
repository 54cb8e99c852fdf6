"""Update rules of the segments of embedding rows, in float32.

g is a segment's gradient, summed over the batch; w is its value [W]; λ is the weight decay (g ← g + λ w):

    adagrad  a ← a + mean_d(g²);  w ← w - lr g / (sqrt(a) + eps)      one a per row, as torchrec's RowWiseAdagrad
    adam     as torch.optim.Adam, with a step count per row (rows that are not in the batch do not change)
    sgd      w ← w - lr g
    ftrl     n' = n + g²;  z ← z + g - (sqrt(n') - sqrt(n)) / lr · w
             w ← 0 if |z| ≤ l1, else -(z - sign(z) l1) / ((beta + sqrt(n')) / lr + l2)

A step may scale its learning rate by a factor s: lr is then lr s. With ftrl, g in z is then s g instead, because a
value is computed from z, and another lr would change it without a gradient.

ftrl is FTRL-Proximal, McMahan et al., "Ad click prediction: a view from the trenches", KDD 2013, algorithm 1, with two
numbers per value. The first z of a row yields the row's initial value, so that the first step does not discard it.

`apply_rules` notes the change of each row (`changes`) before it changes it. If this needs slabs, it stops and returns
the position in the stripe's order at which it must be called again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from elastrec.platform.specs.optimizers import OptimizerKind, RowSegment, row_state
from elastrec.trainers.parameter_server.prefetch import AHEAD, prefetch
from elastrec.trainers.parameter_server.storage.kernels.arrays import CELL_VERSION, VERSION
from elastrec.trainers.parameter_server.storage.kernels.changes import can_change, note_change
from elastrec.trainers.parameter_server.storage.kernels.compiling import inlined, kernel, kernel_with
from elastrec.trainers.parameter_server.storage.kernels.pools import offset_of, prefetch_cell

Array = np.ndarray[Any, Any]

# Columns of the segments [G, 4] int64 of a table group (STATE: where the segment's state begins in the row's state) and
# of their constants `numbers` [G, 9] float32.
KIND, COLUMN, WIDTH, STATE = 0, 1, 2, 3
RATE, EPSILON, DECAY, BETA1, BETA2, BETA, L1, L2, ACCUMULATOR = 0, 1, 2, 3, 4, 5, 6, 7, 8
SGD, ADAGRAD, ADAM, FTRL = 0, 1, 2, 3
_KINDS = {OptimizerKind.SGD: SGD, OptimizerKind.ADAGRAD: ADAGRAD, OptimizerKind.ADAM: ADAM, OptimizerKind.FTRL: FTRL}


@kernel
def _note_older(  # type: ignore[no-untyped-def]
    indexed, settings, marks, buckets, order, places, first, last, stripe, now_seconds
):
    """Notes the change and the sighting of rows older than their bucket's version.

    Returns the position of the first row for which slabs are missing, or `last`.
    """
    for k in range(first, last):
        place = places[order[k]]
        if place >= 0:
            bucket = np.int64(buckets[order[k]])
            if (
                np.int64(indexed.pool.words[offset_of(indexed.pool.shape, place) + CELL_VERSION])
                != marks[bucket, VERSION]
            ):
                if not can_change(indexed, marks, bucket, stripe, 1):
                    return k
                note_change(indexed, marks, bucket, stripe, place)
                if settings.seen_word:
                    indexed.pool.words[offset_of(indexed.pool.shape, place) + settings.seen_word] = now_seconds
    return last


@kernel
def _prefetch_first(words, shape, order, places, begin, end):  # type: ignore[no-untyped-def]
    """Prefetches the rows that `_locate` reads first; `_locate` prefetches the others."""
    for k in range(begin, min(begin + AHEAD, end)):
        if places[order[k]] >= 0:
            prefetch_cell(words, shape, places[order[k]])


@kernel
def _locate(  # type: ignore[no-untyped-def]
    words, shape, seen_word, marks, buckets, order, places, gradients, first, last, end, now_seconds, offsets
):
    """Fills `offsets` of the rows at order[first:last]; absent rows get -1.

    Sets the last sighting of rows that have their bucket's version, and prefetches the next rows, up to `end`. Returns
    whether a row is older than its bucket's version.
    """
    for k in range(first, last):
        place = places[order[k]]
        offsets[k - first] = -1
        if place >= 0:
            offsets[k - first] = offset_of(shape, place)
        if k + AHEAD < end and places[order[k + AHEAD]] >= 0:
            prefetch_cell(words, shape, places[order[k + AHEAD]])
            prefetch(gradients, np.int64(order[k + AHEAD]))
    is_older = False
    for k in range(first, last):
        at = offsets[k - first]
        if at >= 0:
            if np.int64(words[at + CELL_VERSION]) != marks[buckets[order[k]], VERSION]:
                is_older = True  # its shadow must contain the earlier sighting
            elif seen_word:
                words[at + seen_word] = now_seconds
    return is_older


@inlined
def _reach(  # type: ignore[no-untyped-def]
    indexed, settings, marks, buckets, order, places, gradients, first, last, end, stripe, now_seconds, offsets
):
    """Locates the rows at order[first:last] and notes their changes; returns as `_note_older`."""
    pool = indexed.pool
    if _locate(
        pool.words, pool.shape, settings.seen_word, marks, buckets, order, places, gradients, first, last, end,
        now_seconds, offsets,
    ):  # fmt: skip
        return _note_older(indexed, settings, marks, buckets, order, places, first, last, stripe, now_seconds)
    return last


# Each kernel updates one segment of the rows j = order[k], first <= k < stop. A row's cell begins at offsets[k - first]
# (-1: absent). The segment's `width` values begin at word `value` of a cell, its state at word `state`.
# Indexes into a row are unsigned: a signed index may count from the end of an array, and numba then vectorises nothing.


@kernel
def _sgd(cells, gradients, order, offsets, first, stop, column, width, value, rate, decay):  # type: ignore[no-untyped-def]
    for k in range(first, stop):
        if offsets[k - first] >= 0:
            j, w = order[k], np.uint64(offsets[k - first] + value)
            for n in range(width):
                d = np.uint64(n)
                cells[w + d] -= rate * (gradients[j, column + d] + decay * cells[w + d])


@kernel_with(error_model="numpy", fastmath={"reassoc", "contract"})
def _adagrad(  # type: ignore[no-untyped-def]
    cells, gradients, order, offsets, first, stop, column, width, value, state, rate, epsilon, decay
):
    share = np.float32(1.0) / np.float32(width)
    for k in range(first, stop):
        at = offsets[k - first]
        if at >= 0:
            j, w, a = order[k], np.uint64(at + value), np.uint64(at + state)
            squares = np.float32(0.0)
            for n in range(width):
                d = np.uint64(n)
                g = gradients[j, column + d] + decay * cells[w + d]
                squares += g * g
            total = cells[a] + squares * share
            cells[a] = total
            step = rate / (np.sqrt(total) + epsilon)
            for n in range(width):
                d = np.uint64(n)
                cells[w + d] -= step * (gradients[j, column + d] + decay * cells[w + d])


@kernel_with(error_model="numpy")
def _adam(  # type: ignore[no-untyped-def]
    cells, gradients, order, offsets, first, stop, column, width, value, state, rate, epsilon, decay, beta1, beta2
):
    one = np.float32(1.0)
    for k in range(first, stop):
        at = offsets[k - first]
        if at >= 0:
            j, w, m = order[k], np.uint64(at + value), np.uint64(at + state)
            v = m + np.uint64(width)
            count = cells[v + np.uint64(width)] + one
            cells[v + np.uint64(width)] = count
            step = np.float32(rate / (1.0 - np.float64(beta1) ** count))
            root = np.float32(1.0 / np.sqrt(1.0 - np.float64(beta2) ** count))
            for n in range(width):
                d = np.uint64(n)
                g = gradients[j, column + d] + decay * cells[w + d]
                first_moment = beta1 * cells[m + d] + (one - beta1) * g
                second_moment = beta2 * cells[v + d] + (one - beta2) * g * g
                cells[m + d] = first_moment
                cells[v + d] = second_moment
                cells[w + d] -= step * first_moment / (np.sqrt(second_moment) * root + epsilon)


@kernel_with(error_model="numpy")
def _ftrl(  # type: ignore[no-untyped-def]
    cells, gradients, order, offsets, first, stop, column, width, value, state, rate, scale, decay, beta, l1, l2
):
    for k in range(first, stop):
        at = offsets[k - first]
        if at >= 0:
            j, w, z = order[k], np.uint64(at + value), np.uint64(at + state)
            a = z + np.uint64(width)
            for n in range(width):
                d = np.uint64(n)
                g = gradients[j, column + d] + decay * cells[w + d]
                before, square = cells[a + d], g * g
                if g == np.float32(0.0) or before + square == np.float32(0.0):
                    continue  # g changes nothing: it is 0, or so small that g² is 0 in float32, and 0 / 0 would be NaN
                root = np.sqrt(before + square)
                # The difference of the roots as g² / (sum of the roots), without cancellation.
                linear = cells[z + d] + scale * g - square / ((root + np.sqrt(before)) * rate) * cells[w + d]
                cells[a + d] = before + square
                cells[z + d] = linear
                excess = max(np.abs(linear) - l1, np.float32(0.0))
                cells[w + d] = -np.copysign(excess / ((beta + root) / rate + l2), linear)


@kernel
def _apply_segment(  # type: ignore[no-untyped-def]
    segment, n, scale, state_word, value_word, cells, gradients, order, offsets, first, stop
):
    """Applies a segment's rule to up to AHEAD rows.

    Args:
        segment, n: [4], [9], a row of `segments` and of `numbers`.
        scale: float32, a factor of the learning rate.
    """
    rate = n[RATE] * scale
    column, width = np.uint64(segment[COLUMN]), segment[WIDTH]
    value, state = value_word + segment[COLUMN], state_word + segment[STATE]
    if segment[KIND] == ADAGRAD:
        _adagrad(cells, gradients, order, offsets, first, stop, column, width, value, state, rate, n[EPSILON], n[DECAY])
    elif segment[KIND] == ADAM:
        _adam(
            cells, gradients, order, offsets, first, stop, column, width, value, state, rate, n[EPSILON], n[DECAY],
            n[BETA1], n[BETA2],
        )  # fmt: skip
    elif segment[KIND] == FTRL:
        _ftrl(
            cells, gradients, order, offsets, first, stop, column, width, value, state, n[RATE], scale,
            n[DECAY], n[BETA], n[L1], n[L2],
        )  # fmt: skip
    else:
        _sgd(cells, gradients, order, offsets, first, stop, column, width, value, rate, n[DECAY])


@kernel
def apply_rules(  # type: ignore[no-untyped-def]
    indexed, settings, marks, request, stripe, places, gradients, now_seconds, rate_scale, begin, offsets
):
    """Updates a stripe's rows from position `begin` of the order on. Absent rows are skipped.

    Args:
        places, gradients: [U], [U, D], by id of the request.
        rate_scale: float32, a factor of all learning rates.
        offsets: [AHEAD] int64, scratch.

    Returns the position at which slabs are missing, or the end of the stripe's order.
    """
    words, cells, shape = indexed.pool.words, indexed.pool.cells, indexed.pool.shape
    order, end = request.order, request.starts[stripe + 1]
    segments, numbers, state_word, value_word = (
        settings.segments, settings.numbers, settings.state_word, settings.value_word,
    )  # fmt: skip
    _prefetch_first(words, shape, order, places, begin, end)
    for first in range(begin, end, AHEAD):
        last = min(first + AHEAD, end)
        stop = _reach(
            indexed,
            settings,
            marks,
            request.buckets,
            order,
            places,
            gradients,
            first,
            last,
            end,
            stripe,
            now_seconds,
            offsets,
        )
        for g in range(segments.shape[0]):
            _apply_segment(
                segments[g],
                numbers[g],
                rate_scale,
                state_word,
                value_word,
                cells,
                gradients,
                order,
                offsets,
                first,
                stop,
            )
        if stop < last:
            return stop
    return end


@kernel
def write_first_state(values, segments, numbers, initial_state, state):  # type: ignore[no-untyped-def]
    """Fills `state` [S] float32 of a row with initial values [D] float32.

    Args:
        segments, numbers, initial_state: see RowRules.
    """
    for s in range(state.shape[0]):
        state[s] = initial_state[s]
    for g in range(segments.shape[0]):
        if segments[g, KIND] == FTRL:
            n = numbers[g]
            scale = (n[BETA] + np.sqrt(n[ACCUMULATOR])) / n[RATE] + n[L2]
            for d in range(segments[g, WIDTH]):
                value = values[segments[g, COLUMN] + d]
                z = value * scale + np.sign(value) * n[L1]
                state[segments[g, STATE] + d] = -z if value else np.float32(0.0)


@kernel
def _write_first_states(values, segments, numbers, initial_state, states):  # type: ignore[no-untyped-def]
    for j in range(values.shape[0]):
        write_first_state(values[j], segments, numbers, initial_state, states[j])


class RowRules:
    """The rules of a row's segments.

    Attributes:
        segments, numbers: [G, 4] int64, [G, 9] float32, whose columns are named above.
        state_width: S, length of a row's state: one segment after the other, each as `row_state` lists it.
        initial_state: [S] float32, without the z of ftrl, which depends on the value.
    """

    def __init__(self, segments: Sequence[RowSegment]) -> None:
        rules = [segment.rule for segment in segments]
        self.segments = np.zeros((len(segments), 4), np.int64)
        self.numbers = np.array(
            [
                (
                    rule.learning_rate, rule.epsilon, rule.weight_decay, rule.beta1, rule.beta2, rule.beta, rule.l1,
                    rule.l2, rule.initial_accumulator,
                )
                for rule in rules
            ],
            np.float32,
        )  # fmt: skip
        initial: list[float] = []
        column = 0
        for number, (segment, rule) in enumerate(zip(segments, rules, strict=True)):
            self.segments[number] = _KINDS[rule.kind], column, segment.width, len(initial)
            column += segment.width
            for name, width in row_state(rule.kind, segment.width):
                initial += [rule.initial_accumulator if name in ("accumulator", "accumulators") else 0.0] * width
        self.state_width = len(initial)
        self.initial_state = np.array(initial, np.float32)

    def first_states(self, values: Array) -> Array:
        """The first states [n, S] float32 of rows with initial values [n, D] float32."""
        states = np.empty((len(values), self.state_width), np.float32)
        _write_first_states(
            np.ascontiguousarray(values, np.float32), self.segments, self.numbers, self.initial_state, states
        )
        return states
