"""The cost of a call: calls per CPU second of client and server together, with our transport and with Arrow Flight.

A client process calls a server process, one call after the other: a worker's heartbeat and a master's answer, with the
token checked (see `processes.calls`). The server and the client for Flight are minimal, without retries, limits or
structured errors. The sides alternate; a figure is the median of the rounds. `tcp` is our transport between machines,
`local` the one within a network namespace, which pods of the local cluster use.

A connection for each call (`channel.close()` in the place of `self._idle.put(...)` in `RpcClient._exchange`) turns
both ratios red.

    python -m benchmarks calls [--calls 3000] [--rounds 5] [--output json]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
from functools import partial

from benchmarks.common.child import Child, one_core
from benchmarks.common.figures import Figure, interleave, ratio, run_benchmark

_MODULE = "benchmarks.processes.calls"
_WIRES = ("tcp", "local", "flight")


def _cpu_seconds(server: Child, client: Child, calls: int) -> float:
    """Of both processes, per call."""
    before = server.cpu_seconds() + client.cpu_seconds()
    client.ask(calls=calls)
    return (server.cpu_seconds() + client.cpu_seconds() - before) / calls


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """All three transports at once; while one is measured, the others are idle."""
    with contextlib.ExitStack() as stack:
        runs = {}
        for wire in _WIRES:
            settings = {"wire": wire}
            server = stack.enter_context(Child(_MODULE, "server", json.dumps(settings), environment=one_core()))
            settings["address"] = server.hello["address"]
            client = stack.enter_context(Child(_MODULE, "client", json.dumps(settings), environment=one_core()))
            runs[wire] = partial(_cpu_seconds, server, client, arguments.calls)
            client.ask(calls=min(200, arguments.calls))
        seconds = interleave(runs, rounds=arguments.rounds)
    settings = {"calls": arguments.calls, "rounds": arguments.rounds}
    return [
        *(
            Figure(f"calls.{wire}_per_cpu_second_to_flight", ratio(seconds["flight"], seconds[wire]), "×",
                   at_least=2.0, settings=settings)
            for wire in ("tcp", "local")
        ),
        *(
            Figure(f"calls.{wire}_cpu", 1e6 * statistics.median(seconds[wire]), "CPU µs per call, both ends",
                   settings={"each": [round(1e6 * value) for value in seconds[wire]]})
            for wire in _WIRES
        ),
    ]  # fmt: skip


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--calls", type=int, default=3000, help="calls of a round (default 3,000)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default 5)")


if __name__ == "__main__":
    run_benchmark(__doc__, measure, add_options)
