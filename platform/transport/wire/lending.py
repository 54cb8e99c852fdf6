"""Bodies of frames in shared memory of two processes of one machine, so that no socket copies them twice.

Each side of a connection lends: it copies a body into a segment, sends the segment's number, and does not write to it
until the other side has dropped every array of that body, which it reports with its next frame. The other side maps
segments for reading only. Sending and receiving is in `connection`.

Both processes belong to one user, who could read and write their memory anyway, so that a lender that changes lent
memory has no additional rights. A segment cannot shrink (it is sealed), so that reading it never faults.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import struct
import sys
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import structlog

from elastrec.platform.specs.errors import TransportError
from elastrec.platform.transport.wire.frames import Array

SMALLEST_BYTES = 2**16
"""Smaller bodies are sent over the socket, which costs less than the bookkeeping."""
LARGEST_BYTES = 2**26
MAXIMUM_SEGMENTS = 16
"""Segments of one side of a connection; the numbers of returned ones are the bits of one word."""
_PAGE_BYTES = 2**20  # sizes are rounded up to it, so that a slightly larger batch still fits
_SMALL_COPY_BYTES = 2**15  # up to this size, an array and a release of the interpreter's lock cost more than the copy
_CREDENTIALS = struct.Struct("3i")

log = structlog.get_logger(__name__)


def may_lend(link: socket.socket) -> bool:
    """Whether the other end is a process of the same user on this machine, and the system supports lending."""
    if type(link) is not socket.socket or link.family != socket.AF_UNIX or sys.platform != "linux":
        return False
    _, user, _ = _CREDENTIALS.unpack(link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return bool(user == os.geteuid())


class Segment:
    """Memory of this process that the other one may map.

    Attributes:
        number: among those of its lender.
        descriptor: sent with the first body, then closed; -1 afterwards. The mapping has one of its own.
        room, view: the memory.
    """

    def __init__(self, number: int, size_bytes: int) -> None:
        self.number, self.size_bytes = number, size_bytes
        self.descriptor = os.memfd_create("elastrec-frames", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.descriptor, size_bytes)
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, seals)
            self.room: Array = np.frombuffer(mmap.mmap(self.descriptor, size_bytes), np.uint8)
            self.view = self.room.data
        except BaseException:
            self.close()
            raise
        self.is_lent = False

    def close(self) -> None:
        """Closes the descriptor; the memory is kept while a process maps it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class Lender:
    """The segments that one side of a connection lends."""

    def __init__(self) -> None:
        self._segments: list[Segment] = []
        self._warned = False

    def lend(self, buffers: Sequence[Any], size_bytes: int) -> Segment | None:
        """Copies a body of this size into a free segment and returns it; None: send the body over the socket."""
        if not SMALLEST_BYTES <= size_bytes <= LARGEST_BYTES:
            return None
        segment = self._free(size_bytes)
        if segment is None:
            return None
        at, room, view = 0, segment.room, segment.view
        for buffer in buffers:
            end = at + len(buffer)
            if end - at < _SMALL_COPY_BYTES:
                view[at:end] = buffer
            else:
                room[at:end] = np.frombuffer(buffer, np.uint8)
            at = end
        segment.is_lent = True
        return segment

    def _free(self, size_bytes: int) -> Segment | None:
        for segment in self._segments:
            if not segment.is_lent and segment.size_bytes >= size_bytes:
                return segment
        free = [segment.number for segment in self._segments if not segment.is_lent]
        if not free and len(self._segments) == MAXIMUM_SEGMENTS:
            return None
        needed = size_bytes + size_bytes // 4
        try:
            number = free[0] if free else len(self._segments)
            segment = Segment(number, needed + -needed % _PAGE_BYTES)
        except OSError as error:
            if not self._warned:
                self._warned = True
                log.warning("memory_not_lent", size_bytes=needed, reason=str(error), instead="over the socket")
            return None
        if free:
            self._segments[number].close()
            self._segments[number] = segment
        else:
            self._segments.append(segment)
        return segment

    def note_returned(self, numbers: int) -> None:
        """Records that the other side has dropped the bodies in these segments, one bit each.

        Raises:
            TransportError: it had not borrowed one of them.
        """
        number = 0
        while numbers:
            if numbers & 1:
                if number >= len(self._segments) or not self._segments[number].is_lent:
                    raise TransportError(f"segment {number} was given back, but was not lent")
                self._segments[number].is_lent = False
            numbers >>= 1
            number += 1

    def close(self) -> None:
        """Closes all descriptors."""
        for segment in self._segments:
            segment.close()


class _Body(weakref.ref[Array]):
    """A reference to a body in a segment with a number."""

    __slots__ = ("number",)
    number: int


class Borrower:
    """The segments that one side of a connection has borrowed.

    Attributes:
        dropped: bodies of the segments that are no longer needed and not yet returned.
    """

    def __init__(self) -> None:
        self._mappings: dict[int, mmap.mmap] = {}
        self._bodies: dict[int, _Body] = {}
        # Bodies are freed in any thread, the one that drops them last.
        self.dropped: deque[_Body] = deque()

    def map(self, number: int, descriptor: int) -> None:
        """Maps a segment, whose descriptor may be closed afterwards.

        Raises:
            TransportError: it is not a segment.
        """
        try:
            # Without the seal, reading could fault later.
            if not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
                raise TransportError(f"what came as segment {number} can shrink")
            size_bytes = os.fstat(descriptor).st_size
            self._mappings[number] = mmap.mmap(descriptor, size_bytes, prot=mmap.PROT_READ)
        except (OSError, ValueError) as error:
            raise TransportError(f"what came as segment {number} is no memory: {error}") from None

    def body(self, number: int, size_bytes: int) -> Array:
        """The first bytes of a segment, uint8, read-only; it is returned when no array refers to it.

        Raises:
            TransportError: the segment is unknown, too small, or still borrowed.
        """
        mapping = self._mappings.get(number)
        if mapping is None or size_bytes > len(mapping):
            known = "unknown" if mapping is None else f"of {len(mapping)} bytes"
            raise TransportError(f"a frame's body of {size_bytes} bytes in segment {number}, which is {known}")
        if number in self._bodies:
            raise TransportError(f"segment {number} was lent twice")
        body: Array = np.frombuffer(mapping, np.uint8, size_bytes)
        self._bodies[number] = reference = _Body(body, self.dropped.append)
        reference.number = number
        return body

    def give_back(self) -> int:
        """Numbers of the segments that are no longer needed, one bit each; reported once."""
        numbers = 0
        while self.dropped:
            number = self.dropped.popleft().number
            del self._bodies[number]
            numbers |= 1 << number
        return numbers
