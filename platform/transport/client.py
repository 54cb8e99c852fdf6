"""The client half of the RPC stack: deadlines, retries with idempotency keys, and streams."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

import msgspec
import pyarrow.flight as flight

from elastrec.platform.specs.errors import AuthenticationError, IncompatibleError, TransportError
from elastrec.platform.transport.security import TlsConfig
from elastrec.platform.transport.server import Envelope, too_large
from elastrec.platform.transport.streams import MEND, ArrayStream, FindStreams, StreamsAt
from elastrec.platform.transport.versions import code_version

Answer = TypeVar("Answer", bound=msgspec.Struct)
_FIND_SECONDS = 2.0
_RETRYABLE = (flight.FlightUnavailableError, flight.FlightTimedOutError, flight.FlightCancelledError)


def _translate(error: Exception, address: str) -> TransportError:
    text = str(error).split(". gRPC client debug context")[0].split(". Detail:")[0]
    # A refusal that meets a write arrives as another kind of error with the refusal in its text.
    if isinstance(error, flight.FlightUnauthenticatedError) or "Unauthenticated" in str(error):
        return AuthenticationError(f"{address} refused the token: {text}")
    if f"{IncompatibleError.__name__}:" in text:
        return IncompatibleError(f"{address}: {text}; this process runs elastrec {code_version()}; {MEND}")
    return TransportError(f"{address}: {text}", retryable=isinstance(error, _RETRYABLE))


class RpcClient:
    """Calls one server; safe to use from several threads.

    Args:
        address: `host:port`.
        token: sent with every call.
        tls: the root to trust, or None for plain TCP.
    """

    # A server that comes back must be found at once, not after gRPC's two-minute back-off.
    channel_options: ClassVar[tuple[tuple[str, int], ...]] = (
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.max_reconnect_backoff_ms", 500),
    )

    def __init__(self, address: str, token: str, tls: TlsConfig | None = None) -> None:
        if not (token.isascii() and token.isprintable()):
            # gRPC ends the whole process when it is given such a header.
            raise AuthenticationError(
                f"the token for {address} is not allowed: it holds characters other than printable ASCII; copy it again"
            )
        self.address = address
        self._token = token
        self._tls = tls
        self._headers = [(b"authorization", f"Bearer {token}".encode())]
        self._flight: flight.FlightClient | None = None
        self._lock = threading.Lock()
        self._standing: ArrayStream | None = None
        self._one_at_a_time = threading.Lock()

    def _connection(self) -> flight.FlightClient:
        with self._lock:
            if self._flight is None:
                scheme = "grpc+tls" if self._tls else "grpc+tcp"
                options: dict[str, Any] = {"tls_root_certs": self._tls.root_pem} if self._tls else {}
                channel_options = list(self.channel_options)
                self._flight = flight.connect(f"{scheme}://{self.address}", generic_options=channel_options, **options)
            return self._flight

    def call(
        self,
        message: msgspec.Struct,
        answer: type[Answer],
        *,
        timeout_seconds: float = 10.0,
        attempt_seconds: float | None = None,
        remember: bool = False,
    ) -> Answer:
        """Sends a message and returns the answer, retrying until the deadline while the server is out of reach.

        Args:
            answer: expected type.
            timeout_seconds: over all attempts.
            attempt_seconds: deadline of one attempt; default: the whole time.
            remember: give the call an idempotency key, so that a retry of an executed call is not executed again.

        Raises:
            AuthenticationError: wrong token.
            TransportError: the server answered with an error, or did not answer in time.
        """
        key = uuid.uuid4().hex if remember else ""
        body = msgspec.msgpack.encode(Envelope(key, msgspec.Raw(msgspec.msgpack.encode(message))))
        refusal = too_large(type(message).__name__, len(body))
        if refusal:
            raise TransportError(refusal)
        action = flight.Action(type(message).__name__, body)
        deadline = time.monotonic() + timeout_seconds
        pause = 0.05
        while True:
            left = deadline - time.monotonic()
            options = flight.FlightCallOptions(
                timeout=max(0.001, min(left, attempt_seconds or left)), headers=self._headers
            )
            try:
                results = list(self._connection().do_action(action, options))
                return msgspec.msgpack.decode(memoryview(results[0].body), type=answer)
            except (msgspec.MsgspecError, IndexError) as error:
                raise TransportError(f"{self.address}: the answer is no {answer.__name__}: {error}") from error
            except flight.FlightError as error:
                problem = _translate(error, self.address)
            except (OSError, ValueError) as error:
                problem = TransportError(f"{self.address}: {error}", retryable=isinstance(error, OSError))
            pause = _pause_or_raise(problem, deadline, pause)

    def call_often(self, message: msgspec.Struct, answer: type[Answer], *, timeout_seconds: float) -> Answer:
        """As `call`, over a stream that stays open: for what is asked every second, at a third of a call's CPU.

        The server must have named the message in `often`. Calls of several threads wait for each other.

        Args:
            answer: always the same for one client.
            timeout_seconds: over all attempts.

        Raises:
            AuthenticationError: wrong token.
            TransportError: the server answered with an error, or did not answer in time.
        """
        deadline = time.monotonic() + timeout_seconds
        if not self._one_at_a_time.acquire(timeout=timeout_seconds):
            raise TransportError(f"{self.address} did not answer within {timeout_seconds} s", retryable=True)
        try:
            pause = 0.05
            while True:
                left = max(0.001, deadline - time.monotonic())
                try:
                    if self._standing is None:
                        self._standing = self.open_stream([answer], left)
                    self._standing.limit(left)
                    found: Answer = self._standing.request(message)[0]
                    return found
                except TransportError as error:
                    self._drop_standing()
                    problem = error
                pause = _pause_or_raise(problem, deadline, pause)
        finally:
            self._one_at_a_time.release()

    def _drop_standing(self) -> None:
        standing, self._standing = self._standing, None
        if standing is not None:
            standing.close()

    def open_stream(self, answers: Sequence[type[msgspec.Struct]], timeout_seconds: float = 30.0) -> ArrayStream:
        """A stream of request/answer frames on its own connection; used by one thread at a time.

        Args:
            answers: the types that may come back.
            timeout_seconds: of each request.

        Raises:
            AuthenticationError: wrong token.
            TransportError: the server cannot be reached; told within seconds, for who opens streams tries again.
        """
        found = self.call(FindStreams(), StreamsAt, timeout_seconds=min(timeout_seconds, _FIND_SECONDS))
        host = self.address.rsplit(":", 1)[0]
        return ArrayStream(host, found, self._token, self._tls, answers, timeout_seconds)

    def close(self) -> None:
        """Waits for a `call_often` under way."""
        with self._one_at_a_time:
            self._drop_standing()
        with self._lock:
            if self._flight is not None:
                self._flight.close()
                self._flight = None


def _pause_or_raise(problem: TransportError, deadline: float, pause: float) -> float:
    """Waits before another attempt, and says how long the next wait will be; raises what will not pass in time."""
    if not problem.retryable or deadline - time.monotonic() <= pause:
        raise problem
    time.sleep(pause * random.uniform(0.5, 1.0))
    return min(pause * 2, 1.0)
