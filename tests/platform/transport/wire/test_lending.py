"""Message bodies in shared memory: used ones do not change, released ones are reused, foreign clients cannot lend
any.
"""

from __future__ import annotations

import array
import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, rule

from elastrec.platform.specs.errors import TransportError
from elastrec.platform.transport import ArrayStream, RpcClient, RpcServer, new_token
from elastrec.platform.transport.wire import lending as lending_module
from elastrec.platform.transport.wire.frames import encode_frame
from elastrec.platform.transport.wire.lending import (
    LARGEST_BYTES,
    MAXIMUM_SEGMENTS,
    SMALLEST_BYTES,
    Borrower,
    Lender,
    may_lend,
)
from tests.platform.transport.messages import Answered, AskArrays
from tests.platform.transport.raw_wire import greeting, header, read_reply, tcp_only

TOKEN = new_token()
Array = np.ndarray


def add_one(message: AskArrays, arrays: list[Array]) -> tuple[Answered, list[Array]]:
    return Answered(message.number), [each + 1 for each in arrays]


@pytest.fixture(scope="module")
def server() -> Iterator[RpcServer]:
    server = RpcServer({}, token=TOKEN, array_handlers={AskArrays: add_one})
    server.serve_in_background()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def client(server: RpcServer) -> Iterator[RpcClient]:
    client = RpcClient(server.address, TOKEN)
    yield client
    client.close()


@pytest.fixture
def stream(client: RpcClient) -> Iterator[ArrayStream]:
    stream = client.open_stream([Answered], 10.0)
    yield stream
    stream.close()


def lies_in_lent_memory(values: Array) -> bool:
    """Whether the kernel maps the array's memory from a segment."""
    address = values.ctypes.data
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(each, 16) for each in line.split()[0].split("-"))
        if start <= address < end:
            return "elastrec-frames" in line
    return False


def open_segments() -> set[int]:
    """Inodes of the segments that this process holds descriptors of."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if "elastrec-frames" in str(entry.readlink()):
                found.add(entry.stat().st_ino)
    return found


def assert_let_go(before: set[int]) -> None:
    """All segments that came after `before`; the server's thread ends a moment after the client has hung up."""
    deadline, pause = time.monotonic() + 10, threading.Event()
    while left := open_segments() - before:
        assert time.monotonic() < deadline, f"{len(left)} segments are still open"
        pause.wait(0.01)


def test_large_bodies_use_shared_memory_and_small_ones_the_socket(stream: ArrayStream) -> None:
    for count in (8, SMALLEST_BYTES, 300_000):
        (got,) = stream.request(AskArrays(1), [np.arange(count)])[1]
        np.testing.assert_array_equal(got, np.arange(count) + 1)
        assert lies_in_lent_memory(got) == (got.nbytes >= SMALLEST_BYTES)
        assert not got.flags.writeable


def test_kept_answers_do_not_change(stream: ArrayStream) -> None:
    kept = []
    for number in range(MAXIMUM_SEGMENTS + 5):
        (got,) = stream.request(AskArrays(number), [np.full(20_000, number, np.int64)])[1]
        kept.append(got)
    for number, got in enumerate(kept):
        assert (got == number + 1).all()
    assert not lies_in_lent_memory(kept[-1]), "all segments are held, so that it came over the socket"


def test_segments_are_used_again_and_let_go_at_the_end(client: RpcClient) -> None:
    before = open_segments()
    stream = client.open_stream([Answered], 10.0)
    places = set()
    for number in range(50):
        (got,) = stream.request(AskArrays(number), [np.full(20_000, number, np.int64)])[1]
        assert (got == number + 1).all()
        places.add(got.ctypes.data)
    assert len(places) <= 3
    stream.close()
    del stream, got
    assert_let_go(before)


def test_a_body_that_outgrows_its_segment_gets_a_larger_one(stream: ArrayStream) -> None:
    for count in (10_000, 1_000_000, 3_000_000, 10_000):
        (got,) = stream.request(AskArrays(1), [np.arange(count)])[1]
        np.testing.assert_array_equal(got, np.arange(count) + 1)


def test_a_body_beyond_the_largest_segment_is_sent_over_the_socket(stream: ArrayStream) -> None:
    (got,) = stream.request(AskArrays(1), [np.zeros(LARGEST_BYTES + 1, np.uint8)])[1]
    assert got.nbytes > LARGEST_BYTES and (got == 1).all() and not lies_in_lent_memory(got)


def test_borrowed_memory_outlives_the_connection(client: RpcClient) -> None:
    stream = client.open_stream([Answered], 10.0)
    (got,) = stream.request(AskArrays(1), [np.arange(50_000)])[1]
    stream.close()
    np.testing.assert_array_equal(got, np.arange(50_000) + 1)


def test_across_machines_nothing_is_lent(client: RpcClient) -> None:
    stream = tcp_only(client).open_stream([Answered], 10.0)
    (got,) = stream.request(AskArrays(1), [np.arange(50_000)])[1]
    assert (got == np.arange(50_000) + 1).all() and not lies_in_lent_memory(got)
    stream.close()


def test_another_users_process_is_lent_nothing(client: RpcClient, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = socket.socketpair(socket.AF_UNIX)
    assert may_lend(one)
    monkeypatch.setattr(lending_module.os, "geteuid", lambda: os.getuid() + 1)
    assert not may_lend(one)
    one.close(), other.close()
    stream = client.open_stream([Answered], 10.0)
    (got,) = stream.request(AskArrays(1), [np.arange(50_000)])[1]
    assert (got == np.arange(50_000) + 1).all() and not lies_in_lent_memory(got)
    stream.close()


def test_a_system_that_refuses_the_memory_still_gets_the_body_across(
    stream: ArrayStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> int:
        raise OSError(24, "too many open files")

    monkeypatch.setattr(lending_module.os, "memfd_create", refused)
    (got,) = stream.request(AskArrays(1), [np.arange(50_000)])[1]
    assert (got == np.arange(50_000) + 1).all() and not lies_in_lent_memory(got)


def unsealed() -> int:
    descriptor = os.memfd_create("elastrec-test")
    os.ftruncate(descriptor, 2**20)
    return descriptor


def no_memory() -> int:
    reading, writing = os.pipe()
    os.close(writing)
    return reading


@pytest.mark.parametrize(
    ("segment", "given_back", "make"),
    [(0, 0, None), (3, 0, None), (255, 1, None), (255, 0x8000, None), (0, 0, unsealed), (0, 0, no_memory)],
    ids=["unknown", "unknown number", "never lent", "never lent either", "can shrink", "no memory"],
)
def test_a_lie_about_lent_memory_ends_that_connection_alone(
    server: RpcServer, client: RpcClient, segment: int, given_back: int, make: object
) -> None:
    before = open_segments()
    metadata, buffers = encode_frame(AskArrays(1), [np.zeros(SMALLEST_BYTES, np.uint8)])
    body_bytes = sum(len(each) for each in buffers)
    frame = header(len(metadata), body_bytes, segment, given_back) + metadata
    descriptor = make() if callable(make) else -1
    along = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))] if descriptor >= 0 else []
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(10)
        link.connect("\0" + server._port.welcome.local_name)
        link.sendall(greeting(TOKEN, b"elg2"))
        heard = link.makefile("rb", 0)
        assert heard.read(1) == b"\x02"
        assert read_reply(heard).kind == "Welcome"
        link.sendmsg([frame], along)
        assert link.recv(1) == b""
    if descriptor >= 0:
        os.close(descriptor)
    assert_let_go(before)
    stream = client.open_stream([Answered], 10.0)
    assert stream.request(AskArrays(7))[0] == Answered(7)
    stream.close()


def test_a_segment_that_is_still_borrowed_cannot_be_lent_again() -> None:
    lender, borrower = Lender(), Borrower()
    segment = lender.lend([b"x" * SMALLEST_BYTES], SMALLEST_BYTES)
    assert segment is not None
    borrower.map(segment.number, segment.descriptor)
    held = borrower.body(segment.number, SMALLEST_BYTES)
    with pytest.raises(TransportError, match="lent twice"):
        borrower.body(segment.number, SMALLEST_BYTES)
    assert bytes(held[:2]) == b"xx"
    lender.close()


class Loans(RuleBasedStateMachine):
    """Bodies go one way and are dropped at any time: each reads the same until then, and few segments suffice."""

    bodies = Bundle("bodies")

    def __init__(self) -> None:
        super().__init__()
        self.lender, self.borrower = Lender(), Borrower()
        self.count = 0

    @rule(target=bodies, size_bytes=st.integers(SMALLEST_BYTES, 3 * 2**20))
    def lend(self, size_bytes: int) -> tuple[list[Array], int]:
        self.count += 1
        fill = self.count % 251
        segment = self.lender.lend([np.full(size_bytes, fill, np.uint8).data], size_bytes)
        if segment is None:
            return [], fill
        if segment.descriptor >= 0:
            self.borrower.map(segment.number, segment.descriptor)
            segment.close()
        body = self.borrower.body(segment.number, size_bytes)
        # As `decode_frame` does: what is kept is a view.
        return [body[64:].view(np.uint8).reshape(-1)], fill

    @rule(body=consumes(bodies))
    def drop(self, body: tuple[list[Array], int]) -> None:
        for values in body[0]:
            assert (values == body[1]).all()
        body[0].clear()

    @rule()
    def give_back(self) -> None:
        self.lender.note_returned(self.borrower.give_back())

    @rule(body=bodies)
    def read(self, body: tuple[list[Array], int]) -> None:
        for values in body[0]:
            assert (values == body[1]).all()

    def teardown(self) -> None:
        self.lender.close()


TestLoans = Loans.TestCase
TestLoans.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
