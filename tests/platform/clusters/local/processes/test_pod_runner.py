"""The runner without an agent: another runner finds the processes that it started."""

from __future__ import annotations

import errno
import os
import select
import signal
import threading
import time
from pathlib import Path

import pytest

from elastrec.platform.clusters.local.processes.limits import ThreadLimits
from elastrec.platform.clusters.local.processes.pod_runner import PodRunner, ProcessExit, RunningPod
from elastrec.platform.clusters.local.processes.proc import environment_of, marked
from elastrec.platform.clusters.pods import PodSize

pytestmark = pytest.mark.services

_SIZE = PodSize(1.0, 1 << 26)
_ENVIRONMENT = {"PATH": os.environ["PATH"]}


@pytest.fixture
def runner(tmp_path):
    return PodRunner(tmp_path / "pods", ThreadLimits())


def _ended(running: RunningPod) -> None:
    assert select.select([running], [], [], 20.0)[0], "the pod did not end"
    running.release()


def _start(runner, *command, uid="pod", attempt=1):
    if attempt == 1:
        runner.prepare(uid, {})
    return runner.start(uid, attempt, command, _ENVIRONMENT, _SIZE)


def test_an_attempt_is_collected_with_its_exit_code(runner):
    _ended(_start(runner, "sh", "-c", "exit 7"))
    end = runner.collect("pod", 1)
    assert (end.exit_code, end.oom_killed, end.lost) == (7, False, False)


def test_another_runner_adopts_a_running_pod_and_can_end_it(runner, tmp_path):
    first = _start(runner, "sleep", "1000")
    while not (tmp_path / "pods/pod/claim.1.json").exists():
        os.sched_yield()
    adopted = PodRunner(tmp_path / "pods", ThreadLimits()).adopt("pod", 1)
    assert isinstance(adopted, RunningPod)
    assert adopted.pid == first.pid
    runner.terminate(adopted)
    _ended(adopted)
    _ended(first)
    assert runner.collect("pod", 1).exit_code == 128 + signal.SIGTERM


def test_an_attempt_that_never_began_is_void_for_ever(runner, tmp_path):
    runner.prepare("pod", {})
    assert runner.adopt("pod", 1) is None
    # The supervisor that comes late sees that its attempt is void, and runs nothing.
    _ended(runner.start("pod", 1, ("touch", str(tmp_path / "ran")), _ENVIRONMENT, _SIZE))
    assert not (tmp_path / "ran").exists()


def test_an_ended_attempt_is_adopted_as_its_end(runner):
    _ended(_start(runner, "true"))
    end = runner.adopt("pod", 1)
    assert isinstance(end, ProcessExit)
    assert end.exit_code == 0


def test_a_stop_sent_right_after_the_start_is_not_lost(runner):
    for attempt in range(1, 6):
        running = _start(runner, "sleep", "1000", attempt=attempt)
        runner.terminate(running)
        _ended(running)
        assert runner.collect("pod", attempt).exit_code == 128 + signal.SIGTERM


def test_a_frozen_supervisor_is_destroyed_with_its_pod(runner, is_alive):
    running = _start(runner, "sh", "-c", "echo $$; exec sleep 1000")
    log = runner.log_folder("pod")
    while not any(path.stat().st_size for path in log.iterdir()):
        os.sched_yield()
    pid = int(next(log.iterdir()).read_text())
    running.send(signal.SIGSTOP)
    runner.destroy(running)
    _ended(running)
    deadline = time.monotonic() + 20
    while is_alive(pid):  # killed, but the kernel may take its time
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_attempt_that_cannot_be_watched_does_not_run(runner, monkeypatch):
    def refuse(pid):
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    with pytest.raises(OSError, match="too many open files"):
        _start(runner, "sleep", "1000")
    assert marked("pod") == []


def test_forgotten_pods_leave_no_folder(runner, tmp_path):
    _ended(_start(runner, "true"))
    assert runner.unknown(set()) == ["pod"]
    runner.remove("pod")
    runner.empty_trash()
    assert runner.unknown(set()) == []
    assert list((tmp_path / "pods/trash").iterdir()) == []


def test_a_pod_in_the_middle_of_an_execve_is_found(runner, is_alive):
    # It runs one program after the other, so that every look at it may fall into an execve(2).
    endless = 'exec sh -c "$0" "$0"'
    for attempt in range(1, 31):
        running = _start(runner, "sh", "-c", endless, endless, attempt=attempt)
        claim = runner.work_folder("pod").parent / f"claim.{attempt}.json"
        while not claim.exists() or not _children(running.pid):
            os.sched_yield()
        (pid,) = _children(running.pid)
        running.send(signal.SIGSTOP)
        runner.destroy(running)
        _ended(running)
        deadline = time.monotonic() + 20
        while is_alive(pid):
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.mark.parametrize(
    ("code", "start", "end", "found"),
    [
        pytest.param(0, 0, 0, b"A=1\0", id="nothing is set yet"),
        pytest.param(0, 4096, 4096, b"A=1\0", id="where the environment ends is not known yet"),
        pytest.param(8192, 4096, 4100, b"A=1\0", id="the environment was read before the end of execve"),
        pytest.param(8192, 4096, 4096, b"", id="it has no environment"),
    ],
)
def test_an_empty_environment_counts_only_after_execve(tmp_path, code, start, end, found):
    (tmp_path / "environ").touch()
    os.mkfifo(tmp_path / "stat")
    fields = ["0"] * 49
    for index, value in {0: "R", 20: 4096, 23: code, 47: start, 48: end}.items():
        fields[index] = str(value)

    def reach_the_next_step() -> None:
        with (tmp_path / "stat").open("w") as stat:
            (tmp_path / "environ").write_bytes(b"A=1\0")
            stat.write(f"1 (sh) {' '.join(fields)}")

    writer = threading.Thread(target=reach_the_next_step)
    writer.start()
    assert environment_of(tmp_path) == found
    writer.join()


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
