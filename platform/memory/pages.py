"""Pages of a memory file: made in advance, and mapped where huge ones can be used.

One huge page has 2 MiB. A checksum of bytes in pages of 4 KiB, which lie all over the memory, takes about half as long
again as in huge pages. By default, Linux gives memory files no huge pages (`shmem_enabled` is `never`), but joins
existing small pages on request (MADV_COLLAPSE, since Linux 6.1).
"""

from __future__ import annotations

import ctypes
import mmap
import os

HUGE_PAGE_BYTES = 2 * 2**20
_MADV_COLLAPSE = 25  # Linux; the mmap module does not name it
_PROT_NONE = 0
_MAP_FIXED, _MAP_NORESERVE = 0x10, 0x4000
_FAILED = ctypes.c_void_p(-1).value

_library = ctypes.CDLL(None, use_errno=True)
_mmap, _munmap, _madvise = _library.mmap, _library.munmap, _library.madvise
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def _mapped(address: int | None, size_bytes: int, protection: int, flags: int, descriptor: int) -> int:
    found = _mmap(address, size_bytes, protection, flags, descriptor, 0)
    if found is None or found == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(found)


class AlignedMap:
    """A shared mapping of a file from its first byte, at an address at which huge pages can be mapped.

    Args:
        descriptor: of the file, open for reading and, if `writes`, writing; it may be closed afterwards.
        writes: whether its bytes can be changed.
        populate: maps existing pages at once instead of at their first use.

    Attributes:
        address: of the first byte; a multiple of HUGE_PAGE_BYTES.

    Raises:
        OSError: the system refuses it.
    """

    def __init__(self, descriptor: int, size_bytes: int, *, writes: bool, populate: bool = False) -> None:
        self._reserved_bytes = size_bytes + HUGE_PAGE_BYTES
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self._reserved = _mapped(None, self._reserved_bytes, _PROT_NONE, private, -1)
        self.address = -(-self._reserved // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writes else 0)
        flags = mmap.MAP_SHARED | _MAP_FIXED | (mmap.MAP_POPULATE if populate else 0)
        try:
            _mapped(self.address, size_bytes, protection, flags, descriptor)
        except OSError:
            self.unmap()
            raise

    def collapse(self, start: int, size_bytes: int) -> bool:
        """Joins the existing pages of this part to huge ones; False: the system does not."""
        return _madvise(self.address + start, size_bytes, _MADV_COLLAPSE) == 0

    def unmap(self) -> None:
        """Nothing may use the address afterwards; call it once."""
        _munmap(self._reserved, self._reserved_bytes)


def make_pages(descriptor: int, size_bytes: int) -> int:
    """Has the system create all pages of a memory file; its contents, zeros where nothing was written, stay.

    The file has its size before its pages, so that one whose pages cannot be made is seen to be incomplete.

    Returns the number of bytes in huge pages, 0 on systems that make none of such files.

    Raises:
        OSError: there is no room.
    """
    os.truncate(descriptor, size_bytes)
    huge_bytes = _make_huge_pages(descriptor, size_bytes)
    os.posix_fallocate(descriptor, 0, size_bytes)
    return huge_bytes


def _make_huge_pages(descriptor: int, size_bytes: int) -> int:
    whole_bytes = size_bytes // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
    if not whole_bytes:
        return 0
    mapped = AlignedMap(descriptor, whole_bytes, writes=True)
    try:
        for start in range(0, whole_bytes, HUGE_PAGE_BYTES):
            # One small page is enough: joining it creates the others, in the time of creating them alone.
            os.posix_fallocate(descriptor, start, mmap.PAGESIZE)
            if not mapped.collapse(start, HUGE_PAGE_BYTES):
                return start
        return whole_bytes
    finally:
        mapped.unmap()
