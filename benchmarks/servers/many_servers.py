"""The cost of many servers for a worker: its CPU seconds per step with 4 and with 20 servers ÷ those with one.

The same minibatches of DLRM's size (26 tables, batch 512, its dense parameters both ways) and the same steps as the
worker's loop takes them: route, send the last push together with the next pull, wait for rows and dense parameters.
Forward and backward passes are left out, because they do not depend on the number of servers and would hide the
difference.

    python -m benchmarks many_servers [--slices 40] [--output json]

Every server is a process of its own. The sides alternate in short slices in one worker process. `tcp` is the transport
to servers on other machines, `local` is shared memory with servers on the same machine.

The cost of one server is mostly memory, that of every further one mostly Python and system calls, so the figures depend
on the host: one with fast memory shows 2.0 (`tcp`) and 3.0 (`local`), another one 1.8 and 2.2, with about the same 50
microseconds for each further server. A push that is sent at once, instead of with the next pull (`ParameterClient.push`
that ignores `hold`), makes both figures larger by about a third, and both of them red.
"""

from __future__ import annotations

import argparse
import json
import statistics
from contextlib import ExitStack

from benchmarks.common.child import Child, one_core
from benchmarks.common.figures import Figure, run_benchmark, take_turns

_SIDES = (1, 4, 20)
_GOAL = 2.0


def measure_kind(is_local: bool, arguments: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    """CPU seconds of each slice, by number of servers."""

    def process(stack: ExitStack, *words: str) -> Child:
        return stack.enter_context(Child("benchmarks.processes.many_servers", *words, environment=one_core()))

    with ExitStack() as stack:
        servers = [
            process(stack, "server", str(number), json.dumps(is_local), json.dumps([n for n in _SIDES if n > number]))
            for number in range(max(_SIDES))
        ]
        addresses = {count: [each.hello[str(count)] for each in servers[:count]] for count in _SIDES}
        worker = process(stack, "worker", str(arguments.batch), json.dumps(addresses))
        sides = {
            str(count): lambda count=count: worker.ask(servers=count, steps=arguments.steps)  # type: ignore[misc]
            for count in _SIDES
        }
        take_turns(sides, 5)  # caches, allocators and segments of shared memory settle
        return take_turns(sides, arguments.slices)


def measure(arguments: argparse.Namespace) -> list[Figure]:
    figures = []
    for is_local in (False, True):
        kind = "local" if is_local else "tcp"
        measured = measure_kind(is_local, arguments)
        one = [slice_["cpu"] for slice_ in measured["1"]]
        for count in _SIDES[1:]:
            ratios = [each["cpu"] / base for each, base in zip(measured[str(count)], one, strict=True)]
            figures.append(
                Figure(
                    f"many_servers.{kind}.{count}_servers",
                    statistics.median(ratios),
                    "of the worker's CPU per step with one server",
                    at_most=_GOAL if count == max(_SIDES) else None,
                    settings={"batch": arguments.batch, "tables": 26, "slices": arguments.slices},
                )
            )
        for count, slices in measured.items():
            for part in ("cpu", "main_thread"):
                spent = statistics.median(1e3 * each[part] / arguments.steps for each in slices)
                figures.append(Figure(f"many_servers.{kind}.{count}_servers.{part}", spent, "CPU ms per step"))
    return figures


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch", type=int, default=512, help="rows of a minibatch (default 512)")
    parser.add_argument("--slices", type=int, default=40, help="slices of each side (default 40)")
    parser.add_argument("--steps", type=int, default=20, help="steps of a slice (default 20)")


if __name__ == "__main__":
    run_benchmark(__doc__, measure, add_options)
