"""The processes of `calls`: a server and a client of each wire, with the same messages and the same token.

The messages are a heartbeat of a worker and the answer of a master without changes. The server checks the token,
decodes the heartbeat, encodes an answer, and does nothing else.
"""

from __future__ import annotations

import hmac
import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import pyarrow.flight as flight

from benchmarks.common.child import serve
from elastrec.platform.transport import RpcClient, RpcServer
from elastrec.platform.transport.messages.directive import Directive, Mode, RoutingTable
from elastrec.platform.transport.messages.job import Answer, Heartbeat, ShardProgress
from elastrec.platform.transport.server import end_process

_TOKEN = "benchmark"
_ANSWER = Answer(
    directive=Directive(
        version=7,
        mode=Mode.TRAIN,
        generation=1,
        routing=RoutingTable(epoch=1, owners=[0, 1] * 128, servers=["ps-0", "ps-1"], addresses=["a:1", "b:2"]),
    ),
    heartbeat_seconds=5.0,
)


def heartbeat(number: int) -> Heartbeat:
    """What a worker says, `number` of its steps later."""
    progress = ShardProgress(stream="training", number=number % 1000, attempt=1, offset=512 * number, ended=False)
    return Heartbeat(
        pod="benchmark-1-worker-0", incarnation="0123456789abcdef", generation=1, reached_version=7,
        progress=[progress], memory_bytes=2**30, cpu_seconds=1.5 * number,
    )  # fmt: skip


def answer(message: Heartbeat) -> Answer:
    """What both servers answer; a heartbeat that was not decoded would show."""
    if message.progress[0].offset != 512 * round(message.cpu_seconds / 1.5):
        raise ValueError("this is not the heartbeat that was sent")
    return _ANSWER


class _TokenCheck(flight.ServerMiddlewareFactory):
    """The same check as ours, call by call: Flight knows no other moment."""

    def start_call(self, info: Any, headers: Mapping[str, list[Any]]) -> None:
        given = headers.get("authorization") or [""]
        if not hmac.compare_digest(str(given[0]), f"Bearer {_TOKEN}"):
            raise flight.FlightUnauthenticatedError("missing or wrong token")


class _FlightServer(flight.FlightServerBase):
    def __init__(self) -> None:
        super().__init__("grpc+tcp://127.0.0.1:0", middleware={"token": _TokenCheck()})
        self._decoder = msgspec.msgpack.Decoder(Heartbeat)

    def do_action(self, context: Any, action: flight.Action) -> Iterator[bytes]:
        return iter([msgspec.msgpack.encode(answer(self._decoder.decode(memoryview(action.body))))])


def run_server(wire: str) -> None:
    if wire == "flight":
        server = _FlightServer()
        threading.Thread(target=server.serve, daemon=True).start()
        address = f"127.0.0.1:{server.port}"
    else:
        ours = RpcServer({Heartbeat: answer}, token=_TOKEN, local_streams=wire == "local")
        ours.serve_in_background()
        address = ours.address
    serve(lambda _: {}, {"address": address})
    end_process(0)


def _flight_caller(address: str) -> Callable[[Heartbeat], Answer]:
    client = flight.connect(f"grpc+tcp://{address}")
    options = flight.FlightCallOptions(timeout=10.0, headers=[(b"authorization", f"Bearer {_TOKEN}".encode())])
    decoder = msgspec.msgpack.Decoder(Answer)

    def call(message: Heartbeat) -> Answer:
        results = list(client.do_action(flight.Action("Heartbeat", msgspec.msgpack.encode(message)), options))
        return decoder.decode(memoryview(results[0].body))

    return call


def run_client(wire: str, address: str) -> None:
    ours = RpcClient(address, _TOKEN)
    caller = _flight_caller(address) if wire == "flight" else lambda message: ours.call(message, Answer)

    def calls(request: dict[str, int]) -> dict[str, int]:
        """One call after the other."""
        for number in range(1, request["calls"] + 1):
            if caller(heartbeat(number)).directive != _ANSWER.directive:
                raise ValueError("this is not the answer that was given")
        return {"calls": request["calls"]}

    serve(calls, {})
    end_process(0)


if __name__ == "__main__":
    role, settings = sys.argv[1], json.loads(sys.argv[2])
    (run_server if role == "server" else run_client)(**settings)
