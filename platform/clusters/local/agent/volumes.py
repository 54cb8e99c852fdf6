"""Memory volumes: files of a memory file system that pods of a job map one after the other, and that are kept between
them.

The agent creates their pages, so that they do not count for the limits of pods, and copying does not wait for them. A
volume uses memory of the node until its job has no running or waiting pod here, or until no pod has used it for
`UNUSED_SECONDS`: a job whose servers change leaves volumes behind, and may go on for days.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

import structlog
import xxhash

from elastrec.platform.clusters.pods import PodSpec
from elastrec.platform.memory import make_pages
from elastrec.platform.specs.errors import ClusterError

log = structlog.get_logger(__name__)
ROOT = Path("/dev/shm")
_BLOCK_BYTES = 512  # in which `stat` counts what a file occupies
_PREFIX = "elastrec-volumes-"
UNUSED_SECONDS = 300.0
"""After the end of a pod, its successor comes within seconds, or as soon as the job's master has another pod itself."""

VolumeKey = tuple[str, str]
"""Job, and name of the volume in it."""


class _Waiting(Protocol):
    @property
    def spec(self) -> PodSpec: ...


def key_of(spec: PodSpec) -> VolumeKey | None:
    """The volume of a pod; None: it has none."""
    return None if spec.memory_volume is None else (spec.job, spec.memory_volume.name)


def bytes_to_make(pods: Iterable[_Waiting], present: Mapping[VolumeKey, int]) -> int:
    """The bytes of the volumes of these pods that do not exist yet."""
    missing = {}
    for pod in pods:
        volume, key = pod.spec.memory_volume, key_of(pod.spec)
        if volume is not None and key is not None and key not in present:
            missing[key] = volume.size_bytes
    return sum(missing.values())


def volumes_of(state: Path, root: Path = ROOT) -> Path:
    """The folder of the volumes of the agent whose state is in this folder."""
    return root / f"{_PREFIX}{xxhash.xxh64_hexdigest(str(state.absolute()).encode())}"


def _is_own(folder: Path) -> bool:
    """Whether a folder exists, is no link, and belongs to this user."""
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


class MemoryVolumes:
    """The volumes of one agent; they are kept when it ends. The caller serialises the calls.

    Every user may create files in ROOT, and the name of the agent's folder can be guessed. So a folder that belongs to
    another user, or a link, is neither read nor written nor removed.

    Args:
        folder: of the agent's state, by which they are found again.

    Attributes:
        sizes: bytes of the volumes that exist or are being created.
    """

    def __init__(self, folder: Path, root: Path = ROOT) -> None:
        self._folder = volumes_of(folder, root)
        volumes = self._folder.glob("*/*") if _is_own(self._folder) else ()
        self.sizes: dict[VolumeKey, int] = {(path.parent.name, path.name): path.stat().st_size for path in volumes}
        self._unused_since: dict[VolumeKey, float] = {}

    def make(self, spec: PodSpec) -> Path | None:
        """The path of a pod's volume, which is created in the background; None if the pod has no volume.

        If the memory file system has no room for the file, there is none at this path.

        Raises:
            ClusterError: another user has made the agent's folder.
            OSError: the volume cannot be created for another reason.
        """
        volume = spec.memory_volume
        if volume is None:
            return None
        key, path = (spec.job, volume.name), self._folder / spec.job / volume.name
        try:
            self._make_file(key, path, volume.size_bytes)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            _note_not_made(path, volume.size_bytes, error)
        return path

    def _make_file(self, key: VolumeKey, path: Path, size_bytes: int) -> None:
        self._make_folder()
        path.parent.mkdir(mode=0o700, exist_ok=True)
        if self.sizes.get(key) != size_bytes:
            path.unlink(missing_ok=True)
            self.sizes.pop(key, None)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.sizes[key] = size_bytes
        if os.fstat(descriptor).st_blocks * _BLOCK_BYTES >= size_bytes:
            os.close(descriptor)
            return
        try:
            # The size is set first, so that an agent that starts meanwhile can account for it.
            os.truncate(descriptor, size_bytes)
        except OSError:
            os.close(descriptor)
            raise
        threading.Thread(target=_make_pages, args=(descriptor, path, size_bytes), daemon=True).start()

    def _make_folder(self) -> None:
        with contextlib.suppress(FileExistsError):
            self._folder.mkdir(mode=0o700)
        if not _is_own(self._folder):
            raise ClusterError(
                f"{self._folder}: memory volumes cannot be made: the folder belongs to another user, or is a link; "
                "remove it, or start the node agent with another folder (ELASTREC_HOME)"
            )
        # Earlier versions made it with the umask.
        self._folder.chmod(0o700)

    def keep(self, pods: Iterable[PodSpec], now_seconds: float) -> float | None:
        """Removes the volumes of jobs without a pod, and those that no pod has used for `UNUSED_SECONDS`.

        Args:
            pods: the running and waiting ones.
            now_seconds: monotonic.

        Returns:
            When to call it again, on the same clock; None: not before another pod ends.
        """
        present = list(pods)
        jobs, used = {spec.job for spec in present}, {key_of(spec) for spec in present}
        self._unused_since = {key: self._unused_since.get(key, now_seconds) for key in self.sizes if key not in used}
        for key, since in list(self._unused_since.items()):
            if key[0] not in jobs or since + UNUSED_SECONDS <= now_seconds:
                del self._unused_since[key]
                path = self._folder / key[0] / key[1]
                path.unlink(missing_ok=True)
                with contextlib.suppress(OSError):
                    path.parent.rmdir()  # unless the job has other volumes
                log.info("memory_volume_removed", job=key[0], volume=key[1], bytes=self.sizes.pop(key))
        if not self.sizes and _is_own(self._folder):
            shutil.rmtree(self._folder, ignore_errors=True)
        return min(self._unused_since.values()) + UNUSED_SECONDS if self._unused_since else None


def _make_pages(descriptor: int, path: Path, size_bytes: int) -> None:
    try:
        huge_bytes = make_pages(descriptor, size_bytes)
        log.info("memory_volume_made", volume=str(path), bytes=size_bytes, huge_bytes=huge_bytes)
    except OSError as error:
        _note_not_made(path, size_bytes, error)
        os.truncate(descriptor, 0)
    finally:
        os.close(descriptor)


def _note_not_made(path: Path, size_bytes: int, error: OSError) -> None:
    # Pods detect that it is missing or incomplete, log that, and work without it.
    log.error("memory_volume_not_made", volume=str(path), bytes=size_bytes, reason=str(error))
