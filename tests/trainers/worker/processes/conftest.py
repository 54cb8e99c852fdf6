"""The real processes of one test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trainers.worker.processes.pods import Pods


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    started = Pods(tmp_path / "pods")
    started.folder.mkdir()
    yield started
    started.stop()
