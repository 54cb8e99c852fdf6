"""The folder of a record as a store: parts are written to memory first, and read from memory if they are there."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import structlog

from elastrec.checkpoints.flash.memory import HeldPart, PartCopy, PartMemory
from elastrec.checkpoints.stores.store import Store, StoreWriter

if TYPE_CHECKING:
    from typing_extensions import Buffer

_log = structlog.get_logger(__name__)


class MemoryStore(Store):
    """A record's folder in a store, and the memory that contains some of its parts.

    Objects that are written here are parts. A part that does not fit into the memory is written directly to the store.
    The caller must copy the other parts from `in_memory` to the store. Bytes are not checked here: the reader checks
    them array by array, while they are in the processor's cache, and calls `distrust` for damaged ones.

    Args:
        base: rooted at the record's folder.
        is_full, note: see `PartMemory.begin`.

    Attributes:
        in_memory: the part that was written last, if it is only in memory.
    """

    def __init__(self, base: Store, memory: PartMemory, *, is_full: bool = True, note: bytes = b"") -> None:
        self.uri = base.uri
        self.in_memory: HeldPart | None = None
        self._base, self._memory, self._is_full, self._note = base, memory, is_full, note
        self._held: dict[str, HeldPart | None] = {}
        self._distrusted: set[str] = set()
        self._lock = threading.Lock()

    def open_write(self, key: str) -> StoreWriter:
        self.in_memory = None
        copy = self._memory.begin(self.uri, key, is_full=self._is_full, note=self._note)
        return _Writer(self, self._base, key, copy)

    def _part(self, key: str) -> HeldPart | None:
        """A part in memory; None: it is read from the store."""
        with self._lock:
            if key not in self._held:
                self._held[key] = self._memory.find(self.uri, key)
            return self._held[key]

    def get_range(self, key: str, start: int, length: int) -> bytes | memoryview:
        part = self._part(key)
        if part is not None and start + length <= part.size_bytes:
            data = self._memory.read(part, start, length)
            if data is not None:
                return data
            self._held[key] = None
        return self._base.get_range(key, start, length)

    def distrust(self, key: str) -> bool:
        with self._lock:
            if key in self._distrusted:
                # Another thread has read the same bytes and has checked them first.
                return True
            if self._held.get(key) is None:
                return False
            self._held[key] = None
            self._distrusted.add(key)
        _log.error(
            "memory_copy_damaged", record=self.uri, part=key, memory=str(self._memory.path),
            consequence="the rest of the part is read from the store",
        )  # fmt: skip
        return True

    def size(self, key: str) -> int | None:
        part = self._part(key)
        return self._base.size(key) if part is None else part.size_bytes

    # As the store has it

    def get(self, key: str) -> bytes:
        return self._base.get(key)

    def get_if_exists(self, key: str) -> bytes | None:
        return self._base.get_if_exists(key)

    def keys(self, prefix: str = "") -> list[str]:
        return self._base.keys(prefix)

    def folders(self, prefix: str = "") -> list[str]:
        return self._base.folders(prefix)

    def delete(self, key: str) -> None:
        self._base.delete(key)

    def delete_tree(self, prefix: str) -> None:
        self._base.delete_tree(prefix)

    def _create(self, key: str, data: Buffer) -> bool:
        return self._base._create(key, data)

    @property
    def _place(self) -> str:
        return self._base._place


class _Writer(StoreWriter):
    """Writes to memory while there is room, otherwise to the store."""

    def __init__(self, store: MemoryStore, base: Store, key: str, copy: PartCopy) -> None:
        self._store, self._base, self._key, self._copy = store, base, key, copy
        self._plain: StoreWriter | None = None

    def write(self, data: Buffer) -> None:
        if self._plain is None and not self._copy.write(data):
            written = self._copy.written()
            _log.warning(
                "part_exceeds_memory", record=self._store.uri, part=self._key, copied_bytes=len(written),
                remedy="raise spec.checkpoint.memory",
            )  # fmt: skip
            self._plain = self._base.open_write(self._key)
            self._plain.write(written)
        if self._plain is not None:
            self._plain.write(data)

    def close(self) -> None:
        if self._plain is not None:
            self._plain.close()
        else:
            self._store.in_memory = self._copy.finish()

    def abort(self) -> None:
        if self._plain is not None:
            self._plain.abort()
