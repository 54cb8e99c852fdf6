"""Columns of lists with repeats, for hypothesis and by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from elastrec.platform.data.deduplicating.deduplication import InverseJagged

ids = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 3)
lists = st.lists(ids, max_size=5)


@st.composite
def repeated_lists(draw: st.DrawFn, rows: int | None = None) -> pa.Array:
    """A list column whose rows come from a small pool, so that many are equal."""
    pool = draw(st.lists(lists, min_size=1, max_size=4))
    size = {"min_size": rows, "max_size": rows} if rows is not None else {"max_size": 30}
    chosen = draw(st.lists(st.sampled_from(pool), **size))
    return list_column(chosen)


def list_column(rows: list[list[int]]) -> pa.Array:
    return pa.array(rows, pa.list_(pa.int64()))


def rows_of(values: object, offsets: object) -> list[list[int]]:
    """Python lists of one jagged feature."""
    bounds = offsets.tolist()  # type: ignore[attr-defined]
    return [values[a:b].tolist() for a, b in itertools.pairwise(bounds)]  # type: ignore[index]


def assert_well_formed(group: InverseJagged, *, distinct: bool = False) -> None:
    """Offsets are those of the values, every distinct row is used, and with `distinct` no two of them are equal."""
    assert group.offsets[0] == 0 and group.offsets[-1] == len(group.values) and (np.diff(group.offsets) >= 0).all()
    assert (len(group.offsets) - 1) % len(group.keys) == 0
    assert set(group.inverse_lookup.tolist()) == set(range(group.distinct_rows))
    if distinct:
        rows = zip(*(map(tuple, rows_of(*group.feature(key))) for key in group.keys), strict=True)
        assert len(set(rows)) == group.distinct_rows
