"""Lists of names in messages: some of their elements, or those that occur more than once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

T = TypeVar("T", bound=Any)


def some(names: Sequence[str], most: int = 3, *, last: bool = False) -> str:
    """`a, b, c and 4 more`: the first names, or with `last` the last ones; empty if there are no names."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[-most:] if last else names[:most]) + more


def repeated(values: Iterable[T]) -> list[T]:
    """The values that occur more than once, sorted."""
    return sorted(value for value, count in Counter(values).items() if count > 1)
