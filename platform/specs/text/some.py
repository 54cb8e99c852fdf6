"""Long lists in messages: some of their elements, and how many more there are."""

from __future__ import annotations

from collections.abc import Sequence


def some(names: Sequence[str], most: int = 3, *, last: bool = False) -> str:
    """`a, b, c and 4 more`: the first ones, or with `last` the last ones; empty where there are none."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[-most:] if last else names[:most]) + more
