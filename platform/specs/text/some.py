"""Words for messages: numbers of things, and lists of names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

T = TypeVar("T", bound=Any)


def counted(number: int, noun: str) -> str:
    """`1 worker`, `2,000 workers`: a number and a noun, whose plural ends in s."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def some(names: Sequence[str], most: int = 3, *, last: bool = False) -> str:
    """`a, b, c and 4 more`: the first names, or with `last` the last ones; empty if there are no names."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[-most:] if last else names[:most]) + more


def repeated(values: Iterable[T]) -> list[T]:
    """The values that occur more than once, sorted."""
    return sorted(value for value, count in Counter(values).items() if count > 1)
