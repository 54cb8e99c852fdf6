"""The orders of a server's master and their execution, shared by the threads of its pod.

`pod.py` executes the orders; this module never waits for a network or a store.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import structlog

from elastrec.platform.transport.messages.directive import Directive, PodOrders, RestoreOrder, SaveOrder
from elastrec.platform.transport.messages.job import RestoreProblem, SavedPart

log = structlog.get_logger(__name__)


class Orders:
    """Newest directive and reports for the next heartbeat.

    Args:
        report: asks for a heartbeat soon.

    Attributes:
        pod: the master's orders for this pod alone; None: none yet.
        directive: the newest one; None: the server has not registered.
        restored_order_id: of the last restore; empty: there was none.
        failure: ends the process; None: there was none.
    """

    def __init__(self, report: Callable[[], None]) -> None:
        self._report = report
        self._changed = threading.Condition()
        self.pod: PodOrders | None = None
        self.directive: Directive | None = None
        self.restored_order_id = ""
        self.failure: Exception | None = None
        self._reached_version = 0
        self._restore_problem: RestoreProblem | None = None
        self._frozen_order_id = self._in_memory_order_id = ""
        self._saved: SavedPart | None = None

    def take(self, directive: Directive) -> None:
        """Stores a directive from the master's answer, unless it is older than the present one."""
        with self._changed:
            current = self.directive
            if current is not None and (directive.order < current.order or directive == current):
                return
            self.directive = directive
            self._changed.notify_all()
        log.info(
            "directive", version=directive.version, mode=str(directive.mode), generation=directive.generation,
            epoch=directive.routing.epoch, members=len(directive.members),
            save=directive.save.order_id if directive.save else "",
            restore=directive.restore.order_id if directive.restore else "",
        )  # fmt: skip

    def wait(self, done: Directive | None, seconds: float) -> tuple[Directive | None, Exception | None, bool]:
        """Waits for another directive than `done` or for a failure, at most for a number of seconds.

        Returns both, and whether it waited.
        """
        with self._changed:
            if waits := not self.has_news(done):
                self._changed.wait(seconds)
            return self.directive, self.failure, waits

    def has_news(self, done: Directive | None) -> bool:
        """Whether there is another directive than `done`, or a failure."""
        return self.directive is not done or self.failure is not None

    def failed(self, error: Exception) -> None:
        """Records a failure that ends the process."""
        with self._changed:
            self.failure = error
            self._changed.notify_all()

    def reached(self, directive: Directive) -> None:
        """Records that all orders of a directive are executed."""
        with self._changed:
            self._reached_version = max(self._reached_version, directive.version)
        self._report()

    # Restores

    def is_restored(self, order: RestoreOrder) -> bool:
        return order.order_id == self.restored_order_id

    def restored(self, order: RestoreOrder) -> None:
        """Discards earlier saves, because the server no longer has their model."""
        with self._changed:
            self.restored_order_id, self._saved, self._restore_problem = order.order_id, None, None

    def not_restored(self, problem: RestoreProblem, directive: Directive, pause_seconds: float) -> bool:
        """Reports a problem; returns whether to try the restore again.

        It is tried again after the pause, unless the record is damaged or there is another directive.
        """
        with self._changed:
            self._restore_problem = problem
            self._report()
            return not problem.is_damaged and not self._changed.wait_for(
                lambda: self.directive is not directive, pause_seconds
            )

    # Saves

    def has_saved(self, order: SaveOrder) -> bool:
        """Whether the part of an order is written, but not yet reported to the master."""
        return self._saved is not None and self._saved.order_id == order.order_id

    def froze(self, order_id: str) -> None:
        """Records that the saved rows may change again."""
        with self._changed:
            self._frozen_order_id = order_id
        self._report()

    def copied(self, order_id: str) -> None:
        """Records that the part is in the node's memory."""
        with self._changed:
            self._in_memory_order_id = order_id
        self._report()

    def saved(self, part: SavedPart) -> None:
        """Records that the part is in the store."""
        with self._changed:
            self._saved = part
            self._changed.notify_all()
        self._report()

    def saved_is_known(self) -> None:
        """Clears saves, because the master no longer orders one and so knows their results."""
        with self._changed:
            self._saved = None

    @contextmanager
    def reports(self) -> Iterator[dict[str, Any]]:
        """Fields of the next heartbeat; none of them changes until the block ends.

        So a heartbeat never reports a part that has just been saved as neither being written nor saved.
        """
        with self._changed:
            yield {
                "reached_version": self._reached_version,
                "frozen_order_id": self._frozen_order_id,
                "in_memory_order_id": self._in_memory_order_id,
                "saved": self._saved,
                "restored_order_id": self.restored_order_id,
                "restore_problem": self._restore_problem,
                "orders_version": self.pod.version if self.pod else 0,
            }
