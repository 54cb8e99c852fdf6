"""The client of a pod for its master, which may have moved: the newest term in the checkpoint store has its address."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import structlog

from elastrec.checkpoints import newest_term
from elastrec.platform.specs import environment
from elastrec.platform.specs.errors import AuthenticationError, CheckpointError, ClusterError, TransportError
from elastrec.platform.transport import RpcClient, TlsConfig
from elastrec.platform.transport.messages.directive import Directive

log = structlog.get_logger(__name__)
Answer = TypeVar("Answer", bound=msgspec.Struct)
_LOOK_SECONDS = 2.0
"""Seconds between two checks of the terms while the master does not answer."""


class MasterGoneError(TransportError):
    """No master has answered for `faults.master_timeout`; the pod must end."""


@dataclass(frozen=True)
class TermPlace:
    """The location of a job's terms, to find a master that has moved.

    Attributes:
        store, job_name, job_id: of the terms; without a store, terms are not read.
        timeout_seconds: a pod without an answer from a master for this long ends.
    """

    store: str = field(default="", repr=False)
    job_name: str = ""
    job_id: str = ""
    timeout_seconds: float = float("inf")

    @staticmethod
    def read(variables: Mapping[str, str] = os.environ) -> TermPlace:
        """Reads the location from the environment and the files of a pod.

        Raises:
            ClusterError: a variable or the store's file is missing, or a variable is no number; names it.
        """
        needed = (environment.FILES, environment.JOB_NAME, environment.JOB, environment.MASTER_TIMEOUT)
        missing = [name for name in needed if not variables.get(name)]
        if missing:
            raise ClusterError(f"the environment variables {missing} are missing; a cluster backend sets them for pods")
        try:
            timeout_seconds = float(variables[environment.MASTER_TIMEOUT])
        except ValueError:
            value = variables[environment.MASTER_TIMEOUT]
            raise ClusterError(f"{environment.MASTER_TIMEOUT}: {value!r} is no number of seconds") from None
        files, job_name, job_id = (variables[name] for name in needed[:3])
        try:
            store = (Path(files) / environment.STORE_FILE).read_text()
        except OSError as error:
            raise ClusterError(f"the URI of the job's store cannot be read: {error}") from error
        return TermPlace(store, job_name, job_id, timeout_seconds)


class MasterClient:
    """Calls the master of the highest term that this pod knows; thread-safe.

    Args:
        address: of the master when the pod was created.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        address: str,
        token: str,
        tls: TlsConfig | None,
        place: TermPlace,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._place = place
        self._token, self._tls = token, tls
        self._clock = clock
        self._lock = threading.Lock()
        self._looking = threading.Lock()
        self._client = RpcClient(address, token, tls)
        self._term = 0
        self._answered_at = clock()
        self._looked_at = float("-inf")

    @property
    def address(self) -> str:
        return self._client.address

    def call(self, message: msgspec.Struct, answer: type[Answer], **options: Any) -> Answer:
        """Like `RpcClient.call`; after a failed call, the next one may go to a master at another address.

        Raises:
            MasterGoneError: no master has answered for the timeout.
            TransportError: as in `RpcClient.call`; retryable also for an answer of a superseded master.
        """
        client = self._client
        try:
            found = client.call(message, answer, **options)
        except TransportError as error:
            is_refusal = isinstance(error, AuthenticationError)
            if not error.retryable and not is_refusal:
                raise
            # Another job's master may use the old address now, and refuses this job's token.
            if self._follow(client, at_once=is_refusal):
                raise TransportError(f"the master has moved to {self.address}", retryable=True) from error
            self._check_timeout(error)
            raise
        directive = getattr(found, "directive", None)
        if isinstance(directive, Directive):
            with self._lock:
                known, self._term = self._term, max(self._term, directive.term)
            if directive.term < known:
                self._follow(client)
                superseded = TransportError(
                    f"the master at {client.address} has term {directive.term}, term {known} has begun", retryable=True
                )
                self._check_timeout(superseded)
                raise superseded
        self._answered_at = self._clock()
        return found

    def _check_timeout(self, error: TransportError) -> None:
        silent_seconds = self._clock() - self._answered_at
        if error.retryable and silent_seconds > self._place.timeout_seconds:
            raise MasterGoneError(
                f"no master has answered for {silent_seconds:.0f} s, more than spec.faults.master_timeout "
                f"{self._place.timeout_seconds:g}; the last: {error}"
            ) from error

    def _follow(self, client: RpcClient, *, at_once: bool = False) -> bool:
        """Reads the newest term, not too often; returns whether its master has another address than `client`."""
        place = self._place
        if self._client is not client:
            return True
        # Only one thread reads, so that a hanging store does not delay the others.
        if not place.store or not self._looking.acquire(blocking=False):
            return False
        try:
            if not at_once and self._clock() - self._looked_at < _LOOK_SECONDS:
                return False
            self._looked_at = self._clock()
            term = newest_term(place.store, place.job_name, place.job_id)
            if term is None or not term.address or term.term < self._term or term.address == client.address:
                return False
            log.info("master_moved", term=term.term, before=client.address, address=term.address)
            self._client = RpcClient(term.address, self._token, self._tls)
            client.close()
            return True
        except CheckpointError as error:
            log.warning("master_not_looked_up", reason=str(error))
            return False
        finally:
            self._looking.release()

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()
