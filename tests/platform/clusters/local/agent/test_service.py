"""The agent may be killed at any time without an effect on its pods."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from elastrec.platform.clusters import connect_launcher, encode_config
from elastrec.platform.clusters.local import LocalCluster, find_agent, messages, start_agent, stop_agent
from elastrec.platform.clusters.local.state_folder import StateFolder
from elastrec.platform.clusters.pods import PodPhase, PodStatus, RestartPolicy
from elastrec.platform.specs.errors import ClusterError
from tests.certificates import certify

pytestmark = pytest.mark.services

MIB = 1 << 20
_SIZE = {"cores": 2.0, "memory_bytes": 512 * MIB}
_TICK = "import time, os\nprint(os.getpid())\nwhile True: print('tick'); time.sleep(0.05)"


def _kill_agent(cluster, until_true, is_alive):
    pid = cluster.agent().pid
    os.kill(pid, signal.SIGKILL)
    until_true(lambda: not is_alive(pid))
    return pid


def test_a_killed_agent_finds_its_pods_running_and_supervises_them_again(
    state, make_pod, first_line, until, until_true, is_alive
):
    cluster = start_agent(state, **_SIZE)
    pods = [make_pod(_TICK), make_pod(_TICK, restart_policy=RestartPolicy.ON_FAILURE), make_pod(_TICK)]
    before = [cluster.create(pod) for pod in pods]
    pids = [int(first_line(cluster, pod.name)) for pod in pods]
    (*_, synced) = cluster.fleet("job").watch("", 0.0)
    dead = _kill_agent(cluster, until_true, is_alive)
    assert all(is_alive(pid) for pid in pids)
    os.kill(pids[2], signal.SIGTERM)  # ends while nobody looks
    again = start_agent(state, **_SIZE)
    assert again.address == cluster.address  # masters know it
    assert again.agent().pid != dead
    assert [pod.uid for pod in again.list()] == [pod.uid for pod in before]
    assert all(is_alive(pid) for pid in pids[:2])
    ended = until(again, pods[2].name)
    assert (ended.phase, ended.exit_code) == (PodPhase.FAILED, 143)
    later = list(cluster.fleet("job").watch(synced.resume, 0.0))
    assert later and {event.kind for event in later} == {"MODIFIED"}, "no event is missing, and none is reported twice"
    length = sum(1 for _ in again.logs(pods[0].name))
    lines = again.logs(pods[0].name, follow=True)
    assert sum(1 for _, _ in zip(range(length + 5), lines, strict=False)) == length + 5
    os.kill(pids[1], signal.SIGKILL)
    until(again, pods[1].name, lambda status: status.restarts == 1 and not status.reason)
    again.delete(pods[0].name, grace_seconds=1.0)
    assert not is_alive(pids[0])


def test_a_pod_whose_folder_is_gone_counts_as_lost_and_does_not_keep_the_next_agent_from_starting(
    state, make_pod, first_line, until, until_true, is_alive
):
    cluster = start_agent(state, **_SIZE)
    pod = make_pod(_TICK)
    folder = state / "pods" / cluster.create(pod).uid
    pid = int(first_line(cluster, pod.name))
    _kill_agent(cluster, until_true, is_alive)
    folder.rename(state.parent / "gone")
    ended = until(start_agent(state, **_SIZE), pod.name)
    assert (ended.phase, ended.message) == (PodPhase.FAILED, "the pod's supervisor died: its folder is gone")
    assert not is_alive(pid)


def test_a_deletion_that_was_interrupted_is_finished_by_the_next_agent(
    state, make_pod, first_line, until, until_true, is_alive
):
    cluster = start_agent(state, **_SIZE)
    pod = make_pod(
        "import os, signal; signal.signal(signal.SIGTERM, lambda *_: print('asked')); print(os.getpid())\n"
        "while True: signal.pause()",
        grace_seconds=60.0,
    )
    cluster.create(pod)
    pid = int(first_line(cluster, pod.name))
    asker = f"""
from elastrec.platform.clusters.local import find_agent
find_agent({str(state)!r}).delete({pod.name!r}, grace_seconds=2.0)
"""
    process = subprocess.Popen([sys.executable, "-c", asker], cwd=state)
    lines = cluster.logs(pod.name, follow=True)
    assert "asked" in lines
    _kill_agent(cluster, until_true, is_alive)
    process.kill()
    process.wait()
    assert is_alive(pid)
    again = start_agent(state, **_SIZE)
    until_true(lambda: again.list() == [])
    assert not is_alive(pid)


def test_a_start_that_was_only_written_down_is_done_by_the_next_agent(state, make_pod, until, until_true, is_alive):
    cluster = start_agent(state, **_SIZE)
    pod = make_pod("print('ran')")
    supervisor = cluster.agent().pid
    cluster.create(make_pod(cores=2.0, name="first"))
    cluster.create(pod)
    os.kill(supervisor, signal.SIGKILL)
    until_true(lambda: not is_alive(supervisor))
    # As if it had died between the journal's line and the process.
    program = f"""
import msgspec
from pathlib import Path
from elastrec.platform.clusters.local.agent import journal
from elastrec.platform.clusters.local.agent import pod_life
from elastrec.platform.clusters.pods import PodEventKind
kept = journal.Journal(Path({str(state / "journal.sqlite")!r}))
record = pod_life.starting(kept.records()[1])
kept.write(record, journal.KeptEvent(PodEventKind.MODIFIED, pod_life.status_of(record), kept.version + 1))
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=state)
    again = start_agent(state, **_SIZE)
    assert until(again, pod.name).reason == "Completed"
    assert list(again.logs(pod.name)) == ["ran"]


def test_a_pod_whose_supervisor_is_killed_is_seen_as_failed_and_leaves_no_process(
    state, make_pod, first_line, until, is_alive
):
    for limits in ("auto", "threads"):
        folder = state if limits == "auto" else state / "threads"
        cluster = start_agent(folder, **_SIZE, limits=limits)
        try:
            pod = make_pod("import os, signal; print(os.getpid()); signal.pause()")
            cluster.create(pod)
            pid = int(first_line(cluster, pod.name))
            os.kill(psutil.Process(pid).ppid(), signal.SIGKILL)
            status = until(cluster, pod.name)
            assert (status.phase, status.reason, status.exit_code) == (PodPhase.FAILED, "Error", 137)
            assert "supervisor died" in status.message
            assert not is_alive(pid)
        finally:
            stop_agent(folder)


def test_a_watch_and_a_reader_of_logs_outlive_the_agent(state, make_pod, first_line, until_true, is_alive):
    cluster = start_agent(state, **_SIZE)
    pod = make_pod(
        "import os, pathlib, time\nprint(os.getcwd())\n"
        "while not pathlib.Path('go').exists(): time.sleep(0.01)\nprint('end')"
    )
    cluster.create(pod)
    lines = cluster.logs(pod.name, follow=True)
    folder = next(lines)
    (*_, synced) = cluster.fleet("job").watch("", 0.0)
    events = cluster.fleet("job").watch(synced.resume, 30.0)
    _kill_agent(cluster, until_true, is_alive)
    start_agent(state, **_SIZE)
    Path(folder, "go").touch()
    assert next(event.pod.reason for event in events if event.pod.phase.is_final) == "Completed"
    assert list(lines) == ["end"]


def test_pods_keep_running_when_the_agent_is_ended(state, make_pod, first_line, until_true, is_alive):
    cluster = start_agent(state, **_SIZE)
    pod = make_pod("import os, signal; print(os.getpid()); signal.pause()")
    cluster.create(pod)
    pid, agent = int(first_line(cluster, pod.name)), cluster.agent().pid
    os.kill(agent, signal.SIGTERM)
    until_true(lambda: not is_alive(agent))
    assert is_alive(pid)
    assert find_agent(state) is None
    assert start_agent(state).get(pod.name).phase is PodPhase.RUNNING


@pytest.mark.parametrize(("seed", "limits"), [(1, "auto"), (2, "threads")])
def test_every_request_is_fulfilled_and_no_process_left_whenever_the_agent_dies(
    state, make_pod, until_true, is_alive, seed, limits
):
    dice = random.Random(seed)
    cluster = start_agent(state, cores=8.0, memory_bytes=2048 * MIB, limits=limits)
    wanted: dict[str, object] = {}
    for _ in range(3):
        pid = cluster.agent().pid
        killer = threading.Timer(dice.uniform(0.0, 0.3), os.kill, (pid, signal.SIGKILL))
        restarter = threading.Thread(
            target=lambda killer=killer, pid=pid: (
                killer.join(),
                until_true(lambda: not is_alive(pid)),
                start_agent(state, limits=limits).close(),
            )
        )
        killer.start()
        restarter.start()
        while restarter.is_alive():
            if wanted and dice.random() < 0.4:
                name = dice.choice(list(wanted))
                cluster.delete(name, grace_seconds=dice.choice([0.0, 0.1, 5.0]))
                del wanted[name]
            elif len(wanted) < 10:
                pod = make_pod(command=("sleep", "1000"), cores=0.1, memory=32 * MIB, secrets={"token": "x"})
                wanted[pod.name] = cluster.create(pod).uid
        restarter.join()
        assert {pod.name: pod.uid for pod in cluster.list()} == wanted, f"seed {seed}"

    def alive() -> set[str]:
        found: set[str] = set()
        for process in psutil.process_iter(["cmdline"]):
            if process.info["cmdline"] == ["sleep", "1000"]:
                with contextlib.suppress(OSError):
                    text = Path(f"/proc/{process.pid}/environ").read_bytes()
                    variables = dict(pair.partition(b"=")[::2] for pair in text.split(b"\0"))
                    if variables.get(b"ELASTREC_WORK", b"").startswith(bytes(state)):
                        found.add(variables[b"ELASTREC_POD_UID"].decode())
        return found

    # The pods of the last wishes may stand between their fork and the execution of their command.
    until_true(lambda: alive() >= set(wanted.values()))
    assert alive() == set(wanted.values())
    known = {path.name for path in (state / "pods").iterdir()}
    assert known - {"trash"} == set(wanted.values())


def test_an_agent_whose_folder_is_deleted_kills_its_pods_and_ends(state, make_pod, first_line, until_true, is_alive):
    cluster = start_agent(state, **_SIZE)
    agent = cluster.agent()
    pod = make_pod(_TICK, restart_policy=RestartPolicy.ON_FAILURE)
    cluster.create(pod)
    pid = int(first_line(cluster, pod.name))
    shutil.rmtree(state)
    until_true(lambda: not is_alive(agent.pid) and not is_alive(pid))
    assert list(Path("/sys/fs/cgroup").glob(f"**/elastrec-{agent.agent_id}")) == []


def test_an_agent_that_was_stopped_for_seconds_continues(state, is_alive):
    cluster = start_agent(state, **_SIZE)
    pid = cluster.agent().pid
    os.kill(pid, signal.SIGSTOP)
    time.sleep(3.0)  # longer than it waits between two looks at its folder
    os.kill(pid, signal.SIGCONT)
    time.sleep(1.0)
    assert is_alive(pid) and cluster.agent().pid == pid


def test_an_agent_that_is_stopped_is_named_with_the_remedy_in_a_few_seconds(state):
    cluster = start_agent(state, **_SIZE)
    pid = cluster.agent().pid
    os.kill(pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        with pytest.raises(ClusterError, match=rf"its process {pid} is stopped.* Continue it with `kill -CONT {pid}`"):
            find_agent(state)
        assert time.monotonic() - began < 6.0
    finally:
        os.kill(pid, signal.SIGCONT)
    found = find_agent(state)
    assert found is not None and found.agent().pid == pid


def test_an_agent_that_hangs_is_waited_for_no_longer_than_the_caller_waits(state):
    start_agent(state, **_SIZE).close()
    info = StateFolder(state).info
    described = info.read_text()
    with contextlib.ExitStack() as stack:
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        stack.callback(info.write_text, described)
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        info.write_text(json.dumps({**json.loads(described), "address": address}))
        began = time.monotonic()
        with pytest.raises(ClusterError, match=r"does not answer; see .*agent\.log"):
            find_agent(state, patience_seconds=0.5)
        assert 0.4 < time.monotonic() - began < 1.5


def test_an_agent_whose_folder_was_replaced_ends_without_changing_the_new_one(state, until_true, is_alive):
    old = start_agent(state, **_SIZE).agent()
    shutil.rmtree(state)
    new = start_agent(state, **_SIZE).agent()
    until_true(lambda: not is_alive(old.pid))
    found = find_agent(state)
    assert found is not None and found.agent().pid == new.pid != old.pid


def test_an_agent_with_a_certificate_speaks_tls_only(state, tmp_path):
    (tmp_path / "tls").mkdir()
    folder = certify(tmp_path / "tls")
    cluster = start_agent(state, **_SIZE, tls_folder=folder)
    try:
        assert cluster.nodes()[0].size.cores == 2.0
        assert connect_launcher(cluster.config).pods() == []
        with pytest.raises(ClusterError):
            LocalCluster(cluster.address, cluster.token).agent(timeout_seconds=1.0)
        for look in (find_agent, start_agent, stop_agent):
            with pytest.raises(ClusterError, match="speaks TLS: name the folder"):
                look(state)
    finally:
        stop_agent(state, tls_folder=folder)
    start_agent(state, **_SIZE)
    try:
        with pytest.raises(ClusterError, match="speaks no TLS: leave the TLS folder out"):
            find_agent(state, folder)
    finally:
        stop_agent(state)


def test_a_second_agent_for_the_same_folder_refuses_to_start(state):
    start_agent(state, **_SIZE)
    command = [sys.executable, "-m", "elastrec.platform.clusters.local", "--state", str(state)]
    result = subprocess.run(
        [*command, "--cores", "1", "--memory", "1Gi"], capture_output=True, text=True, timeout=60, cwd=state
    )
    assert result.returncode == 1
    assert "is in use by another node agent" in result.stderr


def test_concurrent_starts_of_an_agent_are_idempotent(state):
    program = f"""
from elastrec.platform.clusters.local import start_agent
print(start_agent({str(state)!r}, cores=2.0, memory_bytes={512 * MIB}).agent().pid)
"""
    processes = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=state.parent)
        for _ in range(3)
    ]
    pids = {process.communicate(timeout=60)[0] for process in processes}
    assert len(pids) == 1
    assert start_agent(state).agent().pid == int(pids.pop())


def test_a_running_cluster_of_another_size_is_refused(state):
    start_agent(state, **_SIZE)
    with pytest.raises(ClusterError, match=r"cores: 8.0 is not what the running cluster .* has \(2.0\)"):
        start_agent(state, cores=8.0)


def test_an_agent_that_cannot_start_gives_the_reason(state):
    with pytest.raises(ClusterError, match=r"did not start: .*tls: .* must hold ca.pem"):
        start_agent(state, **_SIZE, tls_folder=state.parent)


def test_a_wrong_token_is_refused(state):
    cluster = start_agent(state, **_SIZE)
    with pytest.raises(ClusterError, match="refused the token"):
        LocalCluster(cluster.address, "wrong").list()


def test_only_the_owner_can_read_the_agents_folder(state):
    start_agent(state, **_SIZE)
    assert state.stat().st_mode & 0o777 == 0o700
    for name in ("token", "agent.json", "journal.sqlite", "agent.log"):
        assert (state / name).stat().st_mode & 0o777 == 0o600, name


def test_stopping_deletes_the_pods_ends_the_agent_and_leaves_no_group(state, make_pod, first_line, is_alive):
    cluster = start_agent(state, **_SIZE)
    info = cluster.agent()
    pods = [make_pod("import os, signal; print(os.getpid()); signal.pause()") for _ in range(2)]
    for pod in pods:
        cluster.create(pod)
    pids = [int(first_line(cluster, pod.name)) for pod in pods]
    stop_agent(state)
    assert find_agent(state) is None
    assert not any(is_alive(pid) for pid in [*pids, info.pid])
    assert list(Path("/sys/fs/cgroup").glob(f"**/elastrec-{info.agent_id}")) == []
    stop_agent(state)  # nothing left to do


def test_stopping_ends_the_pods_of_a_killed_agent_too(state, make_pod, first_line, until_true, is_alive):
    cluster = start_agent(state, **_SIZE)
    pod = make_pod("import os, signal; print(os.getpid()); signal.pause()")
    cluster.create(pod)
    pid = int(first_line(cluster, pod.name))
    _kill_agent(cluster, until_true, is_alive)
    stop_agent(state)
    assert not is_alive(pid)


def test_an_idle_agent_costs_less_than_a_hundredth_of_a_core(state, make_pod, first_line):
    cluster = start_agent(state, **_SIZE)
    pod = make_pod("print('up')\nimport signal; signal.pause()")
    cluster.create(pod)
    first_line(cluster, pod.name)
    process = psutil.Process(cluster.agent().pid)
    before, start = sum(process.cpu_times()[:2]), time.monotonic()
    # The measurement itself needs time to pass; a watch without events passes it.
    (synced,) = cluster.fleet("nobody").watch("", 0.0)
    list(cluster.fleet("nobody").watch(synced.resume, 3.0))
    used, passed = sum(process.cpu_times()[:2]) - before, time.monotonic() - start
    assert used / passed < 0.01 + 0.01 / passed  # the clock ticks in hundredths


def test_neither_torch_nor_airflow_is_imported_by_the_agent():
    program = (
        "import sys, elastrec.platform.clusters.local.__main__, elastrec.platform.clusters\n"
        "print([name for name in ('torch', 'torchrec', 'airflow', 'mlflow', 'numba') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd="/")
    assert result.stdout.strip() == "[]"


def test_a_pod_reaches_its_cluster_by_the_config_in_its_files(state, make_pod, until):
    cluster = start_agent(state, **_SIZE)
    text = encode_config(cluster.config)
    program = """
import os, pathlib
from elastrec.platform.clusters import connect_launcher, decode_config
text = pathlib.Path(os.environ["ELASTREC_FILES"], "cluster.json").read_text()
print([pod.name for pod in connect_launcher(decode_config(text, "cluster.json")).pods()])
"""
    pod = make_pod(program, name="curious", files={"cluster.json": text}, cores=1.0, memory=256 * MIB)
    cluster.create(pod)
    assert until(cluster, "curious").reason == "Completed", list(cluster.logs("curious"))
    assert json.loads(next(cluster.logs("curious")).replace("'", '"')) == ["curious"]


def test_no_pod_is_taken_while_the_agent_is_being_stopped(state, make_pod, first_line, until_true):
    program = (
        "import signal, time\nsignal.signal(signal.SIGTERM, lambda *_: None)\nprint('up')\nwhile True: time.sleep(1)"
    )
    with contextlib.closing(start_agent(state, **_SIZE)) as cluster:
        pod = cluster.create(make_pod(program, grace_seconds=3.0))
        first_line(cluster, pod.name)
        stopping = threading.Thread(target=stop_agent, args=(state,))
        stopping.start()
        until_true(lambda: (found := cluster.get(pod.name)) is not None and found.is_ending)
        # As a master that has not ended yet replaces a pod that has.
        with pytest.raises(ClusterError, match="is being stopped") as refusal:
            cluster.call(messages.CreatePod(pod=make_pod()), PodStatus, 0.5)
        assert refusal.value.retryable
        stopping.join(60)
    assert find_agent(state) is None
