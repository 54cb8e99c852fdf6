"""Memory that outlives the process that writes it, and the parts of records that it holds.

The memory is one file of a memory file system. Its owner, the node, creates all of its pages before parts are copied,
because creating a page takes several times as long as copying it. The file has two halves. A full part is written to
the start of the half without the newest parts, and parts that build on it follow; so the last complete parts stay while
the next ones are written.

A half is a sequence of parts, each after a page with its header:

    magic, chain u64, number u32, length u32, xxh3-64 of the description u64 | description (msgpack) | bytes of the part

The header of a part is erased before its bytes change and written after the last of them, so a part whose writer was
killed does not exist. The sequence ends at the first header that is not the next one of its chain. The memory only
contains copies of parts that are in the store or will be written to it, so no data is lost with the memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import struct
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import xxhash

from elastrec.platform.memory import AlignedMap
from elastrec.platform.specs.errors import CheckpointError
from elastrec.platform.specs.text.decoders import msgpack_decoder

if TYPE_CHECKING:
    from typing_extensions import Buffer

PAGE_BYTES = mmap.PAGESIZE
LEAST_BYTES = 64 * PAGE_BYTES
MOST_NOTE_BYTES = 1024
_MAGIC = b"ELRMEM01"
_HEADER = struct.Struct("<8sQIIQ")
_BLOCK_BYTES = 512
"""The unit in which `stat` counts what a file occupies."""


class MemoryUnusableError(CheckpointError):
    """The memory is missing, too small or incomplete, or another process writes it."""


class _Description(msgspec.Struct, frozen=True, array_like=True):
    uri: str
    file: str
    size_bytes: int
    checksum: int
    note: bytes = b""


# Made at import, because several threads may call `PartMemory.find`.
_decoder = msgpack_decoder(_Description)


class HeldPart(msgspec.Struct, frozen=True):
    """A part in memory.

    Attributes:
        uri, file: of its record, and its key there.
        start: of its first byte in the memory; checksum: xxh3-64 of its bytes.
        chain: increases with every full part; number: of the part in its chain, from 0.
        note: of its writer, for the next process.
    """

    uri: str
    file: str
    start: int
    size_bytes: int
    checksum: int
    chain: int
    number: int
    note: bytes = b""

    @property
    def end(self) -> int:
        """Where the next part may begin."""
        return -(-(self.start + self.size_bytes) // PAGE_BYTES) * PAGE_BYTES


class PartMemory:
    """The memory as one process sees it. Not thread-safe, except for `find` and `read`.

    Args:
        path: of the file.
        writes: whether this process may write; at most one process may do so at a time.

    Attributes:
        read_bytes: number of bytes that `read` has returned so far.

    Raises:
        MemoryUnusableError: see there.
    """

    def __init__(self, path: Path, *, writes: bool) -> None:
        self.path = path
        self.read_bytes = 0
        self._writes = writes
        with contextlib.ExitStack() as stack:
            try:
                descriptor = os.open(path, (os.O_RDWR if writes else os.O_RDONLY) | os.O_CLOEXEC)
                stack.callback(os.close, descriptor)
                status = os.fstat(descriptor)
                if writes:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if status.st_size < LEAST_BYTES or status.st_blocks * _BLOCK_BYTES < status.st_size:
                    raise MemoryUnusableError(
                        f"{path}: {status.st_blocks * _BLOCK_BYTES} of {status.st_size} bytes are there; the node has "
                        f"not made all of it, or has no room for it (at least {LEAST_BYTES} are needed)"
                    )
                self._bytes = _mapped(descriptor, status.st_size, writes=writes)
            except BlockingIOError:
                raise MemoryUnusableError(f"{path}: another process writes this memory") from None
            except OSError as error:
                raise MemoryUnusableError(f"{path}: the memory cannot be used: {error}") from error
            # The lock lasts as long as the descriptor.
            stack.pop_all()
        self._descriptor = descriptor
        self.size_bytes = status.st_size
        self._half_bytes = status.st_size // 2 // PAGE_BYTES * PAGE_BYTES

    def close(self) -> None:
        """Gives the view back; the memory stays. Arrays that were read and are still referenced keep their pages."""
        self._bytes.release()
        os.close(self._descriptor)

    def parts(self) -> list[HeldPart]:
        """The parts of both halves, the newest chain last."""
        halves = [self._row(half * self._half_bytes) for half in (0, 1)]
        return [part for row in sorted(halves, key=lambda row: row[0].chain if row else -1) for part in row]

    def find(self, uri: str, file: str) -> HeldPart | None:
        """A complete part; None if it is not in memory."""
        return next((part for part in self.parts() if (part.uri, part.file) == (uri, file)), None)

    def _row(self, first: int) -> list[HeldPart]:
        row: list[HeldPart] = []
        at, end = first, first + self._half_bytes
        while at + PAGE_BYTES <= end:
            part = self._part(at, end)
            if part is None or part.number != len(row) or (row and part.chain != row[0].chain):
                break
            row.append(part)
            at = part.end
        return row

    def _part(self, at: int, end: int) -> HeldPart | None:
        """The part whose header is at this position; None if there is no complete header."""
        magic, chain, number, length, checksum = _HEADER.unpack_from(self._bytes, at)
        if magic != _MAGIC or length > PAGE_BYTES - _HEADER.size:
            return None
        text = bytes(self._bytes[at + _HEADER.size : at + _HEADER.size + length])
        if xxhash.xxh3_64_intdigest(_sealed(chain, number, text)) != checksum:
            return None
        try:
            said = _decoder.decode(text)
        except msgspec.MsgspecError:
            return None
        part = HeldPart(
            said.uri, said.file, at + PAGE_BYTES, said.size_bytes, said.checksum, chain, number, said.note
        )  # fmt: skip
        return part if part.start + part.size_bytes <= end else None

    def read(self, part: HeldPart, start: int, length: int) -> bytes | memoryview | None:
        """Bytes of a part; None if the memory contains another part by now.

        The writing process gets a view instead of a copy, which is valid until it begins another part.
        """
        view = self._bytes[part.start + start : part.start + start + length]
        data = view if self._writes else bytes(view)
        self.read_bytes += length
        # Checked after the copy, because a writer erases the header first.
        return data if self._is_held(part) else None

    def _is_held(self, part: HeldPart) -> bool:
        return self._part(part.start - PAGE_BYTES, self.size_bytes) == part

    def begin(self, uri: str, file: str, *, is_full: bool, note: bytes = b"") -> PartCopy:
        """Begins to write a part, which is valid after `PartCopy.finish`.

        Args:
            note: see HeldPart; at most MOST_NOTE_BYTES.
            is_full: whether it builds on no other part. The parts of the other half stay, those of this half are
            overwritten.
        """
        rows = [self._row(half * self._half_bytes) for half in (0, 1)]
        newest = max((0, 1), key=lambda half: rows[half][0].chain if rows[half] else -1)
        row = rows[newest]
        chain, half = (row[0].chain if row else 0), newest
        if is_full or not row:
            chain, half, row = chain + 1, 1 - newest, []
        at = row[-1].end if row else half * self._half_bytes
        end = (half + 1) * self._half_bytes
        if at + PAGE_BYTES <= end:
            self._wipe(at)
        return PartCopy(self, _Place(uri, file, at, end, chain, len(row), note))

    def _wipe(self, at: int) -> None:
        self._bytes[at : at + PAGE_BYTES] = bytes(PAGE_BYTES)

    def _put(self, at: int, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        # Without the GIL, so that requests are served meanwhile.
        np.copyto(np.frombuffer(self._bytes[at : at + len(view)], np.uint8), np.frombuffer(view, np.uint8))

    def _seal(self, place: _Place, size_bytes: int, checksum: int) -> HeldPart:
        text = msgspec.msgpack.encode(_Description(place.uri, place.file, size_bytes, checksum, place.note))
        if len(text) > PAGE_BYTES - _HEADER.size:
            raise CheckpointError(f"{place.uri}: a URI of {len(place.uri)} characters is too long for the memory")
        header_checksum = xxhash.xxh3_64_intdigest(_sealed(place.chain, place.number, text))
        self._put(place.at + _HEADER.size, text)
        _HEADER.pack_into(self._bytes, place.at, _MAGIC, place.chain, place.number, len(text), header_checksum)
        part = self._part(place.at, place.end)
        assert part is not None, "a header that was just written"
        return part


def _mapped(descriptor: int, size_bytes: int, *, writes: bool) -> memoryview:
    """The bytes of a file, which are unmapped with the last array or view of them."""
    mapped = AlignedMap(descriptor, size_bytes, writes=writes, populate=writes)
    owner = (ctypes.c_uint8 * size_bytes).from_address(mapped.address)
    # Threads may use it until the process ends.
    weakref.finalize(owner, mapped.unmap).atexit = False
    view = np.ctypeslib.as_array(owner).data
    return view if writes else view.toreadonly()


def _sealed(chain: int, number: int, text: bytes) -> bytes:
    return struct.pack("<QI", chain, number) + text


class _Place(msgspec.Struct, frozen=True):
    uri: str
    file: str
    at: int
    end: int
    chain: int
    number: int
    note: bytes


class PartCopy:
    """A part that is being copied into memory; see `PartMemory.begin`."""

    def __init__(self, memory: PartMemory, place: _Place) -> None:
        self._memory, self._place = memory, place
        self._first = self._position = place.at + PAGE_BYTES
        self._checksum = xxhash.xxh3_64()

    def write(self, data: Buffer) -> bool:
        """Appends bytes; returns False, without appending any, if there is no room for them."""
        view = memoryview(data).cast("B")
        if self._position + len(view) > self._place.end:
            return False
        self._memory._put(self._position, view)
        self._checksum.update(view)
        self._position += len(view)
        return True

    def written(self) -> memoryview:
        """The appended bytes, valid until another part is begun."""
        return self._memory._bytes[self._first : self._position]

    def finish(self) -> HeldPart:
        """Completes the part."""
        return self._memory._seal(self._place, self._position - self._first, self._checksum.intdigest())
