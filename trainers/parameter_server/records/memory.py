"""The node's memory for a server's newest parts: opened on demand, with repeated attempts.

A starting server opens it before it serves, because mapping takes time.
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
        path: of the memory; None: there is none.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._memory: PartMemory | None = None
        self._flusher: Flusher | None = None

    @property
    def mapped_bytes(self) -> int:
        """Bytes of the process's resident memory that belong to this memory."""
        return self._memory.size_bytes if self._memory is not None else 0

    def opened(self) -> PartMemory | None:
        """The memory; None: there is none, or it cannot be used now, which is logged."""
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
        """Ends a running copy to the store; the memory is kept."""
        if self._flusher is not None:
            self._flusher.close()
