"""After an agent has died with a damaged or missing journal, its pods end and leave nothing behind."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil
import pytest
from click.testing import CliRunner

from elastrec.platform.cli.app import root
from elastrec.platform.clusters.local import find_agent, start_agent, stop_agent
from elastrec.platform.jobs import Platform
from elastrec.platform.specs.errors import ClusterError
from tests.processes import wait_for

pytestmark = pytest.mark.services

_SIZE = {"cores": 2.0, "memory_bytes": 512 * (1 << 20)}
_TWO_PROCESSES = (
    "import os, signal, subprocess, sys\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
    "print(os.getpid(), child.pid)\nsignal.pause()"
)


@pytest.fixture
def orphans(state, make_pod, first_line, until_true, is_alive) -> list[int]:
    """The processes of a pod, its supervisor first, whose agent was killed; all are ended after the test."""
    cluster = start_agent(state, **_SIZE)
    pod = make_pod(_TWO_PROCESSES)
    cluster.create(pod)
    main, child = (int(pid) for pid in first_line(cluster, pod.name).split())
    supervisor = psutil.Process(main).ppid()
    agent = cluster.agent().pid
    os.kill(agent, signal.SIGKILL)
    until_true(lambda: not is_alive(agent))
    yield [supervisor, main, child]
    for pid in (supervisor, main, child):
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def as_another_user():
    """Calls a function in a process of another user; returns the error with which it ended."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")

    def call(function: Callable[[], object]) -> str:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            said = "no error"
            try:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
                function()
            except BaseException as error:
                said = f"{type(error).__name__}: {error}"
            os.write(writing, said.encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as output:
            said = output.read()
        os.waitpid(child, 0)
        return said

    return call


def _damage(state: Path) -> None:
    with (state / "journal.sqlite").open("r+b") as file:
        file.write(bytes(4096))
    (state / "journal.sqlite-wal").unlink()


def _damage_a_record(state: Path) -> None:
    with contextlib.closing(sqlite3.connect(state / "journal.sqlite", isolation_level=None)) as journal:
        journal.execute("UPDATE pods SET record = '{}'")


def _lose(state: Path) -> None:
    for file in state.glob("journal.sqlite*"):
        file.unlink()


def _groups(state: Path) -> list[Path]:
    """The control groups of all agents that had pods here, theirs included."""
    files = {
        file
        for plan in state.glob("pods/*/plan.*.json")
        for file in msgspec.json.decode(plan.read_bytes())["join_files"]
    }
    return [folder for file in files for folder in (Path(file).parent, Path(file).parent.parent)]


@pytest.mark.parametrize(
    ("damage", "said"),
    [(_damage, "file is not a database"), (_damage_a_record, "Object missing required field `spec`")],
)
def test_a_damaged_journal_is_one_line_and_stopping_the_agent_ends_its_pods(state, orphans, is_alive, damage, said):
    damage(state)
    groups = _groups(state)
    with pytest.raises(ClusterError, match=rf"journal is damaged \({said}\); `elastrec agent stop`"):
        start_agent(state)
    assert find_agent(state) is None and all(map(is_alive, orphans))
    stop_agent(state)
    wait_for(lambda: not any(map(is_alive, orphans)), 20, "the end of the pod's processes")
    assert not any(group.exists() for group in groups)
    assert (state / "journal.sqlite.damaged").exists()
    assert start_agent(state, **_SIZE).list() == []


def test_the_pods_of_a_lost_journal_end_when_an_agent_starts(state, orphans, is_alive):
    _lose(state)
    groups = _groups(state)
    cluster = start_agent(state, **_SIZE)
    assert cluster.list() == []
    wait_for(lambda: not any(map(is_alive, orphans)), 20, "the end of the pod's processes")
    assert not any(group.exists() for group in groups)
    assert [entry.name for entry in (state / "pods").iterdir()] == ["trash"]


def test_the_pods_of_a_lost_journal_end_when_their_agent_is_stopped(state, orphans, is_alive):
    _lose(state)
    groups = _groups(state)
    stop_agent(state)
    wait_for(lambda: not any(map(is_alive, orphans)), 20, "the end of the pod's processes")
    assert not any(group.exists() for group in groups) and find_agent(state) is None


def test_a_job_that_a_dead_agent_left_is_stopped_from_the_command_line(state, orphans, is_alive, monkeypatch):
    monkeypatch.setenv("ELASTREC_HOME", str(state.parent))
    monkeypatch.delenv("ELASTREC_CLUSTER", raising=False)
    refused = CliRunner().invoke(root, ["status", "job"])
    assert "no node agent runs" in str(refused.exception) and all(map(is_alive, orphans))
    done = CliRunner().invoke(root, ["stop", "job"])
    assert done.exit_code == 0, done.exception
    wait_for(lambda: not any(map(is_alive, orphans)), 20, "the end of the pod's processes")
    stop_agent(state)
    refused = CliRunner().invoke(root, ["stop", "job"])
    assert "no node agent runs" in str(refused.exception) and find_agent(state) is None


def test_a_damaged_journal_without_pods_is_put_aside(state):
    start_agent(state, **_SIZE)
    stop_agent(state)
    (state / "journal.sqlite").write_bytes(bytes(8192))
    (state / "journal.sqlite").write_text("no journal" * 1000)
    stop_agent(state)
    assert not (state / "journal.sqlite").exists()
    assert start_agent(state, **_SIZE).list() == []


def test_an_agent_starts_with_the_size_that_was_last_requested(state, until_true, is_alive):
    agent = start_agent(state, cores=7.0, memory_bytes=3 << 30).agent()
    os.kill(agent.pid, signal.SIGKILL)
    until_true(lambda: not is_alive(agent.pid))
    assert start_agent(state).agent().total == agent.total
    stop_agent(state)
    again = start_agent(state, cores=5.0).agent().total
    assert (again.cores, again.memory_bytes) == (5.0, 3 << 30)
    with pytest.raises(ClusterError, match=r"cores: 8.0 is not what .* has \(5.0\); .*elastrec agent stop"):
        start_agent(state, cores=8.0)


def test_a_running_agent_without_its_token_file_is_reported_in_one_line(state):
    agent = start_agent(state, **_SIZE).agent()
    (state / "token").rename(state / "kept")
    try:
        with pytest.raises(ClusterError, match=rf"token cannot be read .* `kill {agent.pid}`"):
            find_agent(state)
    finally:
        (state / "kept").rename(state / "token")


def test_a_file_in_the_folders_place_is_one_line(tmp_path):
    (tmp_path / "agent").touch()
    with pytest.raises(ClusterError, match=r"agent: File exists; .*ELASTREC_HOME"):
        start_agent(tmp_path / "agent")


def test_anothers_folder_is_one_line(as_another_user):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        state = Path(folder) / "agent"
        state.mkdir(mode=0o700)
        said = as_another_user(lambda: start_agent(state))
    assert said.startswith(f"ClusterError: {state}: Operation not permitted; the folder of a node agent has to belong")


def test_anothers_home_is_one_line(as_another_user, monkeypatch):
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("ELASTREC_HOME", folder)
        said = as_another_user(Platform.from_environment)
    assert said.startswith("SpecError: ") and f"ELASTREC_HOME: '{folder}' (" in said
    assert "is not allowed; allowed: a folder that can be made and written" in said
