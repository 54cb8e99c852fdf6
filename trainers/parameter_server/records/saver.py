"""Writes a server's parts of checkpoint records in a thread of its own, so that a hanging store does not stop the
server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

from elastrec.checkpoints import PartManifest, StoreError, open_store
from elastrec.checkpoints.flash import MemoryStore
from elastrec.platform.specs.errors import CheckpointError
from elastrec.platform.transport.messages.directive import SaveOrder
from elastrec.platform.transport.messages.job import SavedPart
from elastrec.trainers.parameter_server.records.memory import RecordMemory
from elastrec.trainers.parameter_server.records.pages import note_of
from elastrec.trainers.parameter_server.records.share import save_part
from elastrec.trainers.parameter_server.serving.server import ParameterServer

log = structlog.get_logger(__name__)


class Saver:
    """One part at a time, of the newest order: the next one waits until the store has ended the previous one.

    Args:
        froze: called with the id of every order whose cut is complete, so that pushes may continue.
        report: called with every part that was written, or failed, while its order was valid.
        fail: called with an error that is not of the store; the thread ends.
        copied: called with the id of every order whose part is in memory, before it is in the store.
        memory: parts are copied into it first, and from there to the store.
    """

    def __init__(
        self,
        server: ParameterServer,
        froze: Callable[[str], None],
        report: Callable[[SavedPart], None],
        fail: Callable[[Exception], None],
        copied: Callable[[str], None] = lambda order_id: None,
        memory: RecordMemory | None = None,
    ) -> None:
        self._server = server
        self._copied = copied
        self._memory = memory or RecordMemory(None)
        self._froze = froze
        self._report = report
        self._fail = fail
        self._changed = threading.Condition()
        self._order: SaveOrder | None = None
        self._writing = ""
        threading.Thread(target=self._run, name="saver", daemon=True).start()

    @property
    def writing(self) -> str:
        """The order into whose folder the thread may be writing, valid or not; empty: none."""
        return self._writing

    @property
    def order_id(self) -> str:
        """The valid order whose part is not reported yet; empty: none."""
        order = self._order
        return order.order_id if order is not None else ""

    def begin(self, order: SaveOrder) -> None:
        """Writes the part of an order as soon as the previous part has ended."""
        with self._changed:
            self._order = order
            self._changed.notify_all()

    def cancel(self) -> None:
        """Ends the current order: the server serves again; a part that is being written is dropped."""
        with self._changed:
            self._order = None
        self._server.thaw()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._order is not None)
                assert self._order is not None
                order = self._order
                self._writing = order.order_id
            try:
                part = self._write(order)
            except Exception as error:
                self._fail(error)
                return
            if self._order is order:
                # Before it is cleared, because a directive in between orders the same part again.
                self._report(part)
            else:
                log.warning("part_given_up", order=order.order_id, uri=order.uri)
            with self._changed:
                self._writing = ""
                if self._order is order:
                    self._order = None

    def _write(self, order: SaveOrder) -> SavedPart:
        try:
            part = self._save(order)
            return SavedPart(order_id=order.order_id, manifest_json=part.to_json())
        except (CheckpointError, OSError) as error:
            log.warning("part_not_saved", uri=order.uri, reason=str(error))
            problem, away = f"{type(error).__name__}: {error}", isinstance(error, StoreError)
            return SavedPart(order_id=order.order_id, manifest_json=b"", problem=problem, store_away=away)

    def _save(self, order: SaveOrder) -> PartManifest:
        memory = self._memory.opened()
        store = None
        if memory is not None:
            note = note_of(self._server.stores)
            store = MemoryStore(open_store(order.uri), memory, is_full=not order.base, note=note)

        def is_in_force() -> bool:
            return self._order is order

        def gets_on() -> None:
            self._server.transfers += 1

        began = time.monotonic()
        part = save_part(
            self._server,
            store or order.uri,
            is_in_force,
            cut=order.order_id,
            base=order.base,
            froze=lambda: self._froze(order.order_id),
        )
        if store is not None and store.in_memory is not None:
            copied = time.monotonic()
            self._copied(order.order_id)
            self._memory.flush(store.in_memory, is_in_force, gets_on)
            log.info(
                "part_durable", order=order.order_id, bytes=part.size_bytes, copy_seconds=round(copied - began, 3),
                flush_seconds=round(time.monotonic() - copied, 3),
            )  # fmt: skip
        return part
