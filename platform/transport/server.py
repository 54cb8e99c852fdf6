"""The server: handlers by type of message, at one port, for calls and for requests with arrays."""

from __future__ import annotations

import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import msgspec
import structlog

from elastrec.platform.specs.errors import ElastrecError, IncompatibleError, TransportError
from elastrec.platform.specs.text.decoders import msgpack_decoder
from elastrec.platform.transport.security import TlsConfig
from elastrec.platform.transport.versions import code_version
from elastrec.platform.transport.wire.frames import Array, encode_frame, kind_of, read_layout
from elastrec.platform.transport.wire.port import Answer, Port, PortClosedError
from elastrec.platform.transport.wire.problems import problem_of

Handler = Callable[[Any], msgspec.Struct]
ArrayHandler = Callable[[Any, list[Array]], tuple[msgspec.Struct, Sequence[Array]]]

log = structlog.get_logger(__name__)
_REMEMBERED_ANSWERS = 4096
_CONNECTIONS_PER_POD = 4


def connections_for(pods: int) -> int:
    """Maximum of connections of a server, by the job's number of pods: theirs, and 1,024 of others."""
    return 1024 + _CONNECTIONS_PER_POD * pods


class RpcServer:
    """Serves typed messages; listens from its creation, answers from `serve_in_background` on.

    Args:
        handlers: calls; message type → function of the message.
        array_handlers: requests with arrays; message type → function of message and arrays.
        host, port: where to listen; port 0 lets the system choose (see `address`).
        token: every connection must begin with it, or with one of others.
        others: other callers, by token; None: no caller has the token. Compares in constant time. Handlers get the
            caller from `callers.caller()`.
        tls: certificate and key, or None for plain TCP.
        advertised_host: the host part of `address`.
        local_streams: whether clients of this machine may use a Unix socket.
        maximum_connections: maximum of connections with the token; called for every new one, so that it may depend on
            the size of a job.

    Attributes:
        address: `host:port`, for `RpcClient`.
    """

    def __init__(
        self,
        handlers: Mapping[type[msgspec.Struct], Handler],
        *,
        token: str,
        others: Callable[[bytes], str | None] = lambda token: None,
        array_handlers: Mapping[type[msgspec.Struct], ArrayHandler] | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: TlsConfig | None = None,
        advertised_host: str | None = None,
        local_streams: bool = True,
        maximum_connections: Callable[[], int] = lambda: connections_for(0),
    ) -> None:
        if not token:
            raise ValueError("a server needs a token")
        both = [*handlers, *(array_handlers or {})]
        if len({kind_of(kind) for kind in both}) < len(both):
            raise ValueError(f"two handlers for one kind of message among {[kind_of(kind) for kind in both]}")
        self._decoders = {kind_of(kind): msgpack_decoder(kind) for kind in both}
        self._handlers = {kind_of(kind): handler for kind, handler in handlers.items()}
        self._array_handlers = {kind_of(kind): handler for kind, handler in (array_handlers or {}).items()}
        self._remembered = _RememberedAnswers()
        # Now: an upgrade may put other files in place while this process runs.
        self._version = code_version()
        self._port = Port(
            self._answer,
            host=host,
            port=port,
            token=token,
            others=others,
            tls=tls,
            version=self._version,
            maximum_connections=maximum_connections,
            is_local=local_streams,
        )
        self.port = self._port.number
        self.address = f"{advertised_host or host}:{self.port}"
        self._stopping: threading.Thread | None = None

    def serve_in_background(self) -> None:
        """Serves on daemon threads until `shutdown`."""
        self._port.start()

    def shutdown(self) -> None:
        """Interrupts requests with arrays and waits for running calls. May be called repeatedly."""
        self._port.close()

    def stop(self, grace_seconds: float = 2.0) -> bool:
        """Stops serving; true when all calls have ended.

        A call whose handler does not return cannot be ended from here: after the grace period, this function returns
        without it, and the process must then end by `end_process`.
        """
        if self._stopping is None:
            self._stopping = threading.Thread(target=self.shutdown, name="rpc-stop", daemon=True)
            self._stopping.start()
        self._stopping.join(grace_seconds)
        return not self._stopping.is_alive()

    def _answer(self, metadata: bytes | bytearray, body: Array, begin_call: Callable[[], bool]) -> Answer:
        try:
            return self._result(metadata, body, begin_call)
        except PortClosedError:
            raise
        except ElastrecError as error:
            return encode_frame(problem_of(error))
        except Exception as error:
            log.exception("handler_failed")
            return encode_frame(problem_of(error))

    def _result(self, metadata: bytes | bytearray, body: Array, begin_call: Callable[[], bool]) -> Answer:
        try:
            layout = read_layout(metadata)
            decoder = self._decoders.get(layout.kind)
            if decoder is None:
                raise TransportError(f"unknown message {layout.kind!r}; known: {sorted(self._decoders)}")
            message = layout.decode(decoder)
            arrays = layout.views(body) if layout.arrays or len(body) else []
            handler = self._handlers.get(layout.kind)
            if handler is not None and arrays:
                raise TransportError(f"message {layout.kind!r} carries no arrays, but came with {len(arrays)}")
        except TransportError as error:
            raise IncompatibleError(str(error)) from None
        if handler is None:
            answer, answer_arrays = self._array_handlers[layout.kind](message, arrays)
            return encode_frame(answer, answer_arrays)
        if not begin_call():
            raise PortClosedError
        if not layout.key:
            return encode_frame(handler(message))
        return self._remembered.of(layout.key, lambda: encode_frame(handler(message)))


class _RememberedAnswers:
    """The last answers to calls with a key, so that a repeated call is not executed again."""

    def __init__(self) -> None:
        self._answers: OrderedDict[str, Answer] = OrderedDict()
        self._in_progress: dict[str, threading.Event] = {}
        self._lock = threading.Lock()

    def of(self, key: str, execute: Callable[[], Answer]) -> Answer:
        """The answer to the call with this key; waits while it is being executed. Errors are not kept."""
        while True:
            with self._lock:
                if key in self._answers:
                    return self._answers[key]
                running = self._in_progress.get(key)
                if running is None:
                    running = self._in_progress[key] = threading.Event()
                    break
            running.wait()
        try:
            answer = execute()
            with self._lock:
                self._answers[key] = answer
                while len(self._answers) > _REMEMBERED_ANSWERS:
                    self._answers.popitem(last=False)
            return answer
        finally:
            with self._lock:
                del self._in_progress[key]
            running.set()


def end_process(exit_code: int) -> NoReturn:
    """Ends the process now, output flushed, without waiting for calls that are being executed."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)
