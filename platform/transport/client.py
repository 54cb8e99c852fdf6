"""The client half of the RPC stack: deadlines, retries with idempotency keys, and streams of arrays."""

from __future__ import annotations

import contextlib
import random
import threading
import time
import uuid
import weakref
from collections.abc import Sequence
from typing import Any, TypeVar, Union

import msgspec
import pyarrow as pa
import pyarrow.flight as flight

from elastrec.platform.specs.errors import AuthenticationError, TransportError
from elastrec.platform.transport.frames import FRAME_SCHEMA, Array, decode_frame, encode_frame
from elastrec.platform.transport.security import TlsConfig
from elastrec.platform.transport.server import Envelope, Problem

Answer = TypeVar("Answer", bound=msgspec.Struct)
_RETRYABLE = (flight.FlightUnavailableError, flight.FlightTimedOutError, flight.FlightCancelledError)


def _translate(error: Exception, address: str) -> TransportError:
    text = str(error).split(". gRPC client debug context")[0].split(". Detail:")[0]
    # A refusal that meets a write arrives as another kind of error with the refusal in its text.
    if isinstance(error, flight.FlightUnauthenticatedError) or "Unauthenticated" in str(error):
        return AuthenticationError(f"{address} refused the token: {text}")
    return TransportError(f"{address}: {text}", retryable=isinstance(error, _RETRYABLE))


class RpcClient:
    """Calls one server; safe to use from several threads.

    Args:
        address: `host:port`.
        token: sent with every call.
        tls: the root to trust, or None for plain TCP.
    """

    def __init__(self, address: str, token: str, tls: TlsConfig | None = None) -> None:
        self.address = address
        self._token = token
        self._tls = tls
        self._headers = [(b"authorization", f"Bearer {token}".encode())]
        self._flight: flight.FlightClient | None = None
        self._lock = threading.Lock()

    def _connection(self) -> flight.FlightClient:
        with self._lock:
            if self._flight is None:
                scheme = "grpc+tls" if self._tls else "grpc+tcp"
                options: dict[str, Any] = {"tls_root_certs": self._tls.root_pem} if self._tls else {}
                # A server that comes back must be found at once, not after gRPC's two-minute back-off.
                backoff = [("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 500)]
                self._flight = flight.connect(f"{scheme}://{self.address}", generic_options=backoff, **options)
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
            left = deadline - time.monotonic()
            if not problem.retryable or left <= pause:
                raise problem
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, 1.0)

    def open_stream(self, answers: Sequence[type[msgspec.Struct]], timeout_seconds: float = 30.0) -> ArrayStream:
        """A stream of request/answer frames on its own connection; used by one thread at a time.

        Args:
            answers: the types that the server may answer with.
            timeout_seconds: deadline of each request.
        """
        return ArrayStream(self.address, self._token, self._tls, answers, timeout_seconds)

    def close(self) -> None:
        with self._lock:
            if self._flight is not None:
                self._flight.close()
                self._flight = None


class ArrayStream:
    """One DoExchange stream: `request` sends a message with arrays and waits for the answer."""

    def __init__(
        self,
        address: str,
        token: str,
        tls: TlsConfig | None,
        answers: Sequence[type[msgspec.Struct]],
        timeout_seconds: float,
    ) -> None:
        self.address = address
        self._decoder = msgspec.msgpack.Decoder(Union[(*answers, Problem)])
        self._timeout_seconds = timeout_seconds
        scheme = "grpc+tls" if tls else "grpc+tcp"
        extra: dict[str, Any] = {"tls_root_certs": tls.root_pem} if tls else {}
        options = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}".encode())])
        try:
            self._flight = flight.connect(f"{scheme}://{address}", **extra)
            self._writer, self._reader = self._flight.do_exchange(
                flight.FlightDescriptor.for_command(b"frames"), options
            )
            self._writer.begin(FRAME_SCHEMA)
        except (flight.FlightError, OSError) as error:
            raise _translate(error, address) from error
        # Also at exit, and before servers of the same process end: an open stream would block them for ever.
        self._finalizer = weakref.finalize(self, _close_stream, self._flight, self._writer, self._reader)

    def request(self, message: msgspec.Struct, arrays: Sequence[Array] = ()) -> tuple[Any, list[Array]]:
        """Sends one frame, returns the answer's message and arrays.

        Raises:
            TransportError: the server refused, is gone, or did not answer in time. Unless the server refused the
                request itself, the stream is unusable afterwards.
        """
        # Flight has no deadline per message: a timer cancels the stream, which makes the read fail.
        timer = _DEADLINES.start(self._timeout_seconds, self._reader.cancel)
        try:
            self._write(*encode_frame(message, arrays))
            chunk = self._reader.read_chunk()
        except StopIteration:
            raise TransportError(f"{self.address} closed the stream", retryable=True) from None
        except (flight.FlightError, OSError) as error:
            problem = _translate(error, self.address)
            problem.retryable = not isinstance(problem, AuthenticationError)
            raise problem from error
        finally:
            _DEADLINES.stop(timer)
        answer, answer_arrays = decode_frame(chunk.data, chunk.app_metadata, self._decoder)
        if isinstance(answer, Problem):
            raise TransportError(f"{self.address}: {answer.kind}: {answer.text}")
        return answer, answer_arrays

    def _write(self, batch: pa.RecordBatch, metadata: bytes) -> None:
        try:
            self._writer.write_with_metadata(batch, metadata)
        except (flight.FlightError, OSError):
            # Only reading tells why the other side has closed the stream.
            self._reader.read_chunk()
            raise

    def close(self) -> None:
        """Half-closes and forgets the stream; safe to repeat."""
        self._finalizer()


def _close_stream(connection: Any, writer: Any, reader: Any) -> None:
    with contextlib.suppress(flight.FlightError, OSError):  # the other side may already be gone
        writer.done_writing()
        reader.cancel()
        connection.close()


class _Deadlines:
    """One thread that watches the deadlines of all streams of the process."""

    _TICK_SECONDS = 0.25

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[int, tuple[float, Any]] = {}
        self._next = 0
        self._thread: threading.Thread | None = None

    def start(self, seconds: float, cancel: Any) -> int:
        with self._lock:
            self._next += 1
            self._running[self._next] = (time.monotonic() + seconds, cancel)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._watch, name="stream-deadlines", daemon=True)
                self._thread.start()
            return self._next

    def stop(self, timer: int) -> None:
        with self._lock:
            self._running.pop(timer, None)

    def _watch(self) -> None:
        while True:
            time.sleep(self._TICK_SECONDS)
            now = time.monotonic()
            with self._lock:
                late = [timer for timer, (deadline, _) in self._running.items() if deadline < now]
                cancels = [self._running.pop(timer)[1] for timer in late]
            for cancel in cancels:
                cancel()


_DEADLINES = _Deadlines()
