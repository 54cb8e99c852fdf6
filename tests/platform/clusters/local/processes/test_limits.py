"""Limits are enforced if the kernel allows it; otherwise the agent reports that they are not."""

from __future__ import annotations

import errno
import json
import os
import signal
import time
from pathlib import Path

import msgspec
import pytest

from benchmarks.common.groups import limit_cores, pod_groups
from elastrec.platform.clusters.local import start_agent
from elastrec.platform.clusters.local.agent.journal import Journal, KeptEvent
from elastrec.platform.clusters.local.agent.pod_life import status_of
from elastrec.platform.clusters.local.processes.limits import (
    CgroupV1Limits,
    CgroupV2Limits,
    ThreadLimits,
    Usage,
    _mounts,
    probe_limits,
)
from elastrec.platform.clusters.nodes import limits_enforced
from elastrec.platform.clusters.pods import PodEventKind, PodPhase, PodSize, RestartPolicy
from elastrec.platform.specs.errors import ClusterError

pytestmark = pytest.mark.services

MIB = 1 << 20
_BURN = "import time, os\nend = time.time() + {seconds}\nwhile time.time() < end: pass\nprint(time.process_time())"
_EAT = "blocks = []\nwhile True: blocks.append(bytearray(4 << 20))"
_FOREVER = "print('up')\nwhile True: pass"


def resize(cluster, name, size):
    known = cluster.get(name)
    cluster.fleet("job").resize(name, known.uid if known else "none", size)
    return cluster.get(name)


_READY_WHEN_TOLD = """
import os, signal, time
from elastrec.platform.transport.readiness import announce_ready
print(os.environ["ELASTREC_WORK"])
while not os.path.exists("go"):
    time.sleep(0.01)
announce_ready(timeout_seconds=60.0)
print("heard")
signal.pause()
"""


@pytest.mark.usefixtures("has_cgroups")
def test_three_tenths_of_a_core_are_three_tenths(cluster, make_pod, until):
    pod = make_pod(_BURN.format(seconds=1.5), cores=0.3)
    cluster.create(pod)
    status = until(cluster, pod.name)
    used = float(next(cluster.logs(pod.name)))
    assert 0.1 < used < 0.75  # 0.45 granted; one period of slack on either side and a busy machine
    assert status.cpu_seconds == pytest.approx(used, abs=0.3)


def _cores_used(cluster, name, seconds=1.0):
    # Counters are sampled once a second: the rate between two changed samples.
    def sample():
        before = cluster.get(name).cpu_seconds
        while (now := cluster.get(name).cpu_seconds) == before:
            time.sleep(0.005)
        return time.monotonic(), now

    (start, first), end = sample(), sample()
    while end[0] - start < seconds:
        end = sample()
    return (end[1] - first) / (end[0] - start)


def _quota_cores(pod, job="resized"):
    # What a busy machine leaves a process to use says nothing of its limit.
    return limit_cores(pod_groups(job)[pod.name])


@pytest.mark.usefixtures("has_cgroups")
def test_a_resize_changes_the_cores_of_the_running_process(cluster, make_pod, first_line):
    pod = make_pod(_FOREVER, name="resized-pod", cores=0.8)
    uid = cluster.create(pod).uid
    first_line(cluster, pod.name)
    assert _quota_cores(pod) == pytest.approx(0.8)
    resized = resize(cluster, pod.name, PodSize(0.1, 96 * MIB))
    assert (resized.uid, resized.size, resized.restarts) == (uid, PodSize(0.1, 96 * MIB), 0)
    _cores_used(cluster, pod.name, seconds=0.0)  # the sample that spans both sizes
    assert _cores_used(cluster, pod.name) < 0.2
    assert _quota_cores(pod) == pytest.approx(0.1)


def _weight(pod, job):
    group = pod_groups(job)[pod.name]
    name = "cpu.weight" if (group / "cpu.weight").exists() else "cpu.shares"
    return int((group / name).read_text())


@pytest.mark.usefixtures("has_cgroups")
def test_a_pod_has_its_startup_cores_until_it_is_ready(cluster, make_pod, first_line):
    program = "import os\nprint(os.environ['OMP_NUM_THREADS'], os.environ['ELASTREC_CORES'])\n" + _READY_WHEN_TOLD
    pod, usual = make_pod(program, name="starting-pod", cores=3.5, startup_cores=8.0), make_pod(name="starting-not")
    cluster.create(pod)
    # More than the cluster has, but nothing of it is reserved; what the pod learns is what it was granted.
    assert cluster.nodes()[0].free.cores == 0.5
    cluster.create(usual)
    lines = cluster.logs(pod.name, follow=True)
    assert next(lines) == "3 3.5"
    work = Path(next(lines))
    assert _quota_cores(pod, "starting") == pytest.approx(8.0)
    assert _weight(pod, "starting") < _weight(usual, "starting") / 10
    resize(cluster, pod.name, msgspec.structs.replace(pod.size, cores=3.0))  # of what it has afterwards
    assert _quota_cores(pod, "starting") == pytest.approx(8.0)
    (work / "go").touch()
    assert next(lines) == "heard"
    assert _quota_cores(pod, "starting") == pytest.approx(3.0)
    assert _weight(pod, "starting") == _weight(usual, "starting")


@pytest.mark.usefixtures("has_cgroups")
def test_a_pod_that_is_restarted_starts_with_its_cores_again(cluster, make_pod):
    program = "import os\nprint(os.getpid())\n" + _READY_WHEN_TOLD
    pod = make_pod(program, name="starting-over", startup_cores=2.0, restart_policy=RestartPolicy.ON_FAILURE)
    cluster.create(pod)
    lines = cluster.logs(pod.name, follow=True)
    first, go = int(next(lines)), Path(next(lines)) / "go"
    go.touch()
    assert next(lines) == "heard"
    go.unlink()
    assert _quota_cores(pod, "starting") == pytest.approx(pod.size.cores)
    os.kill(first, signal.SIGKILL)
    assert int(next(lines)) != first
    assert _quota_cores(pod, "starting") == pytest.approx(2.0)


@pytest.mark.usefixtures("has_cgroups")
def test_cores_at_start_outlive_the_agent_and_end_by_themselves_after_a_minute(
    state, make_pod, first_line, until_true, is_alive
):
    cluster = start_agent(state, cores=2.0, memory_bytes=512 * MIB)
    program = "print('up')\n" + _READY_WHEN_TOLD
    pods = [make_pod(program, name=f"starting-{name}", startup_cores=2.0) for name in ("recently", "long-ago")]
    for pod in pods:
        cluster.create(pod)
        assert first_line(cluster, pod.name) == "up"
    agent = cluster.agent().pid
    os.kill(agent, signal.SIGKILL)
    until_true(lambda: not is_alive(agent))
    journal = Journal(state / "journal.sqlite")
    record = msgspec.structs.replace(journal.records()[1], started_unix_seconds=time.time() - 59.5)
    journal.write(record, KeptEvent(PodEventKind.MODIFIED, status_of(record), journal.version + 1))
    journal.close()
    again = start_agent(state)
    until_true(lambda: _quota_cores(pods[1], "starting") == pytest.approx(pods[1].size.cores))
    assert _quota_cores(pods[0], "starting") == pytest.approx(2.0)
    lines = again.logs(pods[0].name, follow=True)
    assert next(lines) == "up"
    (Path(next(lines)) / "go").touch()
    assert next(lines) == "heard"
    assert _quota_cores(pods[0], "starting") == pytest.approx(pods[0].size.cores)


@pytest.mark.usefixtures("has_cgroups")
def test_too_much_memory_ends_in_a_real_kill(cluster, make_pod, until):
    pod = make_pod(_EAT, memory=64 * MIB)
    cluster.create(pod)
    status = until(cluster, pod.name)
    assert (status.phase, status.reason, status.exit_code) == (PodPhase.FAILED, "OOMKilled", 137)
    assert str(64 * MIB) in status.message


@pytest.mark.usefixtures("has_cgroups")
def test_a_pod_killed_for_its_memory_is_restarted_and_can_be_given_more(cluster, make_pod, until):
    program = "data = bytearray(100 << 20)\nprint('enough')"
    pod = make_pod(program, memory=64 * MIB, restart_policy=RestartPolicy.ON_FAILURE)
    cluster.create(pod)
    until(cluster, pod.name, lambda status: status.reason == "OOMKilled")
    resize(cluster, pod.name, PodSize(0.5, 192 * MIB))
    assert until(cluster, pod.name).reason == "Completed"
    assert list(cluster.logs(pod.name)) == ["enough"]


@pytest.mark.usefixtures("has_cgroups")
def test_a_limit_below_the_used_memory_is_refused(cluster, make_pod, first_line):
    pod = make_pod("data = bytearray(b'x') * (100 << 20)\nprint('up')\nimport signal; signal.pause()", memory=200 * MIB)
    cluster.create(pod)
    first_line(cluster, pod.name)
    with pytest.raises(ClusterError, match=r"memory_bytes: .* is not allowed for a pod that holds"):
        resize(cluster, pod.name, PodSize(0.5, 32 * MIB))
    status = cluster.get(pod.name)
    assert (status.phase, status.size.memory_bytes) == (PodPhase.RUNNING, 200 * MIB)


def test_a_resize_that_the_node_has_no_room_for_is_refused(cluster, make_pod):
    pod, other = make_pod(cores=2.0), make_pod(cores=1.5)
    cluster.create(pod)
    cluster.create(other)
    with pytest.raises(ClusterError, match=r"insufficient cpu: asked 3.0, free 2.5"):
        resize(cluster, pod.name, PodSize(3.0, 128 * MIB))
    assert resize(cluster, pod.name, PodSize(2.5, 128 * MIB)).size.cores == 2.5
    assert cluster.nodes()[0].free.cores == 0.0
    with pytest.raises(ClusterError, match="there is no such pod"):
        resize(cluster, "nobody", PodSize(1.0, MIB))


def test_shrinking_a_pod_makes_room_for_one_that_waits(cluster, make_pod, until, running):
    pod, waiting = make_pod(cores=4.0), make_pod(cores=1.0)
    cluster.create(pod)
    assert cluster.create(waiting).phase is PodPhase.PENDING
    resize(cluster, pod.name, PodSize(3.0, 128 * MIB))
    until(cluster, waiting.name, running)


def test_a_running_pod_shows_its_use_of_resources(cluster, make_pod, first_line, until_true):
    pod = make_pod("data = bytearray(b'x') * (50 << 20)\n" + _FOREVER, cores=0.5)
    cluster.create(pod)
    first_line(cluster, pod.name)
    until_true(lambda: cluster.get(pod.name).memory_bytes > 50 * MIB and cluster.get(pod.name).cpu_seconds > 0.1)


def test_without_cgroups_there_is_one_warning_and_the_rest_works(state, make_pod, until, first_line, until_true):
    cluster = start_agent(state, cores=1.0, memory_bytes=512 * MIB, limits="threads")
    assert limits_enforced(cluster.nodes()) is False
    pods = [make_pod("print('up')\nwhile True: pass"), make_pod("import subprocess; subprocess.run(['sleep', '99'])")]
    for pod in pods:
        cluster.create(pod)
    first_line(cluster, pods[0].name)
    until_true(lambda: cluster.get(pods[0].name).cpu_seconds > 0 and cluster.get(pods[0].name).memory_bytes > MIB)
    for pod in pods:
        cluster.delete(pod.name, grace_seconds=5.0)
    warnings = [line for line in (state / "agent.log").read_text().splitlines() if "limits_not_enforced" in line]
    assert len(warnings) == 1
    assert json.loads(warnings[0])["level"] == "warning"
    cluster.close()


def test_mounts_of_both_generations_are_recognised():
    text = (
        "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,nosuid,cpu,cpuacct 0 0\n"
        "cgroup /sys/fs/cgroup/my\\040memory cgroup rw,memory 0 0\n"
        "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\nproc /proc proc rw 0 0\n"
    )
    v1, v2 = _mounts(text)
    combined = Path("/sys/fs/cgroup/cpu,cpuacct")
    assert v1 == {"cpu": combined, "cpuacct": combined, "memory": Path("/sys/fs/cgroup/my memory")}
    assert v2 == [Path("/sys/fs/cgroup/unified")]


def test_without_a_mount_the_probe_has_a_reason():
    limits, reason = probe_limits("test", "proc /proc proc rw 0 0\n")
    assert isinstance(limits, ThreadLimits)
    assert reason == "no cgroup mount with the controllers cpu and memory"


def test_version_two_files_are_written_and_read_as_the_kernel_documents(tmp_path):
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory")
    (tmp_path / "agent" / "pod").mkdir(parents=True)
    (tmp_path / "agent" / "cgroup.subtree_control").write_text("")
    pod = tmp_path / "agent" / "pod"
    for name, text in {
        "memory.current": "1000",
        "memory.stat": "anon 500\ninactive_file 300\n",
        "cpu.stat": "usage_usec 2500000\nuser_usec 1\n",
        "memory.swap.max": "max",
        "memory.oom.group": "0",
        "cgroup.procs": "12\n34\n",
    }.items():
        (pod / name).write_text(text)
    limits = CgroupV2Limits(tmp_path, "agent")
    assert (tmp_path / "agent" / "cgroup.subtree_control").read_text() == "+cpu +memory"
    limits.create("pod", PodSize(0.3, 4096))
    assert ((pod / "cpu.max").read_text(), (pod / "cpu.weight").read_text()) == ("30000 100000", "100")
    limits.create("pod", PodSize(0.3, 4096), startup_cores=2.0)
    assert ((pod / "cpu.max").read_text(), (pod / "cpu.weight").read_text()) == ("200000 100000", "6")
    assert (pod / "memory.max").read_text() == "4096"
    assert ((pod / "memory.swap.max").read_text(), (pod / "memory.oom.group").read_text()) == ("0", "1")
    assert limits.usage("pod") == Usage(2.5, 700)
    assert limits.processes("pod") == [12, 34]
    with pytest.raises(ClusterError, match="for a pod that holds 700"):
        limits.resize("pod", PodSize(1.0, 500))


def test_a_limit_that_version_one_refuses_for_swapped_memory_changes_nothing(tmp_path, monkeypatch):
    """The kernel lowers the limit without swap by swapping pages out, and refuses the one with swap."""
    limits = CgroupV1Limits({"cpu": tmp_path, "memory": tmp_path}, "agent")
    pod = tmp_path / "agent" / "pod"
    pod.mkdir()
    for name, value in {
        "limit_in_bytes": 4096,
        "memsw.limit_in_bytes": 4096,
        "usage_in_bytes": 1000,
        "memsw.usage_in_bytes": 3000,
    }.items():
        (pod / f"memory.{name}").write_text(str(value))
    limits.create("pod", PodSize(0.5, 4096))
    write, refused = Path.write_text, []

    def kernel(path, text):
        if path.name == "memory.memsw.limit_in_bytes" and int(text) < 3000:
            refused.append(text)
            raise OSError(errno.EBUSY, "busy")
        return write(path, text)

    monkeypatch.setattr(Path, "write_text", kernel)
    before = {file.name: file.read_text() for file in pod.iterdir()}
    with pytest.raises(ClusterError, match="2000 is not allowed for a pod that holds 3000"):
        limits.resize("pod", PodSize(1.0, 2000))
    assert refused == ["2000"] and {file.name: file.read_text() for file in pod.iterdir()} == before
    limits.resize("pod", PodSize(1.0, 3500))
    assert (pod / "memory.limit_in_bytes").read_text() == (pod / "memory.memsw.limit_in_bytes").read_text() == "3500"
