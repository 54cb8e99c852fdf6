"""The disk of a node agent is full for a while; pods that end in this time are reported correctly afterwards."""

from __future__ import annotations

import os
import signal
import time

import pytest

from elastrec.platform.clusters.local import start_agent, stop_agent
from elastrec.platform.clusters.pods import PodPhase
from elastrec.platform.specs.errors import ClusterError
from tests.disks import small_disk
from tests.processes import wait_for

pytestmark = pytest.mark.services

MIB = 1 << 20
_LEAVES = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
print(os.getpid(), flush=True)
while True:
    signal.pause()
"""


def test_a_pod_that_writes_while_the_disk_is_full_loses_output_and_nothing_else(tmp_path, make_pod, first_line):
    program = "import itertools, time\nfor n in itertools.count(): print(n, 'x' * 5000, flush=True); time.sleep(0.02)"
    with small_disk(tmp_path / "agent", 16 * MIB) as disk:
        cluster = start_agent(disk.folder, cores=2.0, memory_bytes=512 * MIB)
        try:
            pod = make_pod(program)
            cluster.create(pod)
            first_line(cluster, pod.name)
            disk.fill()
            time.sleep(1.0)  # it writes some fifty lines
            disk.free()
            lost_until = int(list(cluster.logs(pod.name))[-1].split()[0])
            wait_for(lambda: int(list(cluster.logs(pod.name))[-1].split()[0]) > lost_until, 20, "more output")
            found = cluster.get(pod.name)
            assert (found.phase, found.restarts) == (PodPhase.RUNNING, 0)
        finally:
            stop_agent(disk.folder)


def test_a_pod_that_is_requested_while_the_disk_is_full_may_be_requested_again_and_leaves_no_secret(tmp_path, make_pod):
    # A refusal that is not retryable would end the job whose master requests the pod.
    with small_disk(tmp_path / "agent", 16 * MIB) as disk:
        cluster = start_agent(disk.folder, cores=2.0, memory_bytes=512 * MIB)
        try:
            pod = make_pod(secrets={"a-token": "s3cret", "long": "x" * MIB})
            disk.fill()
            with pytest.raises(ClusterError, match=r"the pod's files cannot be written: .*No space left") as refused:
                cluster.create(pod)
            assert refused.value.retryable
            assert [entry.name for entry in (disk.folder / "pods").iterdir()] == ["trash"]
            disk.free()
            assert cluster.create(pod).phase is PodPhase.RUNNING
        finally:
            stop_agent(disk.folder)


def test_the_exit_code_of_a_pod_is_reported_although_the_disk_was_full(
    tmp_path, make_pod, first_line, until, until_true, is_alive
):
    with small_disk(tmp_path / "agent", 16 * MIB) as disk:
        cluster = start_agent(disk.folder, cores=2.0, memory_bytes=512 * MIB)
        try:
            leaving, staying = make_pod(_LEAVES), make_pod()
            cluster.create(leaving)
            cluster.create(staying)
            pid = int(first_line(cluster, leaving.name))
            disk.fill()
            os.kill(pid, signal.SIGTERM)
            until_true(lambda: not is_alive(pid))
            time.sleep(1.0)  # the agent has tried to write it down
            disk.free()
            ended = until(cluster, leaving.name)
            assert (ended.phase, ended.exit_code, ended.reason) == (PodPhase.FAILED, 3, "Error")
            assert cluster.get(staying.name).phase is PodPhase.RUNNING
        finally:
            stop_agent(disk.folder)
