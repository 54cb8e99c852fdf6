"""Only leftovers of the job itself are reported, not those of other programs on the machine."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastrec.platform.clusters.local.agent.volumes import volumes_of
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


@pytest.mark.services
def test_a_port_counts_where_a_pod_of_the_home_listens(tmp_path: Path) -> None:
    with listener(tmp_path / "one") as port:
        assert _answers(port, tmp_path / "one")
        assert not _answers(port, tmp_path / "another")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert not _answers(unused.getsockname()[1], tmp_path / "one")


def test_volumes_count_where_the_agent_of_the_home_made_them(tmp_path: Path) -> None:
    one = volumes_of(tmp_path / "one" / "agent").name
    assert not _is_of_others(one, tmp_path / "one")
    assert _is_of_others(one, tmp_path / "another")
    assert not _is_of_others("elastrec-frames", tmp_path / "another")
