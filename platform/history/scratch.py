"""Folders for files on their way to and from MLflow, whose client takes and gives files alone.

A process that is killed leaves its folder; the next process of the same user that needs one deletes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "elastrec-history-"


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """An empty folder with access for its owner only, deleted at the end.

    Raises:
        OSError: it cannot be created.
    """
    _delete_abandoned()
    folder, descriptor = _locked_folder()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _locked_folder() -> tuple[Path, int]:
    """A new folder, and an open descriptor that holds a lock on it as long as this process lives."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            # Another process has deleted it as abandoned, because it was not locked yet.
            continue
        # Without locks (some file systems of networks), nobody deletes abandoned folders there either.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return folder, descriptor
        os.close(descriptor)


@functools.cache
def _delete_abandoned() -> None:
    """Deletes the folders of this user's processes that have ended; once per process, because it lists a large
    folder."""
    with contextlib.suppress(OSError):
        for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
            _delete_if_abandoned(folder)


def _delete_if_abandoned(folder: Path) -> None:
    # Those of other users cannot be opened; a link is none of ours.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_uid == os.geteuid():
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)
