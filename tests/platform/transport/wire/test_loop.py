"""One thread serves many streams: none waits for another, and data that does not fit into a socket is sent later."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elastrec.platform.specs.errors import AuthenticationError, TransportError
from elastrec.platform.transport import ArrayStream, RpcClient, RpcServer, StreamLoop, TlsConfig
from tests.platform.transport.messages import TOKEN, Answered, AskArrays
from tests.platform.transport.raw_wire import relaying, tcp_only

Handler = Callable[[AskArrays, list[np.ndarray]], tuple[Answered, list[np.ndarray]]]


def add_one(message: AskArrays, arrays: list[np.ndarray]) -> tuple[Answered, list[np.ndarray]]:
    return Answered(message.number), [array + 1 for array in arrays]


@contextmanager
def serving(handler: Handler = add_one, tls: TlsConfig | None = None) -> Iterator[RpcServer]:
    server = RpcServer({}, token=TOKEN, tls=tls, array_handlers={AskArrays: handler})
    server.serve_in_background()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def loop() -> Iterator[StreamLoop]:
    loop = StreamLoop("loop-of-a-test")
    yield loop
    loop.close(10.0)


class Asked:
    """One request on a stream of its own, and what came of it."""

    def __init__(self, loop: StreamLoop, stream: ArrayStream) -> None:
        self.loop, self.stream = loop, stream
        self.done = threading.Event()
        self.answer: tuple[Any, list[np.ndarray]] | None = None
        self.error: Exception | None = None
        self.thread = ""
        with loop.lock:
            self.watched = loop.watch(stream, self.go_on)

    def begin(self, number: int, *arrays: np.ndarray) -> None:
        with self.loop.lock:
            self.stream.begin(AskArrays(number), list(arrays))
            self.loop.update(self.watched)

    def go_on(self) -> None:
        self.thread = threading.current_thread().name
        try:
            self.answer = self.stream.advance()
        except TransportError as error:
            self.error = error
            self.loop.forget(self.watched)
            self.stream.close()
        else:
            self.loop.update(self.watched)
        if self.answer is not None or self.error is not None:
            self.done.set()

    def close(self) -> None:
        with self.loop.lock:
            if self.error is None:
                self.loop.forget(self.watched)
                self.stream.close()


def asked(stack: ExitStack, loop: StreamLoop, client: RpcClient, timeout_seconds: float = 30.0) -> Asked:
    made = Asked(loop, client.open_stream([Answered], timeout_seconds))
    stack.callback(made.close)
    return made


def test_a_server_that_does_not_answer_does_not_delay_others(loop: StreamLoop) -> None:
    gate = threading.Event()

    def held(message: AskArrays, arrays: list[np.ndarray]) -> tuple[Answered, list[np.ndarray]]:
        gate.wait(30)
        return add_one(message, arrays)

    with ExitStack() as stack:
        silent = asked(stack, loop, RpcClient(stack.enter_context(serving(held)).address, TOKEN))
        stack.callback(gate.set)
        others = [asked(stack, loop, RpcClient(stack.enter_context(serving()).address, TOKEN)) for _ in range(4)]
        silent.begin(0, np.arange(3))
        for number, other in enumerate(others):
            other.begin(number, np.full(100_000, number))
        for number, other in enumerate(others):
            assert other.done.wait(10)
            assert other.answer is not None and (other.answer[1][0] == number + 1).all()
        assert not silent.done.is_set()
        gate.set()
        assert silent.done.wait(10)
        assert {each.thread for each in (silent, *others)} == {"loop-of-a-test"}


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_partly_sent_request_is_completed_while_its_sender_does_other_work(
    loop: StreamLoop, tls: TlsConfig, encrypted: bool
) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(serving(tls=tls if encrypted else None))
        relay = stack.enter_context(relaying(server.port))
        client = tcp_only(RpcClient(f"localhost:{relay.port}", TOKEN, tls if encrypted else None))
        large = asked(stack, loop, client)
        values = np.arange(6_000_000)
        with loop.lock:  # the loop can do nothing yet
            # A server that reads while the client sends can take all of it at once: it reads nothing for now.
            relay.passes.clear()
            large.begin(1, values)
            assert large.stream.wants_write, "48 MB fit into no socket"
            relay.passes.set()
        assert large.done.wait(30)
        assert large.answer is not None
        np.testing.assert_array_equal(large.answer[1][0], values + 1)


def test_a_request_is_lost_when_nothing_has_moved_until_its_deadline(loop: StreamLoop) -> None:
    gate = threading.Event()

    def held(message: AskArrays, arrays: list[np.ndarray]) -> tuple[Answered, list[np.ndarray]]:
        gate.wait(30)
        return add_one(message, arrays)

    with ExitStack() as stack:
        client = RpcClient(stack.enter_context(serving(held)).address, TOKEN)
        stack.callback(gate.set)
        patient, hurried, short = (
            asked(stack, loop, client),
            asked(stack, loop, client),
            asked(stack, loop, client, 0.1),
        )
        for each in (patient, hurried, short):
            each.begin(1)
        with loop.lock:
            hurried.stream.hurry(0.1)
        for each in (hurried, short):
            assert each.done.wait(10)
            assert each.error is not None and "did not answer within" in str(each.error)
        assert not patient.done.is_set()


def test_a_server_that_closes_an_idle_stream_is_noticed(loop: StreamLoop) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(serving())
        idle = asked(stack, loop, RpcClient(server.address, TOKEN))
        server.stop()
        assert idle.done.wait(10)
        assert idle.error is not None and idle.error.retryable


def test_streams_are_opened_beside_the_loop_and_a_refusal_is_handed_over(loop: StreamLoop) -> None:
    results: list[ArrayStream | Exception] = []
    both = threading.Event()

    def take(result: ArrayStream | Exception) -> None:
        results.append(result)
        if len(results) == 2:
            both.set()

    with serving() as server:
        with loop.lock:
            for token in (TOKEN, "wrong"):
                loop.open(RpcClient(server.address, token), [Answered], take)
        assert both.wait(10)
        (stream,) = [each for each in results if isinstance(each, ArrayStream)]
        (refusal,) = [each for each in results if isinstance(each, Exception)]
        assert isinstance(refusal, AuthenticationError)
        assert stream.request(AskArrays(3))[0] == Answered(3)
        stream.close()


def test_functions_are_called_in_the_order_of_their_times_also_while_the_loop_sleeps(loop: StreamLoop) -> None:
    called: list[str] = []
    last = threading.Event()
    time.sleep(0.05)  # the loop has gone to sleep
    began = time.monotonic()
    with loop.lock:
        loop.call_later(0.1, lambda: (called.append("late"), last.set()))
        loop.call_later(0.02, lambda: called.append("early"))
        loop.call_later(0.02, lambda: called.append("as early"))
    assert last.wait(10)
    assert called == ["early", "as early", "late"]
    assert 0.1 <= time.monotonic() - began < 0.4, "without a wait for the next look at deadlines"


def test_a_failing_callback_does_not_affect_others(loop: StreamLoop) -> None:
    called = threading.Event()
    with loop.lock:
        loop.call_later(0.0, lambda: 1 // 0)
        loop.call_later(0.0, called.set)
    assert called.wait(10)


def open_descriptors() -> set[str]:
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}


def test_a_closed_loop_leaves_no_thread_and_no_descriptor() -> None:
    before = open_descriptors()
    loop = StreamLoop("closed-loop")
    loop.close(10.0)
    loop.close(10.0)
    assert "closed-loop" not in [thread.name for thread in threading.enumerate()]
    assert open_descriptors() <= before
