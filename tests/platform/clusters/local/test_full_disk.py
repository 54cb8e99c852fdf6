"""The disk of a node agent is full for a while; pods that end in this time are reported correctly afterwards."""

from __future__ import annotations

import os
import signal
import time

import pytest

from elastrec.platform.clusters.local import start_agent, stop_agent
from elastrec.platform.clusters.pods import PodPhase
from tests.disks import small_disk

pytestmark = pytest.mark.services

MIB = 1 << 20
_LEAVES = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
print(os.getpid(), flush=True)
while True:
    signal.pause()
"""


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
