"""Splits of streams, and the storage of positions."""

from __future__ import annotations

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from hypothesis import given

from elastrec.platform.specs.row_ranges import RowRanges
from elastrec.platform.specs.splits import Begun, Positions, StreamPositions


@given(st.integers(1, 90), st.integers(1, 40), st.integers(1, 3), st.booleans(), st.integers(0, 9))
def test_the_splits_of_an_epoch_cover_its_rows_once_in_an_order_of_their_own(
    rows: int, split_rows: int, epochs: int, shuffle: bool, seed: int
) -> None:
    splits = RowRanges(rows=rows, split_rows=split_rows, epochs=epochs, shuffle=shuffle, seed=seed)
    numbers = [splits.number_at(cursor) for cursor in range(splits.total)]
    assert sorted(numbers) == list(range(splits.total))
    covered = [(found.epoch, found.start + row) for found in map(splits.range, numbers) for row in range(found.length)]
    assert sorted(covered) == [(epoch, row) for epoch in range(epochs) for row in range(rows)]
    assert [splits.rows_of(number) for number in numbers] == splits.lengths(np.array(numbers)).tolist()
    for cursor in range(splits.total + 1):
        handed_out = np.flatnonzero(splits.handed_out(cursor, np.arange(splits.total)))
        assert handed_out.tolist() == sorted(numbers[:cursor])
        expected = sum(splits.range(number).length for number in numbers[:cursor])
        assert splits.covered_rows(StreamPositions(cursor, [])) == expected


def test_encoding_keeps_the_source_specific_part_of_positions() -> None:
    positions = Positions({"a": StreamPositions(2, [Begun(1, 4, 1, b"\x00\xff")]), "b": StreamPositions(0, [])})
    assert Positions.decode(positions.encode()) == positions
    assert positions.of("a") == positions.streams["a"] and positions.of("c") is None


@pytest.mark.parametrize("text", [b"", b"[]", b'{"cursor": 1}', b'{"streams": 3}'])
def test_damaged_positions_are_refused(text: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        Positions.decode(text)


def test_positions_of_one_stream_as_older_records_keep_them_are_those_of_the_training() -> None:
    positions = Positions.decode(b'{"cursor": 3, "begun": [[1, 40, 2]]}')
    (begun,) = positions.streams["training"].begun
    assert (positions.streams["training"].cursor, begun.number, begun.offset, begun.attempt) == (3, 1, 40, 2)
    assert begun.position == b""
