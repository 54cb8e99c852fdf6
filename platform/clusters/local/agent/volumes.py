"""Memory volumes: files of a memory file system that pods of a job map one after the other, and that are kept between
them.

The agent creates their pages, so that they do not count for the limits of pods, and copying does not wait for them. A
volume uses memory of the node until its job has no running or waiting pod here.
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
    """The bytes of the volumes of these pods that do not exist yet."""
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
    """The volumes of one agent; they are kept when it ends. The caller serialises the calls.

    Args:
        folder: of the agent's state, by which they are found again.

    Attributes:
        sizes: bytes of the volumes that exist or are being created.
    """

    def __init__(self, folder: Path, root: Path = ROOT) -> None:
        self._folder = volumes_of(folder, root)
        volumes = self._folder.glob("*/*") if self._folder.is_dir() else ()
        self.sizes: dict[VolumeKey, int] = {(path.parent.name, path.name): path.stat().st_size for path in volumes}

    def make(self, spec: PodSpec) -> Path | None:
        """The path of a pod's volume, which is created in the background; None if the pod has no volume."""
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
        # The size is set first, so that an agent that starts meanwhile can account for it.
        os.truncate(descriptor, volume.size_bytes)
        threading.Thread(target=_make_pages, args=(descriptor, path, volume.size_bytes), daemon=True).start()
        return path

    def keep(self, jobs: set[str]) -> int:
        """Removes the volumes of all other jobs; returns the freed bytes."""
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
        # Pods detect that it is incomplete, log that, and work without it.
        log.error("memory_volume_not_made", volume=str(path), bytes=size_bytes, reason=str(error))
        os.truncate(descriptor, 0)
    finally:
        os.close(descriptor)
