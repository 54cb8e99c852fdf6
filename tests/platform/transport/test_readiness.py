"""The readiness message of a pod, with and without a node that receives it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from elastrec.platform.specs import environment
from elastrec.platform.transport.readiness import announce_ready


def test_a_process_works_only_after_its_node_has_seen_that_it_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "ready"
    monkeypatch.setenv(environment.READY, str(file))
    works = threading.Event()

    def process() -> None:
        announce_ready(timeout_seconds=60.0)
        works.set()

    thread = threading.Thread(target=process)
    thread.start()
    while not file.exists():
        assert thread.is_alive()
    assert not works.is_set()
    file.unlink()
    thread.join(30)
    assert works.is_set()


@pytest.mark.parametrize("is_there", [True, False])
def test_a_pod_works_although_its_node_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    file = tmp_path / ("ready" if is_there else "gone/ready")
    monkeypatch.setenv(environment.READY, str(file))
    announce_ready(timeout_seconds=0.0)
    assert file.exists() is is_there
    file.unlink(missing_ok=True)
    announce_ready(timeout_seconds=60.0)
    assert not file.exists(), "announced a second time"
