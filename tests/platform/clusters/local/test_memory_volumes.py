"""Memory volumes outlive their pods, count against the node but no pod, and are removed with their job."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastrec.platform.clusters.local import LocalCluster
from elastrec.platform.clusters.local.agent.admission import admission
from elastrec.platform.clusters.local.agent.pod_life import new_record
from elastrec.platform.clusters.local.agent.volumes import MemoryVolumes
from elastrec.platform.clusters.pods import MemoryVolume, PodSize
from elastrec.platform.specs.errors import ClusterError
from tests.platform.clusters.local.conftest import MIB, MakePod, Until

pytestmark = pytest.mark.services

# Waits until the node has made the volume, then writes into all of it, which is more than the pod may hold.
WRITE = """
import os, mmap, time
path = os.environ["ELASTREC_MEMORY"]
while os.stat(path).st_blocks * 512 < 256 << 20: time.sleep(0.01)
with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as volume:
    for at in range(0, len(volume), 1 << 20): volume[at:at + (1 << 20)] = b"a" * (1 << 20)
print(path, flush=True)
"""
READ = """
import os
with open(os.environ["ELASTREC_MEMORY"], "rb") as file:
    print(all(file.read(1 << 20) == b"a" * (1 << 20) for _ in range(256)), flush=True)
"""


def test_a_volume_outlives_its_pod_and_goes_with_its_job(
    cluster: LocalCluster, make_pod: MakePod, until: Until, running
) -> None:
    volume = MemoryVolume("ps-0", 256 * MIB)
    (node,) = cluster.nodes()
    other = make_pod(job="trains", memory=64 * MIB)
    cluster.create(other)
    first = make_pod(WRITE, job="trains", memory=64 * MIB, memory_volume=volume)
    cluster.create(first)
    # Charged with it, the pod would have been killed for its memory.
    assert until(cluster, first.name).exit_code == 0
    path = Path(next(iter(cluster.logs(first.name))).strip())
    assert cluster.nodes()[0].free.memory_bytes == node.free.memory_bytes - 64 * MIB - 256 * MIB
    cluster.delete(first.name)
    second = make_pod(READ, job="trains", memory=64 * MIB, memory_volume=volume)
    cluster.create(second)
    until(cluster, second.name)
    assert next(iter(cluster.logs(second.name))).strip() == "True"
    cluster.delete(other.name)
    assert not path.exists() and cluster.nodes()[0].free == node.free


def test_a_volume_that_no_node_has_room_for_is_refused(cluster: LocalCluster, make_pod: MakePod) -> None:
    pod = make_pod(memory=64 * MIB, memory_volume=MemoryVolume("ps-0", 4096 * MIB))
    with pytest.raises(ClusterError, match=f"of which {4096 * MIB} for its memory volume"):
        cluster.create(pod)
    with pytest.raises(ClusterError, match=r"memory_volume\.name '\.\./x' is not allowed"):
        cluster.create(make_pod(memory_volume=MemoryVolume("../x", MIB)))


def test_a_pod_waits_for_the_room_of_its_volume_unless_that_is_there(make_pod: MakePod) -> None:
    volume = MemoryVolume("ps-0", 60)
    spec = make_pod(job="trains", cores=1.0, memory=50, memory_volume=volume)
    record = new_record(spec, uid="1", node="n", port=0, now=0.0)
    total = PodSize(1.0, 100)
    assert admission([record], total).why == {"1": "insufficient memory: asked 110, free 100"}
    assert admission([record], PodSize(1.0, 110), {("trains", "ps-0"): 60}).start == [record]
    assert not admission([record], PodSize(1.0, 110), {("others", "ps-0"): 60}).start


def test_a_restarted_agent_finds_its_volumes(tmp_path: Path, make_pod: MakePod) -> None:
    spec = make_pod(job="trains", memory_volume=MemoryVolume("ps-0", MIB))
    first = MemoryVolumes(tmp_path / "agent", tmp_path)
    path = first.make(spec)
    assert path is not None
    path.write_bytes(b"a" * MIB)
    again = MemoryVolumes(tmp_path / "agent", tmp_path)
    assert again.sizes == {("trains", "ps-0"): MIB} and again.make(spec) == path
    assert path.read_bytes() == b"a" * MIB
    assert again.keep({"trains"}) == 0 and path.exists()
    assert again.keep(set()) == MIB and not list(tmp_path.iterdir())
