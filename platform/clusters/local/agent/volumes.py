"""Memory that pods of a job map one after the other, and that outlives them: files of a memory file system.

The agent makes their pages, not a pod: so no pod is charged with them, and none waits for them when it copies. A volume
counts against the node until its job has no pod here that runs or waits.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

import structlog
import xxhash

from elastrec.platform.clusters.pods import PodSpec

log = structlog.get_logger(__name__)
ROOT = Path("/dev/shm")
_BLOCK_BYTES = 512  # in which `stat` counts what a file occupies
_PREFIX = "elastrec-volumes-"

VolumeKey = tuple[str, str]
"""Job, and name of the volume in it."""


class _Waiting(Protocol):
    @property
    def spec(self) -> PodSpec: ...


def bytes_to_make(pods: Iterable[_Waiting], present: Mapping[VolumeKey, int]) -> int:
    """What the volumes of these pods take that are not there yet."""
    missing = {}
    for pod in pods:
        volume = pod.spec.memory_volume
        if volume is not None and (key := (pod.spec.job, volume.name)) not in present:
            missing[key] = volume.size_bytes
    return sum(missing.values())


def volumes_of(state: Path, root: Path = ROOT) -> Path:
    """The folder of the volumes of the agent whose state is in this folder."""
    return root / f"{_PREFIX}{xxhash.xxh64_hexdigest(str(state.absolute()).encode())}"


class MemoryVolumes:
    """Those of one agent; they survive it. The caller serialises the calls.

    Args:
        folder: of the agent's state, by which they are found again.

    Attributes:
        sizes: bytes of those that are there, or being made.
    """

    def __init__(self, folder: Path, root: Path = ROOT) -> None:
        self._folder = volumes_of(folder, root)
        volumes = self._folder.glob("*/*") if self._folder.is_dir() else ()
        self.sizes: dict[VolumeKey, int] = {(path.parent.name, path.name): path.stat().st_size for path in volumes}

    def make(self, spec: PodSpec) -> Path | None:
        """Where the volume of a pod is; it is made beside, so that nobody waits. None: the pod asks for none."""
        volume = spec.memory_volume
        if volume is None:
            return None
        key, path = (spec.job, volume.name), self._folder / spec.job / volume.name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.sizes.get(key) != volume.size_bytes:
            path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.sizes[key] = volume.size_bytes
        if os.fstat(descriptor).st_blocks * _BLOCK_BYTES >= volume.size_bytes:
            os.close(descriptor)
            return path
        # Its size at once, so that an agent that starts while it is made knows of it.
        os.truncate(descriptor, volume.size_bytes)
        threading.Thread(target=_make_pages, args=(descriptor, path, volume.size_bytes), daemon=True).start()
        return path

    def keep(self, jobs: set[str]) -> int:
        """Removes the volumes of all other jobs; returns how many bytes that gives back."""
        removed = [key for key in self.sizes if key[0] not in jobs]
        freed = sum(self.sizes.pop(key) for key in removed)
        for job in {job for job, _ in removed}:
            shutil.rmtree(self._folder / job, ignore_errors=True)
            log.info("memory_volumes_removed", job=job, bytes=freed)
        if not self.sizes:
            shutil.rmtree(self._folder, ignore_errors=True)
        return freed


def _make_pages(descriptor: int, path: Path, size_bytes: int) -> None:
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
        log.info("memory_volume_made", volume=str(path), bytes=size_bytes)
    except OSError as error:
        # Pods find it incomplete and say what they do without.
        log.error("memory_volume_not_made", volume=str(path), bytes=size_bytes, reason=str(error))
        os.truncate(descriptor, 0)
    finally:
        os.close(descriptor)
