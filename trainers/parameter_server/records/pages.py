"""Pages for the rows of a server that is started again, made while it starts.

Every row of a first restore lies on a page that the system has to make, which takes several times as long as copying
what goes there. A server loads its kernels and registers before a restore is ordered: meanwhile a thread makes as many
pages as the server before it had, as a note on the newest part in the node's memory says. The restore's stores use them
like those of a model that was given up, and give back what they do not need.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

import msgspec
import structlog

from elastrec.checkpoints.flash import MOST_NOTE_BYTES
from elastrec.trainers.memory import room_bytes
from elastrec.trainers.parameter_server.records.memory import RecordMemory
from elastrec.trainers.parameter_server.storage import RowStore
from elastrec.trainers.parameter_server.storage.memory import Region, RegionSize, UsedRegions

log = structlog.get_logger(__name__)

_STEP_BYTES = 32 * 2**20
"""Made before the thread looks whether they are wanted: some hundredths of a second."""
_LEFT_BYTES = 256 * 2**20
"""Of the pod's memory, for everything else that it needs until it has restored."""


def note_of(stores: Iterable[RowStore]) -> bytes:
    """What `PageMaker` of the next process needs to know of stores; empty for more of them than a note has room for."""
    note = msgspec.msgpack.encode([size for store in stores for size in store.region_sizes])
    return note if len(note) <= MOST_NOTE_BYTES else b""


class PageMaker:
    """Opens the node's memory and makes pages, in a thread of its own.

    Nothing is made where the memory holds no part, or where the pod's limit has no room for all of it.

    Args:
        memory: of the node.
        room: bytes that the process may still take.

    Attributes:
        made_bytes, seconds: so far, and how long that took.
    """

    def __init__(self, memory: RecordMemory, room: Callable[[], int] = room_bytes) -> None:
        self.made_bytes, self.seconds = 0, 0.0
        self._memory, self._room = memory, room
        self._regions: list[Region] = []
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begins; once."""
        self._thread = threading.Thread(target=self._run, name="pages", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until all of them are made."""
        if self._thread is not None:
            self._thread.join()

    def take(self) -> UsedRegions:
        """Ends it; what it has made, once."""
        self._is_over.set()
        self.wait()
        regions, self._regions = self._regions, []
        return UsedRegions(unused=regions)

    def _run(self) -> None:
        # The memory's own pages, which are no part of what the process is limited to, are not mapped yet.
        room = self._room() - _LEFT_BYTES
        opened = self._memory.opened()
        parts = [] if opened is None else opened.parts()
        if not parts or not parts[-1].note:
            return
        began, sizes = time.monotonic(), msgspec.msgpack.decode(parts[-1].note, type=list[RegionSize])
        if (needed := sum(size.used_bytes for size in sizes)) > room:
            log.warning(
                "pages_not_made", needed_bytes=needed, room_bytes=room,
                consequence="a restore takes longer", remedy="give the server more memory",
            )  # fmt: skip
            return
        for size in sizes:
            region = Region(size.size_bytes, huge=size.huge)
            self._regions.append(region)
            for start in range(0, size.used_bytes, _STEP_BYTES):
                if self._is_over.is_set():
                    return
                end = min(start + _STEP_BYTES, size.used_bytes)
                region.make_pages(end)
                self.made_bytes, self.seconds = self.made_bytes + end - start, time.monotonic() - began
        log.info("pages_made", bytes=self.made_bytes, seconds=round(self.seconds, 3))
