"""Columns of lists with repeats, for hypothesis and by hand."""

from __future__ import annotations

import itertools

import pyarrow as pa
from hypothesis import strategies as st

ids = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 3)
lists = st.lists(ids, max_size=5)


@st.composite
def repeated_lists(draw: st.DrawFn, rows: int | None = None) -> pa.Array:
    """A list column whose rows come from a small pool, so that many are equal."""
    pool = draw(st.lists(lists, min_size=1, max_size=4))
    size = {"min_size": rows, "max_size": rows} if rows is not None else {"max_size": 30}
    chosen = draw(st.lists(st.sampled_from(pool), **size))
    return list_column(chosen)


@st.composite
def shifted_lists(draw: st.DrawFn) -> pa.Array:
    """Histories that grow at one end, are cut to a length, and are sometimes replaced."""
    newest_first, length = draw(st.booleans()), draw(st.integers(0, 6))
    history: list[int] = []
    rows = []
    for step in draw(st.lists(st.tuples(st.integers(0, 3), ids), max_size=30)):
        if step[0] == 0:
            history = [step[1]] * length
        elif step[0] == 1:
            history = [step[1], *history] if newest_first else [*history, step[1]]
        kept = history[:length] if newest_first else history[max(0, len(history) - length) :]
        rows.append(list(kept))
    return list_column(rows)


def list_column(rows: list[list[int]]) -> pa.Array:
    return pa.array(rows, pa.list_(pa.int64()))


def rows_of(values: object, offsets: object) -> list[list[int]]:
    """Python lists of one jagged feature."""
    bounds = offsets.tolist()  # type: ignore[attr-defined]
    return [values[a:b].tolist() for a, b in itertools.pairwise(bounds)]  # type: ignore[index]
