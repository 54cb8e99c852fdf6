"""The rows that each master of a job added to the model, even if it left no ledger, from the positions of its start.

A *life* of a job is the work of the masters of one journal. It begins at the positions of the record in its first term
(`checkpoints.terms.Term.positions`); later rows were discarded, as after a rollback. So life i added the rows of a
shard from its own start to the lowest start of a later life. Pure.

A term names the record that its master intended to restore. If that record was damaged, so that the life began from an
older one, and the life left no ledger either, the rows between the two records are attributed to the life before it.
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
"""Prefix of the outcome of rows that are only known from the positions of that record."""
OF_ANOTHER_JOB = -1
"""Generation of rows that were trained before the job's first life, by the job from whose record it started."""


class Life(msgspec.Struct, frozen=True):
    """The work of the masters of one journal.

    Attributes:
        generation: its lowest generation; those of the next life are higher.
        base: name of the record from which it continued; empty: none.
        begin: its start in the training stream; None: the first row.
    """

    generation: int
    base: str
    begin: StreamPositions | None


def lives(terms: Sequence[Term], holder: str) -> list[Life]:
    """The lives of a job up to that of `holder`, the first one first.

    Args:
        terms: of one run of the job, the lowest one first. Damaged terms, which have no holder, are left out.

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
    """Rows of each shard that count for each life except the last, and before the first: `[from, to)`, of shape (S, 2).

    Args:
        splits: of the training stream.
        begins: the start of each life.
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
    """The number of trained rows of each split at some positions, by split number; of shape (S,)."""
    offsets_S = np.zeros(epochs * splits.per_epoch, np.int64)
    if positions is None:
        return offsets_S
    handed_out_S = splits.handed_out(positions.cursor, np.arange(len(offsets_S)))
    offsets_S[handed_out_S] = splits.lengths(np.flatnonzero(handed_out_S))
    for shard in positions.begun:
        offsets_S[shard.number] = shard.offset
    return offsets_S


def attempts_before(stream: str, span_S2: NDArray[np.int64], generation: int, record: str) -> list[Attempt]:
    """Ledger lines for rows that are only known from a record."""
    numbers = np.flatnonzero(span_S2[:, 1] > span_S2[:, 0])
    return [
        Attempt(stream, generation, number, 0, "", int(begin), int(end), f"{BEFORE}{record}")
        for number, (begin, end) in zip(numbers.tolist(), span_S2[numbers].tolist(), strict=True)
    ]
