"""What each master of a job has added to the model, known from where each began: also of one that left no ledger.

A *life* of a job is the work of the masters of one journal. It begins at the positions of the record that its first
term names (`checkpoints.terms.Term.positions`); whatever lay beyond them was thrown away, as after a rollback. So of a
shard, life i has added the rows from where it began to the lowest place at which a later life began. Pure.

What a term names is the record that its master meant to restore. Where that one proved damaged, so that the life began
from an older one, and the life left no ledger either, its rows between the two are counted to the life before it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from elastrec.checkpoints import Term
from elastrec.platform.master.machine.phases import NUMBERS_PER_TERM
from elastrec.platform.specs.row_ranges import RowRanges
from elastrec.platform.specs.splits import TRAINING_STREAM, Positions, StreamPositions
from elastrec.platform.transport.messages.ledger import Attempt

BEFORE = "before record "
"""How the outcome of rows begins that are known from the positions of that record alone."""
OF_ANOTHER_JOB = -1
"""Generation of rows that were trained before the job's first life: by the job whose record it started from."""


class Life(msgspec.Struct, frozen=True):
    """One journal's time.

    Attributes:
        generation: its lowest one; those of the next life are higher.
        base: name of the record that it continued from; empty: none.
        begin: where in the training stream it began; None: at the first row.
    """

    generation: int
    base: str
    begin: StreamPositions | None


def lives(terms: Sequence[Term], holder: str) -> list[Life]:
    """The lives of a job up to that of `holder`, the first one first.

    Args:
        terms: of one run of the job, the lowest one first. A damaged one, which names no holder, is left out.

    Raises:
        msgspec.MsgspecError: positions cannot be read.
    """
    lives: list[Life] = []
    last = ""
    for term in terms:
        if not term.holder or term.holder == last:
            continue
        last = term.holder
        begin = Positions.decode(term.positions).of(TRAINING_STREAM) if term.positions else None
        lives.append(Life((term.term - 1) * NUMBERS_PER_TERM, term.base.rpartition("/")[2], begin))
        if last == holder:
            break
    return lives


def added_rows(splits: RowRanges, begins: Sequence[StreamPositions | None]) -> list[NDArray[np.int64]]:
    """Rows of each shard that count from each life but the last, and before the first: `[from, to)`, of shape (S, 2).

    Args:
        splits: of the training stream.
        begins: where each life began.
    """
    epochs = max((-(-begin.cursor // splits.per_epoch) for begin in begins if begin is not None), default=0)
    offsets = [_offsets(splits, begin, epochs) for begin in (None, *begins)]
    spans: list[NDArray[np.int64]] = []
    lowest_later = offsets[-1]
    for begin in reversed(offsets[:-1]):
        spans.append(np.stack([begin, np.maximum(begin, lowest_later)], axis=1))
        lowest_later = np.minimum(begin, lowest_later)
    return spans[::-1]


def _offsets(splits: RowRanges, positions: StreamPositions | None, epochs: int) -> NDArray[np.int64]:
    """How many rows of each split, by its number, are trained at some positions; of shape (S,)."""
    offsets_S = np.zeros(epochs * splits.per_epoch, np.int64)
    if positions is None:
        return offsets_S
    handed_out_S = splits.handed_out(positions.cursor, np.arange(len(offsets_S)))
    offsets_S[handed_out_S] = splits.lengths(np.flatnonzero(handed_out_S))
    for shard in positions.begun:
        offsets_S[shard.number] = shard.offset
    return offsets_S


def attempts_before(stream: str, span_S2: NDArray[np.int64], generation: int, record: str) -> list[Attempt]:
    """Lines for rows of which no ledger says more than that a record held them."""
    numbers = np.flatnonzero(span_S2[:, 1] > span_S2[:, 0])
    return [
        Attempt(stream, generation, number, 0, "", int(begin), int(end), f"{BEFORE}{record}")
        for number, (begin, end) in zip(numbers.tolist(), span_S2[numbers].tolist(), strict=True)
    ]
