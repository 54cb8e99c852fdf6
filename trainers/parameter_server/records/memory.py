"""The memory that a server's node keeps for its newest parts: opened when it is needed, and tried again.

Mapping it takes a moment, so that a server that starts opens it before it serves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import structlog

from elastrec.checkpoints.flash import HeldPart, MemoryUnusableError, PartMemory
from elastrec.trainers.parameter_server.records.flusher import Flusher

log = structlog.get_logger(__name__)


class RecordMemory:
    """One server's.

    Args:
        path: of the memory; None: nobody keeps any.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._memory: PartMemory | None = None
        self._flusher: Flusher | None = None

    @property
    def mapped_bytes(self) -> int:
        """What of the process's resident memory is this memory, not its own."""
        return self._memory.size_bytes if self._memory is not None else 0

    def opened(self) -> PartMemory | None:
        """None: there is none, or it cannot be used now, which is said."""
        if self._path is None:
            return None
        with self._lock:
            if self._memory is None:
                try:
                    self._memory = PartMemory(self._path, writes=True)
                except MemoryUnusableError as error:
                    log.warning("memory_unusable", reason=str(error), consequence="records lie in the store alone")
                else:
                    self._flusher = Flusher(self._path)
                    held = [part.uri for part in self._memory.parts()]
                    log.info("memory_opened", path=str(self._path), bytes=self._memory.size_bytes, parts=held)
            return self._memory

    def flush(self, part: HeldPart, is_wanted: Callable[[], bool], progress: Callable[[], None]) -> None:
        """See Flusher."""
        assert self._flusher is not None, "parts lie in an opened memory"
        self._flusher.flush(part, is_wanted, progress)

    def close(self) -> None:
        """Ends a copy to the store that is under way; the memory stays."""
        if self._flusher is not None:
            self._flusher.close()
