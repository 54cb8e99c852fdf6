"""Commands end when nobody reads their output any more, also while they wait for something to write."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from elastrec.platform.cli.reader import ReaderGone, interrupted_without_reader
from elastrec.platform.clusters.local import start_agent, stop_agent
from elastrec.platform.clusters.pods import PodSize, PodSpec
from elastrec.platform.specs.metrics import Role

POD = "quiet-worker-0"


@contextmanager
def piped(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Standard output is a pipe; the descriptor of its reader."""
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        yield reader


def test_a_wait_ends_with_the_reader_of_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGPIPE)
    with piped(monkeypatch) as reader, pytest.raises(ReaderGone), interrupted_without_reader():
        threading.Timer(0.1, os.close, [reader]).start()
        time.sleep(30)
    assert signal.getsignal(signal.SIGPIPE) is before


def watching() -> list[threading.Thread]:
    """The threads that watch the output; others of this process may end at any time."""
    return [thread for thread in threading.enumerate() if thread.name == "reader"]


def test_a_command_that_ends_before_its_reader_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGPIPE)
    with piped(monkeypatch) as reader:
        with interrupted_without_reader():
            assert len(watching()) == 1
        assert watching() == []
        assert signal.getsignal(signal.SIGPIPE) is before
        os.close(reader)


@pytest.mark.services
def test_following_a_quiet_log_ends_with_the_reader(tmp_path: Path) -> None:
    cluster = start_agent(tmp_path / "agent", cores=1.0, memory_bytes=2**30, limits="threads")
    program = "import signal; print('one', flush=True); signal.pause()"
    try:
        cluster.create(
            PodSpec(
                name=POD, job="quiet", role=Role.WORKER, command=("python", "-c", program), size=PodSize(0.5, 2**27)
            )
        )
        command = [sys.executable, "-m", "elastrec.platform.cli", "logs", "--follow", POD]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "ELASTREC_HOME": str(tmp_path)}
        ) as process:
            assert process.stdout is not None and process.stderr is not None
            try:
                assert process.stdout.readline() == b"one\n"
                process.stdout.close()
                assert process.wait(60) == 141
                assert process.stderr.read() == b""
            finally:
                process.kill()
    finally:
        stop_agent(tmp_path / "agent")
