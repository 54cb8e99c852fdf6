"""The rows that each launch of a job has trained, from the positions at which each began."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from elastrec.checkpoints import Term
from elastrec.platform.master.machine.phases import NUMBERS_PER_TERM
from elastrec.platform.master.machine.shards import ShardQueue
from elastrec.platform.master.service.lives import BEFORE, Life, added_rows, attempts_before, lives
from elastrec.platform.specs.row_ranges import RowRanges
from elastrec.platform.specs.splits import Begun, Positions, StreamPositions
from tests.splits import length_of, progress_of

ROWS, SHARD_ROWS, EPOCHS = 47, 10, 2
NOBODY = -1


def queue(shuffle: bool) -> ShardQueue:
    splits = RowRanges(rows=ROWS, split_rows=SHARD_ROWS, epochs=EPOCHS, shuffle=shuffle, seed=5)
    return ShardQueue(stream="training", kind="train", splits=splits, lease_seconds=60.0)


def term(number: int, holder: str, base: str = "", begin: StreamPositions | None = None) -> Term:
    positions = Positions({"training": begin}).encode().decode() if begin else ""
    return Term(term=number, holder=holder, address="a:1", base=base, positions=positions)


class History:
    """A job as it happened: who has trained each row that the model has seen."""

    def __init__(self, shuffle: bool) -> None:
        self.queue = queue(shuffle)
        self.owner = np.full((self.queue.total, SHARD_ROWS), NOBODY)
        self.records: list[tuple[StreamPositions, np.ndarray]] = []

    def train(self, life: int, shards: int, rows: int) -> None:
        """Leases some shards, and trains up to so many rows of each."""
        for shard in self.queue.lease("worker", f"request-{self.queue.leases}-{life}", shards, 0.0):
            end = min(shard.offset + rows, length_of(shard))
            self.queue.advance("worker", progress_of(shard, end), 0.0)
            self.owner[shard.split.number, shard.offset : end] = life

    def save(self) -> None:
        self.records.append((self.queue.positions(), self.owner.copy()))

    def go_back(self, record: int) -> StreamPositions:
        """A life begins at a record, the last of them for -1; newer ones are no later life's."""
        self.records = self.records[: len(self.records) + record + 1]
        positions, owner = self.records[-1]
        self.queue.restore(positions)
        self.owner = owner.copy()
        return positions


steps = st.lists(
    st.one_of(
        st.tuples(st.just("train"), st.integers(1, 4), st.integers(1, SHARD_ROWS)),
        st.tuples(st.just("save"), st.just(0), st.just(0)),
    ),
    max_size=6,
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), steps), min_size=1, max_size=5), st.booleans())
def test_a_life_counts_its_training_less_later_rollbacks(
    plan: list[tuple[int, list[tuple[str, int, int]]]], shuffle: bool
) -> None:
    history = History(shuffle)
    history.save()
    begins: list[StreamPositions] = []
    for life, (back, acts) in enumerate(plan):
        # Mostly from the newest record; from an older one where that is damaged.
        begins.append(history.go_back(-1 - min(back, len(history.records) - 1)))
        for act, shards, rows in acts:
            if act == "train":
                history.train(life, shards, rows)
            else:
                history.save()
    begins.append(history.go_back(-1))
    found = np.full_like(history.owner, NOBODY)
    spans = added_rows(history.queue.splits, begins)
    assert len(spans) == len(begins)
    for life, span_S2 in enumerate(spans, start=-1):
        for number, (begin, end) in enumerate(span_S2.tolist()):
            assert (found[number, begin:end] == NOBODY).all()
            found[number, begin:end] = life
    assert np.array_equal(found, history.owner)


def test_masters_of_one_journal_are_one_life_and_later_lives_are_not_ours() -> None:
    first, second = StreamPositions(2, []), StreamPositions(3, [Begun(1, 4, 1)])
    terms = [
        term(4, "a"), term(5, "a", "file:///s/j/records/r1"), term(6, "b", "file:///s/j/records/r2", first),
        term(7, ""), term(8, "c", "file:///s/j/records/r3", second), term(9, "d"),
    ]  # fmt: skip
    assert lives(terms, "c") == [
        Life(3 * NUMBERS_PER_TERM, "", None),
        Life(5 * NUMBERS_PER_TERM, "r2", first),
        Life(7 * NUMBERS_PER_TERM, "r3", second),
    ]


@pytest.mark.parametrize("shuffle", [False, True])
def test_rows_known_by_a_record_alone_have_a_line_a_shard_that_names_it(shuffle: bool) -> None:
    history = History(shuffle)
    history.train(0, 2, SHARD_ROWS)
    history.train(0, 1, 4)
    history.save()
    positions, owner = history.records[0]
    span = added_rows(history.queue.splits, [None, positions])[1]
    lines = attempts_before("training", span, 7, "r1")
    assert {line.outcome for line in lines} == {f"{BEFORE}r1"} and {line.generation for line in lines} == {7}
    trained = {(line.number, row) for line in lines for row in range(line.row_begin, line.row_end)}
    assert trained == {(int(shard), int(row)) for shard, row in np.argwhere(owner == 0)}
    assert len(lines) == 3
