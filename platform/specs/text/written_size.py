"""The size of a value when it is written out, where a YAML alias or a shared Python object is repeated at each use."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import yaml

T = TypeVar("T")
MAXIMUM_CHARACTERS = 10_000_000
"""Limit for a job file or another description. A few lines with aliases of aliases could expand to gigabytes."""


def oversized_node(root: yaml.Node) -> tuple[yaml.Node, float] | None:
    """The first part of a YAML text that is too large, and its characters (infinite if it holds itself)."""
    return _oversized(root, _parts_of_node, lambda node: _length(node.value))


def oversized_value(root: Any) -> tuple[Any, float] | None:
    """Like `oversized_node`, for mappings and sequences in memory."""
    return _oversized(root, _parts_of_value, _length)


def _oversized(root: T, parts: Callable[[T], Iterable[T]], length: Callable[[T], int]) -> tuple[T, float] | None:
    """Each part is measured once, however often it is repeated."""
    sizes: dict[int, int] = {}
    entered: set[int] = set()
    stack = [(root, False)]
    while stack:
        part, is_measured = stack.pop()
        if is_measured:
            size = 1 + length(part) + sum(sizes[id(inner)] for inner in parts(part))
            if size > MAXIMUM_CHARACTERS:
                return part, size
            sizes[id(part)] = size
            entered.discard(id(part))
        elif id(part) in entered:
            return part, math.inf
        elif id(part) not in sizes:
            entered.add(id(part))
            stack.append((part, True))
            stack.extend((inner, False) for inner in parts(part))
    return None


def _parts_of_node(node: yaml.Node) -> Iterable[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return (part for pair in node.value for part in pair)
    return node.value if isinstance(node, yaml.SequenceNode) else ()


def _parts_of_value(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return (*value.keys(), *value.values())
    return value if isinstance(value, list | tuple) else ()


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str) else 0
