"""Memory volumes outlive their pods, count against the node but no pod, and are removed with their job."""

from __future__ import annotations

import errno
import os
import uuid
from pathlib import Path

import pytest

from elastrec.platform.clusters.local import LocalCluster
from elastrec.platform.clusters.local.agent import volumes as volumes_module
from elastrec.platform.clusters.local.agent.admission import admission
from elastrec.platform.clusters.local.agent.journal import Journal
from elastrec.platform.clusters.local.agent.pod_life import new_record
from elastrec.platform.clusters.local.agent.service import NodeAgent
from elastrec.platform.clusters.local.agent.volumes import UNUSED_SECONDS, MemoryVolumes, volumes_of
from elastrec.platform.clusters.local.processes.limits import probe_limits
from elastrec.platform.clusters.local.state_folder import StateFolder
from elastrec.platform.clusters.pods import MemoryVolume, PodPhase, PodSize
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
    assert again.keep([spec], 0.0) is None and path.exists()
    assert again.keep([], 0.0) is None and not again.sizes and not list(tmp_path.iterdir())


def test_a_volume_that_no_pod_uses_is_removed_after_a_while_although_its_job_goes_on(
    tmp_path: Path, make_pod: MakePod
) -> None:
    stays, left = (make_pod(job="trains", memory_volume=MemoryVolume(f"ps-{index}", MIB)) for index in (0, 1))
    volumes = MemoryVolumes(tmp_path / "agent", tmp_path)
    kept, freed = volumes.make(stays), volumes.make(left)
    assert kept is not None and freed is not None
    assert volumes.keep([stays], 10.0) == 10.0 + UNUSED_SECONDS and freed.exists()
    # A pod that comes in time finds it, and its end begins another while.
    assert volumes.keep([stays, left], 10.0 + UNUSED_SECONDS) is None and freed.exists()
    assert volumes.keep([stays], 400.0) == 400.0 + UNUSED_SECONDS
    assert volumes.keep([stays], 399.0 + UNUSED_SECONDS) == 400.0 + UNUSED_SECONDS and freed.exists()
    assert volumes.keep([stays], 400.0 + UNUSED_SECONDS) is None and not freed.exists() and kept.exists()
    assert volumes.sizes == {("trains", "ps-0"): MIB}


def test_a_pod_that_waits_for_memory_starts_when_an_unused_volume_is_removed(
    tmp_path: Path, make_pod: MakePod, monkeypatch: pytest.MonkeyPatch, until_true
) -> None:
    monkeypatch.setattr(volumes_module, "UNUSED_SECONDS", 0.5)
    limits, _ = probe_limits(uuid.uuid4().hex[:12])
    with StateFolder(tmp_path / "agent").owned():
        agent = NodeAgent(
            tmp_path / "agent", Journal(tmp_path / "journal"), limits, PodSize(2.0, 300 * MIB), "node", os.environ
        )
        agent.start()
        try:
            agent.create(make_pod(job="trains", memory=64 * MIB))
            server = make_pod(job="trains", memory=64 * MIB, memory_volume=MemoryVolume("ps-0", 128 * MIB))
            agent.create(server)
            agent.delete(server.name, 0.0)
            waits = make_pod(job="other", memory=150 * MIB)
            assert agent.create(waits).phase is PodPhase.PENDING
            until_true(lambda: agent.pods(waits.name, None)[0].phase is PodPhase.RUNNING)
            assert agent.nodes()[0].free.memory_bytes == (300 - 64 - 150) * MIB
        finally:
            agent.delete_all()
            agent.release_waiting_calls()
            agent.close()


@pytest.mark.parametrize("step", ["open", "mkdir"])
def test_without_room_for_another_file_a_pod_starts_without_its_volume(
    tmp_path: Path, make_pod: MakePod, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def is_full(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    volumes, pod = MemoryVolumes(tmp_path / "agent", tmp_path), make_pod(memory_volume=MemoryVolume("ps-0", MIB))
    with monkeypatch.context() as patched:
        patched.setattr(os, step, is_full)
        path = volumes.make(pod)
    assert path is not None and not path.exists() and volumes.sizes == {}
    assert volumes.make(pod) == path and path.stat().st_size == MIB


@pytest.mark.parametrize("is_link", [True, False])
def test_what_another_user_has_put_in_the_place_of_the_volumes_is_left_alone(
    tmp_path: Path, make_pod: MakePod, monkeypatch: pytest.MonkeyPatch, is_link: bool
) -> None:
    root, folder = tmp_path / "shm", tmp_path / "home"
    place = volumes_of(tmp_path / "agent", root)
    root.mkdir()
    if is_link:
        (folder / "photos").mkdir(parents=True)
        place.symlink_to(folder)
    else:
        folder = place
        (folder / "photos").mkdir(parents=True)
        user = folder.stat().st_uid
        monkeypatch.setattr("os.geteuid", lambda: user + 1)
    file = folder / "photos" / "one"
    file.touch()
    volumes = MemoryVolumes(tmp_path / "agent", root)
    assert volumes.sizes == {}
    with pytest.raises(ClusterError, match=r"belongs to another user, or is a link; remove it"):
        volumes.make(make_pod(job="trains", memory_volume=MemoryVolume("ps-0", MIB)))
    assert volumes.keep((), 0.0) is None
    assert [path for path in folder.rglob("*") if path.is_file()] == [file]


def test_only_the_user_of_the_agent_may_enter_the_folder_of_its_volumes(tmp_path: Path, make_pod: MakePod) -> None:
    # Earlier versions made the folder with the permissions of the umask.
    volumes_of(tmp_path / "agent", tmp_path).mkdir(mode=0o755)
    path = MemoryVolumes(tmp_path / "agent", tmp_path).make(make_pod(memory_volume=MemoryVolume("ps-0", MIB)))
    assert path is not None
    assert [place.stat().st_mode & 0o777 for place in (path, *path.parents[:2])] == [0o600, 0o700, 0o700]
