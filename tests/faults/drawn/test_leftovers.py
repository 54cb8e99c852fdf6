"""What counts as left of a job: its own alone, on a machine where others work, too."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastrec.platform.specs import environment
from tests.faults.campaign.leftovers import _answers, _is_of_others

_LISTEN = "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); input()"


@contextlib.contextmanager
def listener(home: Path) -> Iterator[int]:
    """The port of a pod of this home."""
    variables = {**os.environ, environment.WORK: str(home / "agent" / "pods" / "x" / "work")}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", _LISTEN], env=variables, text=True, **pipes) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.kill()


def test_a_port_counts_where_a_pod_of_the_home_listens(tmp_path: Path) -> None:
    with listener(tmp_path / "one") as port:
        assert _answers(port, tmp_path / "one")
        assert not _answers(port, tmp_path / "another")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert not _answers(unused.getsockname()[1], tmp_path / "one")


@pytest.mark.parametrize(("jobs", "is_of_others"), [(["other"], True), (["other", "mine"], False), ([], False)])
def test_memory_of_other_jobs_alone_is_another_agents(jobs: list[str], is_of_others: bool) -> None:
    folder = Path("/dev/shm") / f"test-leftovers-{uuid.uuid4().hex}"
    folder.mkdir()
    try:
        for job in jobs:
            (folder / job).mkdir()
        assert _is_of_others(folder.name, "mine") is is_of_others
    finally:
        shutil.rmtree(folder)
