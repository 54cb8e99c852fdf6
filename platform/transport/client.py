"""The client: calls with deadlines, retries and idempotency keys, and streams of requests with arrays."""

from __future__ import annotations

import math
import random
import select
import threading
import time
import uuid
import weakref
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeVar

import msgspec

from elastrec.platform.specs.errors import AuthenticationError, ElastrecError, IncompatibleError, TransportError
from elastrec.platform.specs.text.decoders import msgpack_decoder
from elastrec.platform.transport.security import TlsConfig
from elastrec.platform.transport.versions import code_version
from elastrec.platform.transport.wire.channel import Channel, Dialer, LostError
from elastrec.platform.transport.wire.frames import Array, Layout, Packed, encode_frame, kind_of
from elastrec.platform.transport.wire.problems import Problem, error_of

Answer = TypeVar("Answer", bound=msgspec.Struct)
_OPEN_SECONDS = 5.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.05, 1.0
# A generator of this module, so that a program's own seed of the module `random` is not affected.
_JITTER = random.Random()
_IDLE_SECONDS = 30.0


class RpcClient:
    """Calls one server; safe to use from several threads, each of which has a connection while it calls.

    A client that nothing refers to any more closes its connections as `close` does.

    Args:
        address: `host:port`.
        token: every connection begins with it.
        tls: the root to trust, or None for plain TCP.

    Raises:
        AuthenticationError: the token is not printable ASCII.
    """

    def __init__(self, address: str, token: str, tls: TlsConfig | None = None) -> None:
        if not (token.isascii() and token.isprintable()):
            raise AuthenticationError(
                f"the token for {address} is not allowed: it holds characters other than printable ASCII; copy it again"
            )
        self.address = address
        self._dialer = Dialer(address, token, tls)
        self._idle = _IdleChannels()
        # The end of the process closes them anyway.
        weakref.finalize(self, self._idle.close_all).atexit = False

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
            TransportError: the server did not answer in time, or failed.
            ElastrecError: the error that the server answered with, as an object of the same class (see `problems`).
        """
        frame = encode_frame(message, key=uuid.uuid4().hex if remember else "")
        reader = _Reader(self.address, [answer])
        began = time.monotonic()
        left, pause = timeout_seconds, _FIRST_PAUSE_SECONDS
        while True:
            try:
                found: Answer = self._attempt(frame, max(0.001, min(left, attempt_seconds or left)), reader)
                return found
            except ElastrecError as error:
                left = timeout_seconds - (time.monotonic() - began)
                if not error.retryable or left <= pause:
                    raise
            time.sleep(pause * _JITTER.uniform(0.5, 1.0))
            left = timeout_seconds - (time.monotonic() - began)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)

    def _attempt(self, frame: tuple[bytes, list[Any]], seconds: float, reader: _Reader) -> Any:
        deadline = time.monotonic() + seconds
        channel = self._idle.take()
        if channel is not None:
            try:
                return self._exchange(channel, frame, seconds, reader)
            except LostError:
                # The old connection may have been lost long ago, while the server is up again, so that a new one is
                # tried.
                self._idle.close_all()
        channel = self._dialer.open(max(0.001, deadline - time.monotonic()))
        return self._exchange(channel, frame, max(0.001, deadline - time.monotonic()), reader)

    def _exchange(self, channel: Channel, frame: tuple[bytes, list[Any]], seconds: float, reader: _Reader) -> Any:
        began = self._idle.closings
        try:
            layout, body = channel.request(frame, seconds)
        except BaseException:
            channel.close()
            raise
        self._idle.put(channel, began)
        return reader.read(layout, body, channel.version)[0]

    def open_stream(self, answers: Sequence[type[msgspec.Struct]], timeout_seconds: float = 30.0) -> ArrayStream:
        """Opens a connection for requests with arrays; used by one thread at a time.

        Args:
            answers: the types that may come back.
            timeout_seconds: of each request.

        Raises:
            AuthenticationError: wrong token.
            TransportError: the server cannot be reached; raised within seconds.
        """
        # Now: an upgrade may put other files in place while this process runs.
        code_version()
        channel = self._dialer.open(min(timeout_seconds, _OPEN_SECONDS))
        return ArrayStream(channel, answers, timeout_seconds)

    def close(self) -> None:
        """Closes the connections; those of running calls when the calls end."""
        self._idle.close_all()


class ArrayStream:
    """Requests with arrays, answered one after the other. See `RpcClient.open_stream`.

    `begin` and `advance` never wait, so that one thread can serve the streams of many servers: it calls `advance` when
    the descriptor (`fileno`) is writable or readable, according to `wants_write`. `request` does both, and waits.

    Attributes:
        deadline: when the current request counts as lost (`time.monotonic`), unless the server sends or receives data
            before; infinite without a request.
    """

    def __init__(self, channel: Channel, answers: Sequence[type[msgspec.Struct]], timeout_seconds: float) -> None:
        self._channel = channel
        self._reader = _Reader(channel.address, answers)
        self._timeout_seconds = timeout_seconds
        self._moved_bytes = 0  # when the current request began or last advanced
        self.deadline = math.inf
        channel.unblock()

    def fileno(self) -> int:
        """-1 once the stream is closed."""
        return self._channel.connection.fileno()

    @property
    def wants_write(self) -> bool:
        """Whether the request under way waits until the socket takes more, rather than for what arrives."""
        return self._channel.connection.wants_write

    def begin(self, message: msgspec.Struct, arrays: Sequence[Array | Packed] = ()) -> None:
        """Sends as much of a request as the socket accepts; the arrays must not change until it is answered.

        Raises:
            TransportError: the request is invalid, or the server is unreachable.
        """
        frame = encode_frame(message, arrays)
        self.deadline = time.monotonic() + self._timeout_seconds
        self._channel.begin(frame)
        self._moved_bytes = self._channel.connection.moved_bytes

    def advance(self) -> tuple[Any, list[Array]] | None:
        """The answer to the current request, and its arrays, read-only views of received memory.

        Returns:
            None until the answer is complete.

        Raises:
            IncompatibleError: one side cannot read what the other one sends.
            TransportError: the server is unreachable, or `deadline` is over; the stream is unusable afterwards.
            ElastrecError: the error that the server answered with, as an object of the same class.
        """
        answer = self._channel.advance()
        if answer is not None:
            self.deadline = math.inf
            return self._reader.read(*answer, self._channel.version)
        before, self._moved_bytes = self._moved_bytes, self._channel.connection.moved_bytes
        if self._moved_bytes > before:
            self.deadline = time.monotonic() + self._timeout_seconds
        elif time.monotonic() > self.deadline:
            raise self._channel.late(self._timeout_seconds)
        return None

    def request(self, message: msgspec.Struct, arrays: Sequence[Array | Packed] = ()) -> tuple[Any, list[Array]]:
        """Calls `begin`, then `advance` until the answer is complete. Raises the errors of both."""
        self.begin(message, arrays)
        ready = select.poll()
        while (answer := self.advance()) is None:
            ready.register(self.fileno(), select.POLLOUT if self.wants_write else select.POLLIN)
            ready.poll(max(0.0, 1e3 * (self.deadline - time.monotonic())))
        return answer

    def hurry(self, seconds: float) -> None:
        """Limits the deadline of the current request, if there is one, to a number of seconds from now."""
        if self.deadline < math.inf:
            self.deadline = min(self.deadline, time.monotonic() + seconds)

    def cut(self) -> None:
        """Makes the request under way fail; for any thread."""
        self._channel.cut()

    def close(self) -> None:
        """Safe to repeat."""
        self._channel.close()


class _Reader:
    """Reads answers of some types."""

    def __init__(self, address: str, answers: Sequence[type[msgspec.Struct]]) -> None:
        self._address = address
        self._decoders = {kind_of(answer): _decoder(answer) for answer in answers}

    def read(self, layout: Layout, body: Array, version: str) -> tuple[Any, list[Array]]:
        """The message and its arrays; a Problem is raised as the error that it describes.

        Args:
            version: of the server's code.
        """
        decoder = self._decoders.get(layout.kind)
        try:
            if decoder is not None:
                return layout.decode(decoder), layout.views(body)
            if layout.kind != kind_of(Problem):
                raise TransportError(f"the answer is no {' or '.join(self._decoders)}, but a {layout.kind!r}")
            problem: Problem = layout.decode(_decoder(Problem))
        except TransportError as error:
            raise IncompatibleError(
                f"{self._address}, which runs elastrec {version}, answers what this process, which runs elastrec "
                f"{code_version()}, cannot read: {error}; {IncompatibleError.remedy}"
            ) from error
        raise error_of(problem, self._address, version)


@cache
def _decoder(kind: type[msgspec.Struct]) -> msgspec.msgpack.Decoder[Any]:
    return msgpack_decoder(kind)


class _IdleChannels:
    """Open channels that no call uses; thread-safe.

    Attributes:
        closings: number of calls that closed all channels.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channels: list[tuple[float, Channel]] = []
        self.closings = 0

    def take(self) -> Channel | None:
        """The most recently used channel."""
        with self._lock:
            return self._channels.pop()[1] if self._channels else None

    def put(self, channel: Channel, closings: int) -> None:
        """Keeps a channel, unless all were closed since `closings` had this value."""
        now, surplus = time.monotonic(), None
        with self._lock:
            if closings != self.closings:
                surplus = channel
            else:
                if self._channels and now - self._channels[0][0] > _IDLE_SECONDS:
                    surplus = self._channels.pop(0)[1]
                self._channels.append((now, channel))
        if surplus is not None:
            surplus.close()

    def close_all(self) -> None:
        with self._lock:
            channels, self._channels = self._channels, []
            self.closings += 1
        for _, channel in channels:
            channel.close()
