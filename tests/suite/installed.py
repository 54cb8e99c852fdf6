"""The metadata of installed packages, which is parsed once in a process of tests.

An export of a model reads the versions and needs of 160 packages, and so does MLflow when it loads one, to compare them
with its requirements: half a second each, for files that do not change. One that is written anew is read again.
Rooms whose tests export or load models have the fixture in their conftest.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import importlib_metadata
import pytest


@pytest.fixture(autouse=True, scope="session")
def parsed_once() -> Iterator[None]:
    # Of the library with which MLflow reads metadata: it also answers what others ask `importlib.metadata`.
    found = importlib_metadata.PathDistribution
    parse: Any = found.metadata.fget  # type: ignore[attr-defined]

    @functools.cache
    def parsed(folder: Path, written: int) -> Any:
        return parse(found(folder))

    def metadata(self: Any) -> Any:
        if not isinstance(self._path, Path):  # in an archive
            return parse(self)
        files = [self._path / name for name in ("METADATA", "PKG-INFO")]
        return parsed(self._path, max((file.stat().st_mtime_ns for file in files if file.exists()), default=0))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(found, "metadata", property(metadata), raising=False)
        yield
