"""Memory that outlives the process that writes it, and the parts of records that it holds.

It is one file of a memory file system. Its owner, the node, has made all of its pages before anything is copied: a page
that comes into being costs several times as much as copying it. The file has two halves. A part that holds
everything begins the half that does not hold the newest parts, and parts that build on it follow behind it: so the last
complete ones stay while the next ones are written.

A half is a row of parts, each behind a page with its header:

    magic, chain u64, number u32, length u32, xxh3-64 of the description u64 | description (msgpack) | bytes of the part

The header of a part is wiped before its bytes change and written after the last of them, so a part whose writer was
killed is not there. The row ends at the first header that is not the next one of its chain. What the memory holds is a
copy of what the store has, or is about to get: nothing is lost with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import xxhash

from elastrec.platform.specs.errors import CheckpointError

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
    """The memory is missing, too small, not there in full, or another process writes it."""


class _Description(msgspec.Struct, frozen=True, array_like=True):
    uri: str
    file: str
    size_bytes: int
    checksum: int
    note: bytes = b""


class HeldPart(msgspec.Struct, frozen=True):
    """A part that lies in memory.

    Attributes:
        uri, file: of its record, and its key there.
        start: of its first byte in the memory; checksum: xxh3-64 of its bytes.
        chain: rises with every part that holds everything; number: of the part in its chain, from 0.
        note: of its writer, for the process after it.
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
    """One process's view of the memory. Not thread-safe, but for `find` and `read`.

    Args:
        path: of the file.
        writes: takes the memory for this process; one process at a time may write it.

    Attributes:
        read_bytes: by `read`, so far.

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
                access = mmap.PROT_READ | (mmap.PROT_WRITE if writes else 0)
                flags = mmap.MAP_SHARED | (mmap.MAP_POPULATE if writes else 0)
                self._map = mmap.mmap(descriptor, status.st_size, flags, access)
            except BlockingIOError:
                raise MemoryUnusableError(f"{path}: another process writes this memory") from None
            except (OSError, ValueError) as error:
                raise MemoryUnusableError(f"{path}: the memory cannot be used: {error}") from error
            # The lock lasts as long as the descriptor.
            stack.pop_all()
        self._descriptor = descriptor
        self._bytes = memoryview(self._map)
        self.size_bytes = status.st_size
        self._half_bytes = status.st_size // 2 // PAGE_BYTES * PAGE_BYTES

    def close(self) -> None:
        """Gives the view back; the memory stays."""
        self._bytes.release()
        # What was read and is still held keeps its pages.
        with contextlib.suppress(BufferError):
            self._map.close()
        os.close(self._descriptor)

    def parts(self) -> list[HeldPart]:
        """What both halves hold, the newest chain last."""
        halves = [self._row(half * self._half_bytes) for half in (0, 1)]
        return [part for row in sorted(halves, key=lambda row: row[0].chain if row else -1) for part in row]

    def find(self, uri: str, file: str) -> HeldPart | None:
        """A complete part; None: it is not held."""
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
        """The part whose header lies there; None: it has none that is whole."""
        magic, chain, number, length, checksum = _HEADER.unpack_from(self._bytes, at)
        if magic != _MAGIC or length > PAGE_BYTES - _HEADER.size:
            return None
        text = bytes(self._bytes[at + _HEADER.size : at + _HEADER.size + length])
        if xxhash.xxh3_64_intdigest(_sealed(chain, number, text)) != checksum:
            return None
        try:
            said = msgspec.msgpack.decode(text, type=_Description)
        except msgspec.MsgspecError:
            return None
        part = HeldPart(
            said.uri, said.file, at + PAGE_BYTES, said.size_bytes, said.checksum, chain, number, said.note
        )  # fmt: skip
        return part if part.start + part.size_bytes <= end else None

    def read(self, part: HeldPart, start: int, length: int) -> bytes | memoryview | None:
        """Bytes of a part; None: the memory holds another one by now.

        The process that writes the memory gets no copy: they are those of the part until it begins another one.
        """
        view = self._bytes[part.start + start : part.start + start + length]
        data = view if self._writes else bytes(view)
        self.read_bytes += length
        # After the copy: who overwrites a part wipes its header first.
        return data if self._is_held(part) else None

    def _is_held(self, part: HeldPart) -> bool:
        return self._part(part.start - PAGE_BYTES, self.size_bytes) == part

    def begin(self, uri: str, file: str, *, is_full: bool, note: bytes = b"") -> PartCopy:
        """Room for a part; it counts once `PartCopy.finish` was called.

        Args:
            note: see HeldPart; at most MOST_NOTE_BYTES.
            is_full: it builds on no other part: what the other half holds stays, what this half held is gone.
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
        # Without the GIL: requests are served meanwhile.
        np.copyto(np.frombuffer(self._bytes[at : at + len(view)], np.uint8), np.frombuffer(view, np.uint8))

    def _seal(self, place: _Place, size_bytes: int, checksum: int) -> HeldPart:
        text = msgspec.msgpack.encode(_Description(place.uri, place.file, size_bytes, checksum, place.note))
        if len(text) > PAGE_BYTES - _HEADER.size:
            raise CheckpointError(f"{place.uri}: a URI of {len(place.uri)} characters is too long for the memory")
        header_checksum = xxhash.xxh3_64_intdigest(_sealed(place.chain, place.number, text))
        self._put(place.at + _HEADER.size, text)
        _HEADER.pack_into(self._map, place.at, _MAGIC, place.chain, place.number, len(text), header_checksum)
        part = self._part(place.at, place.end)
        assert part is not None, "a header that was just written"
        return part


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
        """Appends bytes; false: there is no room for them, and nothing was appended."""
        view = memoryview(data).cast("B")
        if self._position + len(view) > self._place.end:
            return False
        self._memory._put(self._position, view)
        self._checksum.update(view)
        self._position += len(view)
        return True

    def written(self) -> memoryview:
        """What was appended, until something else is begun."""
        return self._memory._bytes[self._first : self._position]

    def finish(self) -> HeldPart:
        """The part is complete."""
        return self._memory._seal(self._place, self._position - self._first, self._checksum.intdigest())
