"""A new file whose bytes go to the disk past the page cache, where its file system allows that.

A record is read again only after a fault or on another node, so it need not be in the page cache. Writing through the
cache costs the server's own cores: in a virtual machine, 530 MB took 0.13 CPU seconds of the kernel with pages that its
host had supplied before, and 1.0 with others; past the cache, 0.02, and 0.06 for gathering them. A busy server with few
cores serves requests in that time (compare FastPersist, Wang et al. 2024, which writes records in the same way).
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from typing_extensions import Buffer

PIECE_BYTES = 8 * 2**20
"""Bytes that are gathered and written together; a multiple of every disk's block."""


class UncachedFile:
    """Bytes of any length are gathered in pages of memory, because the kernel takes only whole, aligned blocks.

    The end of the file, less than a piece, goes through the page cache, as do all bytes if the file system refuses.

    Args:
        path: of a file that must not exist.

    Raises:
        OSError: the file cannot be created.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        # Pages come into being when they are filled, so a small file has few.
        self._gathered: np.ndarray[Any, Any] = np.frombuffer(mmap.mmap(-1, PIECE_BYTES), np.uint8)
        self._count = 0
        self._is_refused = self._is_direct = False

    def write(self, data: Buffer) -> None:
        """Appends bytes; the buffer may be reused when this returns.

        Raises:
            OSError: they cannot be written.
        """
        source = np.frombuffer(memoryview(data), np.uint8)
        while len(source):
            count = min(len(source), PIECE_BYTES - self._count)
            # numpy copies without the GIL, for which requests may wait.
            self._gathered[self._count : self._count + count] = source[:count]
            self._count += count
            source = source[count:]
            if self._count == PIECE_BYTES:
                if not self._is_refused:
                    self._set_direct(True)
                self._put()

    def synchronise(self) -> None:
        """Makes all bytes durable, and closes the file.

        Raises:
            OSError: they cannot be written.
        """
        self._set_direct(False)
        self._put()
        os.fsync(self._descriptor)
        self.close()

    def close(self) -> None:
        """Closes the file; gathered bytes are dropped. No error when it is closed."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _put(self) -> None:
        left = memoryview(self._gathered)[: self._count]  # type: ignore[arg-type]
        while left:
            try:
                left = left[os.write(self._descriptor, left) :]
            except OSError as error:
                if error.errno != errno.EINVAL or not self._is_direct:
                    raise
                # Some file systems accept the flag and refuse the write.
                self._is_refused = True
                self._set_direct(False)
        self._count = 0

    def _set_direct(self, is_direct: bool) -> None:
        if is_direct == self._is_direct:
            return
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags | os.O_DIRECT if is_direct else flags & ~os.O_DIRECT)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._is_refused = True
        else:
            self._is_direct = is_direct
