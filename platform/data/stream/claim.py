"""Claim: of several calls that land into one destination, one records messages.

On a local file system, a second call on the same machine is refused. In an object store nothing tells whether an
earlier call still runs, and a call that was killed must not block the next one: there, the last call takes over, and an
earlier one ends before it makes files visible or records messages. Its files have names of their own, so that it
replaces none of the other's.
"""

from __future__ import annotations

import fcntl
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.fs as pafs

from elastrec.platform.data.files import join, locate, read_bytes, write_bytes
from elastrec.platform.specs.errors import DataError

CLAIM_NAME = "_landing.lock"


class Claim:
    """The right of one call to write to a destination.

    Args:
        holder: identifies the call in an object store; empty on a local file system.
    """

    def __init__(self, destination: str, holder: str) -> None:
        self._destination, self.holder = destination, holder

    @property
    def suffix(self) -> str:
        """Of the names of this call's files."""
        return f"-{self.holder}" if self.holder else ""

    def check(self) -> None:
        """Asks the object store whether this is still the last call.

        Raises:
            DataError: a later call has taken over.
        """
        if self.holder and read_bytes(join(self._destination, CLAIM_NAME)) != self.holder.encode():
            raise self.lost()

    def lost(self) -> DataError:
        """The error of a call whose destination a later one has taken over."""
        return DataError(
            f"{self._destination}: a later call lands into it, too; this one ends, and the other lands its messages"
        )


@contextmanager
def claimed(destination: str) -> Iterator[Claim]:
    """Claims a destination, until the end of the block on a local file system.

    Raises:
        DataError: another process of this machine lands into it, or it is a file.
    """
    filesystem, path = locate(destination)
    if not isinstance(filesystem, pafs.LocalFileSystem):
        holder = uuid.uuid4().hex[:8]
        write_bytes(join(destination, CLAIM_NAME), holder.encode())
        yield Claim(destination, holder)
        return
    if Path(path).is_file():
        raise DataError(f"{destination}: is a file; choose a folder")
    Path(path).mkdir(parents=True, exist_ok=True)
    with (Path(path) / CLAIM_NAME).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DataError(f"{destination}: is being landed by another process; wait for its end") from error
        yield Claim(destination, "")
