"""Pages for the rows of a restarted server, created while it starts.

In a first restore, the system must create the page of every row, which takes several times as long as copying its
contents. Before a restore is ordered, a server loads its kernels and registers: during this time, a thread creates as
many pages as the previous server had, according to a note on the newest part in the node's memory. The restore's stores
use them like those of an earlier model, and return unused ones.
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
"""Size of a step, after which the thread checks whether pages are still wanted: some hundredths of a second."""
_LEFT_BYTES = 256 * 2**20
"""Share of the pod's memory for all other needs until it has restored."""


def note_of(stores: Iterable[RowStore]) -> bytes:
    """The sizes of stores for the `PageMaker` of the next process; empty for more stores than fit into a note."""
    note = msgspec.msgpack.encode([size for store in stores for size in store.region_sizes])
    return note if len(note) <= MOST_NOTE_BYTES else b""


class PageMaker:
    """Opens the node's memory and creates pages, in a thread of its own.

    It creates none if the memory contains no part, or if they do not fit into the pod's limit.

    Args:
        memory: of the node.
        room: bytes that the process may still use.

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
        """Starts the thread; call it once."""
        self._thread = threading.Thread(target=self._run, name="pages", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Waits until all pages are created."""
        if self._thread is not None:
            self._thread.join()

    def take(self) -> UsedRegions:
        """Ends the thread; returns the created pages once."""
        self._is_over.set()
        self.wait()
        regions, self._regions = self._regions, []
        return UsedRegions(unused=regions)

    def _run(self) -> None:
        # The memory's own pages, which do not count for the process's limit, are not mapped yet.
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
