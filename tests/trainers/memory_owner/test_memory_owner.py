"""The process that owns a pod's memory: memory, restarts, signals, exit codes, and cleanup."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from elastrec.platform.clusters.owned_memory import OWNER_BYTES
from elastrec.platform.specs import environment
from elastrec.trainers.memory_owner import __main__ as owner_main
from elastrec.trainers.memory_owner.restarting import RESTARTS
from tests.processes import wait_for

pytestmark = pytest.mark.services

MIB = 2**20
# Says what it finds in the memory, writes its own number there, and waits.
CHILD = """
import os, signal, sys, time
path = os.environ["ELASTREC_MEMORY"]
status = os.stat(path)
with open(path, "r+b", buffering=0) as memory:
    before = int.from_bytes(memory.read(8), "little")
    memory.seek(0)
    memory.write(os.getpid().to_bytes(8, "little"))
if "ignores" in sys.argv:
    signal.signal(signal.SIGTERM, lambda *_: print("terminated", flush=True))
print(os.getpid(), before, status.st_size, status.st_blocks * 512, os.environ.get("ELASTREC_READY"), path, flush=True)
time.sleep(600)
"""
FIELDS = ("pid", "before", "size", "made", "ready", "path")

Start = Callable[..., "Owner"]


class Owner:
    """A pod's first process, whose children say what they find."""

    def __init__(self, memory_bytes: int, *arguments: str, **variables: str) -> None:
        command = [sys.executable, "-m", "elastrec.trainers.memory_owner", str(memory_bytes), *arguments]
        self.process = subprocess.Popen(
            command, env={**os.environ, **variables}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def child(self) -> dict[str, str]:
        return dict(zip(FIELDS, self.line().split(), strict=True))

    def kill_child(self, number: int = signal.SIGKILL) -> dict[str, str]:
        """The next one's words, after the one that runs was killed."""
        os.kill(psutil.Process(self.process.pid).children()[0].pid, number)
        return self.child()

    def ended(self) -> tuple[int, str]:
        """The exit code and the log."""
        _, log = self.process.communicate(timeout=60)
        return self.process.returncode, log


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[Owner] = []

    def begin(*arguments: str, memory_bytes: int = MIB, **variables: str) -> Owner:
        started.append(Owner(memory_bytes, *(arguments or ("-c", CHILD)), **variables))
        return started[-1]

    yield begin
    for owner in started:
        owner.process.kill()
        owner.process.communicate()


def test_it_reads_the_variables_that_pods_know() -> None:
    assert (owner_main.MEMORY, owner_main.READY) == (environment.MEMORY, environment.READY)


def test_a_server_finds_all_pages_of_its_memory(start: Start) -> None:
    child = start(memory_bytes=64 * MIB).child()
    assert int(child["size"]) == int(child["made"]) == 64 * MIB and child["before"] == "0"


def test_a_crashed_server_is_restarted_and_finds_its_memory(start: Start) -> None:
    owner = start(ELASTREC_READY="/the/file")
    first = owner.child()
    second = owner.kill_child(signal.SIGKILL)
    third = owner.kill_child(signal.SIGSEGV)
    assert (second["before"], third["before"]) == (first["pid"], second["pid"])
    assert first["path"] == third["path"]
    # The pod has said once that it has started, and nobody hears it again.
    assert (first["ready"], second["ready"]) == ("/the/file", "None")


def test_a_server_that_crashes_repeatedly_ends_its_pod_with_its_exit_code(start: Start) -> None:
    owner = start()
    owner.child()
    for _ in range(RESTARTS):
        owner.kill_child()
    psutil.Process(owner.process.pid).children()[0].kill()
    code, log = owner.ended()
    assert code == 128 + signal.SIGKILL
    assert len(re.findall("event=server_started_again killed_by=SIGKILL", log)) == RESTARTS
    assert f'reason="it crashed {RESTARTS + 1} times in a row"' in log


@pytest.mark.parametrize("code", [0, 1, 2, 7])
def test_the_exit_code_of_an_ended_server_becomes_that_of_its_pod(start: Start, code: int) -> None:
    assert start("-c", f"import sys; sys.exit({code})").ended() == (code, "")


def test_sigterm_is_forwarded_and_the_server_chooses_its_end(start: Start) -> None:
    owner = start("-c", CHILD, "ignores")
    child = owner.child()
    owner.process.terminate()
    assert owner.line() == "terminated"
    owner.process.terminate()
    assert owner.line() == "terminated" and psutil.pid_exists(int(child["pid"]))
    # What is about to end is not started again.
    os.kill(int(child["pid"]), signal.SIGKILL)
    code, log = owner.ended()
    assert code == 128 + signal.SIGKILL and 'reason="the pod is about to end"' in log


def test_a_server_gets_sigterm_once_where_the_cluster_signals_the_whole_process_group() -> None:
    owner = subprocess.Popen(
        [sys.executable, "-m", "elastrec.trainers.memory_owner", str(MIB), "-c", CHILD, "ignores"],
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    assert owner.stdout is not None
    child = int(owner.stdout.readline().split()[0])
    # Two signals that arrive at about the same time may be handled as one.
    assert os.getpgid(child) not in (owner.pid, os.getpgid(0))
    os.killpg(owner.pid, signal.SIGTERM)
    assert owner.stdout.readline() == "terminated\n"
    os.kill(child, signal.SIGKILL)
    said, _ = owner.communicate(timeout=60)
    assert said == ""


def test_the_end_of_a_killed_owner_ends_its_server_and_frees_the_memory(start: Start) -> None:
    in_files = set(Path("/dev/shm").iterdir())
    owner = start(memory_bytes=8 * MIB)
    child = owner.child()
    assert set(Path("/dev/shm").iterdir()) == in_files and Path(child["path"]).exists()
    owner.process.kill()
    wait_for(lambda: not psutil.pid_exists(int(child["pid"])), 60, "the server's end")
    owner.process.wait()
    assert not Path(child["path"]).exists() and set(Path("/dev/shm").iterdir()) == in_files


def test_as_the_first_process_of_a_container_it_restarts_the_server_and_reaps_orphans() -> None:
    # One more process, which outlives the server that it belongs to, and then ends.
    orphan = "if os.fork() == 0:\n    time.sleep(1)\n    os._exit(0)\n"
    child = CHILD.replace("time.sleep(600)", f"{orphan}time.sleep(600)")
    container = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    command = [sys.executable, "-m", "elastrec.trainers.memory_owner", str(MIB), "-c", child]
    outer = subprocess.Popen([*container, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert outer.stdout is not None
    first = dict(zip(FIELDS, outer.stdout.readline().split(), strict=True))
    assert first["path"].startswith("/proc/1/fd/")
    (owner,) = psutil.Process(outer.pid).children()
    owner.children()[0].kill()
    second = dict(zip(FIELDS, outer.stdout.readline().split(), strict=True))
    assert second["before"] == first["pid"]
    wait_for(lambda: len(owner.children()) == 1, 60, "no process but the server")
    owner.terminate()
    assert outer.wait(60) == 128 + signal.SIGTERM
    outer.communicate()


def test_as_the_first_process_of_a_container_it_ends_if_terminated_while_it_makes_the_memory() -> None:
    code = (
        "import os, runpy, signal, sys; make = os.posix_fallocate\n"
        "os.posix_fallocate = lambda *memory: (make(*memory), os.kill(1, signal.SIGTERM))\n"
        f"sys.argv[1:] = ['{MIB}', '-c', 'print(\"started\")']\n"
        "runpy.run_module('elastrec.trainers.memory_owner', run_name='__main__')"
    )
    container = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    command = [*container, sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGTERM, "", "")


def test_it_takes_no_more_memory_than_its_pod_has_for_it(start: Start) -> None:
    owner = start(memory_bytes=64 * MIB)
    owner.child()
    assert psutil.Process(owner.process.pid).memory_full_info().uss < OWNER_BYTES


def test_it_loads_no_library() -> None:
    code = (
        "import sys; before = set(sys.modules); import elastrec.trainers.memory_owner.__main__\n"
        "own = ('elastrec.trainers.memory_owner', 'elastrec.platform.memory')\n"
        "parents = {'elastrec', 'elastrec.trainers', 'elastrec.platform'}\n"
        "print([name for name in set(sys.modules) - before if name.partition('.')[0] not in sys.stdlib_module_names "
        "and name not in parents and not name.startswith(own)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("arguments", [("many", "-c", "pass"), ("-1", "-c", "pass"), ("1048576",)])
def test_wrong_arguments_are_refused(arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "elastrec.trainers.memory_owner", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "is not allowed; allowed: the memory in bytes, then arguments" in done.stderr
