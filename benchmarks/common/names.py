"""The names of all benchmarks."""

from __future__ import annotations

from pathlib import Path

_SHARED = ("common", "processes")
"""Rooms without benchmarks."""


def benchmarks() -> dict[str, Path]:
    """The module of each benchmark by its name, which is unique across the rooms."""
    files = sorted(Path(__file__).parents[1].glob("[a-z]*/[a-z]*.py"))
    return {file.stem: file for file in files if file.parent.name not in _SHARED}
