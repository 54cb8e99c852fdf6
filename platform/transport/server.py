"""The server half of the RPC stack: handlers by message type, over Arrow Flight.

Plain calls are Arrow Flight actions; requests with arrays travel on streams, one request after the other per stream,
to a port of their own that the client asks for. Every call and every stream must carry the token.
"""

from __future__ import annotations

import hmac
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NoReturn, Union

import msgspec
import pyarrow.flight as flight
import structlog

from elastrec.platform.specs.errors import ElastrecError, IncompatibleError, TransportError
from elastrec.platform.transport.frames import Array, decode_frame, encode_frame
from elastrec.platform.transport.security import TlsConfig
from elastrec.platform.transport.streams import FindStreams, Problem, StreamPort
from elastrec.platform.transport.versions import code_version

Handler = Callable[[Any], msgspec.Struct]
ArrayHandler = Callable[[Any, list[Array]], tuple[msgspec.Struct, Sequence[Array]]]

log = structlog.get_logger(__name__)
_REMEMBERED_ANSWERS = 4096
MAXIMUM_CALL_BYTES = 64 * 2**20
"""Of one plain call; larger ones are refused by both sides."""


def too_large(name: str, size_bytes: int) -> str:
    """What is said about a plain call above the limit; empty below it."""
    if size_bytes <= MAXIMUM_CALL_BYTES:
        return ""
    return f"message {name!r} of {size_bytes} bytes is not allowed; allowed: at most {MAXIMUM_CALL_BYTES} bytes"


class Envelope(msgspec.Struct, array_like=True):
    """A plain call. An equal non-empty key gets the first call's answer again."""

    idempotency_key: str
    message: msgspec.Raw


class _TokenCheck(flight.ServerMiddlewareFactory):
    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()
        self._refused = 0

    def start_call(self, info: Any, headers: Mapping[str, list[Any]]) -> None:
        given = headers.get("authorization") or [""]
        value = given[0] if isinstance(given[0], bytes) else given[0].encode()
        if hmac.compare_digest(value, self._expected):
            return
        self.count_refusal()
        raise flight.FlightUnauthenticatedError("missing or wrong token")

    def count_refusal(self) -> None:
        self._refused += 1
        # Powers of two: an attacker cannot fill the disk with this line.
        if self._refused & (self._refused - 1) == 0:
            log.warning("call_refused", reason="missing or wrong token", refused_total=self._refused)


class RpcServer(flight.FlightServerBase):
    """Serves typed messages.

    Args:
        handlers: plain calls; message type → function of the message.
        array_handlers: stream requests; message type → function of message and arrays.
        often: those of `handlers` that may also be asked over a stream (`RpcClient.call_often`).
        host, port: where to listen; port 0 lets the system choose (see `address`).
        token: every call must carry it.
        tls: certificate and key, or None for plain TCP.
        advertised_host: the host part of `address`.
        local_streams: whether clients of this machine may use a Unix socket for arrays.
    """

    def __init__(
        self,
        handlers: Mapping[type[msgspec.Struct], Handler],
        *,
        token: str,
        array_handlers: Mapping[type[msgspec.Struct], ArrayHandler] | None = None,
        often: Collection[type[msgspec.Struct]] = (),
        host: str = "127.0.0.1",
        port: int = 0,
        tls: TlsConfig | None = None,
        advertised_host: str | None = None,
        local_streams: bool = True,
    ) -> None:
        if not token:
            raise ValueError("a server needs a token")
        self._handlers = {kind.__name__: (handler, msgspec.msgpack.Decoder(kind)) for kind, handler in handlers.items()}
        self._array_handlers = {**(array_handlers or {}), **{kind: _without_arrays(handlers[kind]) for kind in often}}
        if self._array_handlers:
            self._array_decoder = msgspec.msgpack.Decoder(Union[tuple(self._array_handlers)])  # noqa: UP007
        self._answers: OrderedDict[str, bytes] = OrderedDict()
        self._in_progress: dict[str, threading.Event] = {}
        self._answers_lock = threading.Lock()
        scheme = "grpc+tls" if tls else "grpc+tcp"
        certificates = [(tls.certificate_pem, tls.key_pem)] if tls else None
        check = _TokenCheck(token)
        super().__init__(f"{scheme}://{host}:{port}", middleware={"token": check}, tls_certificates=certificates)
        self._streams: StreamPort | None = None
        # Now: an upgrade may put other files in place while this process runs.
        self._version = code_version()
        if self._array_handlers:
            self._streams = StreamPort(
                self._answer_frame,
                host=host,
                token=token,
                tls=tls,
                on_refused=check.count_refusal,
                is_local=local_streams,
            )
            found = self._streams.found
            self._handlers[FindStreams.__name__] = (lambda _: found, msgspec.msgpack.Decoder(FindStreams))
        self.address = f"{advertised_host or host}:{self.port}"
        self._stopped = False
        self._serving: threading.Thread | None = None

    def do_action(self, context: Any, action: flight.Action) -> Iterator[bytes]:
        entry = self._handlers.get(action.type)
        if entry is None:
            raise flight.FlightServerError(f"unknown message {action.type!r}; known: {sorted(self._handlers)}")
        handler, decoder = entry
        refusal = too_large(action.type, action.body.size)
        if refusal:
            log.warning("call_refused", reason=refusal)
            raise flight.FlightServerError(refusal)
        try:
            envelope = msgspec.msgpack.decode(memoryview(action.body), type=Envelope)
            message = decoder.decode(envelope.message)
        except (msgspec.MsgspecError, ValueError) as error:
            # The class's name travels in the text; see the client.
            reader = f"elastrec {self._version}"
            raise flight.FlightServerError(
                f"{IncompatibleError.__name__}: message {action.type!r} cannot be read by {reader}: {error}"
            ) from None
        if not envelope.idempotency_key:
            return iter([self._run(handler, message)])
        return iter([self._run_once(envelope.idempotency_key, handler, message)])

    def _run(self, handler: Handler, message: Any) -> bytes:
        try:
            return msgspec.msgpack.encode(handler(message))
        except ElastrecError as error:
            if _may_pass(error):
                raise flight.FlightUnavailableError(str(error)) from None
            raise flight.FlightServerError(f"{type(error).__name__}: {error}") from None
        except Exception as error:
            log.exception("handler_failed", message=type(message).__name__)
            raise flight.FlightServerError(f"internal error: {type(error).__name__}: {error}") from None

    def _run_once(self, key: str, handler: Handler, message: Any) -> bytes:
        while True:
            with self._answers_lock:
                if key in self._answers:
                    return self._answers[key]
                running = self._in_progress.get(key)
                if running is None:
                    running = self._in_progress[key] = threading.Event()
                    break
            running.wait()
        try:
            answer = self._run(handler, message)
            with self._answers_lock:
                self._answers[key] = answer
                while len(self._answers) > _REMEMBERED_ANSWERS:
                    self._answers.popitem(last=False)
            return answer
        finally:
            with self._answers_lock:
                del self._in_progress[key]
            running.set()

    def _answer_frame(self, metadata: bytes, body: Array) -> tuple[bytes, list[Any]]:
        try:
            message, arrays = decode_frame(metadata, body, self._array_decoder)
        except TransportError as error:
            return self._problem(IncompatibleError.__name__, str(error))
        try:
            answer, answer_arrays = self._array_handlers[type(message)](message, arrays)
            return encode_frame(answer, answer_arrays)
        except ElastrecError as error:
            return self._problem(type(error).__name__, str(error), retryable=_may_pass(error))
        except Exception as error:
            log.exception("stream_handler_failed")
            return self._problem("InternalError", f"{type(error).__name__}: {error}")

    def _problem(self, kind: str, text: str, *, retryable: bool = False) -> tuple[bytes, list[Any]]:
        return encode_frame(Problem(kind, text, self._version, retryable), [])

    def serve_in_background(self) -> None:
        """Serves on a daemon thread until `shutdown`."""
        self._serving = threading.Thread(target=self.serve, name="rpc-server", daemon=True)
        self._serving.start()

    def shutdown(self) -> None:
        """Cuts all streams and waits for the plain calls under way."""
        if self._streams is not None:
            self._streams.close()
        super().shutdown()
        # Flight's serve puts signal handling back as it ends, and would close a server that was started meanwhile.
        if self._serving is not None and self._serving is not threading.current_thread():
            self._serving.join()

    def stop(self, grace_seconds: float = 2.0) -> bool:
        """Stops serving; true when all calls have ended.

        A call whose handler does not return cannot be ended from here: after the grace it is given up, and the process
        must then end by `end_process`.
        """
        if not self._stopped:
            self._stopped = True
            self._stopping = threading.Thread(target=self.shutdown, name="rpc-server-stop", daemon=True)
            self._stopping.start()
        self._stopping.join(grace_seconds)
        return not self._stopping.is_alive()


def _without_arrays(handler: Handler) -> ArrayHandler:
    return lambda message, _: (handler(message), ())


def _may_pass(error: ElastrecError) -> bool:
    return isinstance(error, TransportError) and error.retryable


def end_process(exit_code: int) -> NoReturn:
    """Ends the process now, output flushed, without waiting for streams that clients keep open."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)
