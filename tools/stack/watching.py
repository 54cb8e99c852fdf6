"""Restarts services of a stack that have ended or hang, as init systems with probes do in production."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import structlog

from tools.stack.processes import ServiceError

if TYPE_CHECKING:
    from tools.stack.services import ServiceStack

log = structlog.get_logger(__name__)

_MOST_RESTARTS = 3
_LOOK_SECONDS = 1.0
# Chosen: on a busy machine heartbeats come up to 20 s late, and 15 to 30 s without one are unhealthy for Airflow.
_UNHEALTHY_SECONDS = 90.0
# Time for a hanging process to write the stacks of its threads.
_TRACE_SECONDS = 2.0
_PARTS = {"scheduler": "scheduler", "triggerer": "triggerer", "dag-processor": "dag_processor"}
"""Services on Airflow's health page, and their names there."""


class Watch:
    """Watches the services of one stack.

    Args:
        unhealthy_seconds: time for which Airflow reports a service as unhealthy before it is restarted.
        clock: a monotonic clock in seconds.
    """

    def __init__(
        self,
        stack: ServiceStack,
        unhealthy_seconds: float = _UNHEALTHY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stack = stack
        self._clock = clock
        self._unhealthy_seconds = unhealthy_seconds
        self._restarts: Counter[str] = Counter()
        self._unhealthy_since: dict[str, float] = {}

    def look(self) -> list[str]:
        """Restarts services that have ended or hang; returns their names.

        Raises:
            ServiceError: one of them has ended for the fourth time; the message ends with its log.
        """
        health = self._stack.airflow_health()
        with self._stack.changes:
            ended = [name for name, service in self._stack.services.items() if service.process.poll() is not None]
            for name in ended:
                self._restart(name, "ended on its own")
            hanging = [name for name in _PARTS if name in self._stack.services and self._hangs(name, health)]
            for name in hanging:
                self._write_traces(name)
                self._restart(name, f"unhealthy for {self._unhealthy_seconds:.0f} s")
        return ended + hanging

    def _hangs(self, name: str, health: dict[str, str]) -> bool:
        if health.get(_PARTS[name]) != "unhealthy":
            self._unhealthy_since.pop(name, None)
            return False
        since = self._unhealthy_since.setdefault(name, self._clock())
        return self._clock() - since >= self._unhealthy_seconds

    def _write_traces(self, name: str) -> None:
        """Airflow's processes write the stacks of their threads to their log on SIGQUIT."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._stack.services[name].process.pid, signal.SIGQUIT)
        time.sleep(_TRACE_SECONDS)

    def _restart(self, name: str, why: str) -> None:
        service = self._stack.services[name]
        self._unhealthy_since.pop(name, None)
        self._restarts[name] += 1
        if self._restarts[name] > _MOST_RESTARTS:
            service.check_alive()
            raise ServiceError(
                f"{name}: {why} for the fourth time; its log {service.log} ends with:\n{service.log_tail()}"
            )
        log.warning("service_restarted", service=name, why=why, log_ends=service.log_tail())
        self._stack.restart(name)


@contextlib.contextmanager
def keep_running(stack: ServiceStack) -> Iterator[None]:
    """Watches a stack in a thread until the block ends."""
    watch = Watch(stack)
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(_LOOK_SECONDS):
            try:
                watch.look()
            except ServiceError as error:
                log.error("service_given_up", error=str(error))
                return

    thread = threading.Thread(target=look, name="keep-running")
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
