"""The cost of a change of servers during training: two parameter servers become three, with all their rows.

    python -m benchmarks migration [--bytes 2e9] [--seconds 10] [--output json]

A worker trains without pause while the third server copies its buckets and takes them over. Afterwards, the same job is
stopped, saved, and restored by three servers that are started for it. Another worker with its own server takes the same
steps without either.

Servers and workers are processes of the product's code; the parent process sends what a master would. The model is a
logistic regression. The restart keeps the worker's process, so it is faster than that of a whole job. Most of a large
copy is its first round; with few bytes, nearly all rounds are short.

What turns a figure red: a server that always reports its buckets as copied (`Mover`: `is_small` true), the pause; a
server that copies without pauses between its requests (`TakeOrder.copy_share` 1), the throughput during the copy.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.common.child import Child, one_core
from benchmarks.common.figures import Figure, OtherLoad, run_benchmark
from benchmarks.processes.migration import BUCKETS, DIMENSION, FEATURES, job
from elastrec.checkpoints import PartManifest, commit_record, new_record_uri
from elastrec.platform.specs.buckets import balanced_owners
from elastrec.platform.transport.messages.directive import RoutingTable, TakeFrom, TakeOrder

_BEFORE, _AFTER = 2, 3
_WARM_STEPS, _LOOK_SECONDS, _LATE_SECONDS = 100, 0.02, 600.0
_ROW_BYTES = 4 * (DIMENSION + 5)


class Site:
    """Processes of one measurement, and the routing table in force."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.servers: dict[str, Child] = {}
        self.routing = RoutingTable(epoch=0, owners=[], servers=[], addresses=[])

    def process(self, role: str, argument: Any) -> Child:
        child = Child("benchmarks.processes.migration", role, json.dumps(argument), environment=one_core())
        self._stack.callback(child.close)
        return child

    def start(self, count: int, prefix: str = "ps") -> None:
        """Servers up to this number; they own nothing yet."""
        for number in range(len(self.servers), count):
            self.servers[f"{prefix}-{number}"] = self.process("server", f"{prefix}-{number}")

    def table(self, names: Sequence[str]) -> RoutingTable:
        """These servers own everything; as few buckets as possible move."""
        before = [names.index(name) if name in names else None for name in self.routing.servers]
        owners = balanced_owners(BUCKETS, len(names), [before[owner] for owner in self.routing.owners])
        return RoutingTable(
            epoch=self.routing.epoch + 1, owners=owners, servers=list(names),
            addresses=[self.servers[name].hello["address"] for name in names], dense_owners=list(owners),
        )  # fmt: skip

    def ask(self, name: str, do: str, **arguments: Any) -> Any:
        return self.servers[name].ask(do=do, **{key: msgspec.to_builtins(value) for key, value in arguments.items()})

    def order(self, taker: str, after: RoutingTable) -> TakeOrder:
        """What a server that owns nothing is to take."""
        mine = [bucket for bucket in range(BUCKETS) if after.servers[after.owners[bucket]] == taker]
        sources = []
        for giver, name in enumerate(self.routing.servers):
            buckets = [bucket for bucket in mine if self.routing.owners[bucket] == giver]
            if buckets:
                sources.append(TakeFrom(name, self.servers[name].hello["address"], buckets, buckets))
        return TakeOrder(f"move-{after.epoch}", sources)


def _until(ready: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _LATE_SECONDS
    while not ready():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: not within {_LATE_SECONDS:.0f} s")
        time.sleep(_LOOK_SECONDS)


def migrate(site: Site, span: dict[str, tuple[float, float]]) -> None:
    """Two servers become three while the worker trains."""
    names = [*site.routing.servers, f"ps-{_BEFORE}"]
    began = time.monotonic()
    site.start(_AFTER)
    after, taker = site.table(names), names[-1]
    order = site.order(taker, after)
    copying = time.monotonic()
    site.ask(taker, "follow", order=order)
    _until(lambda: site.ask(taker, "copied") == order.order_id, "the copy")
    due = time.monotonic()
    if not site.ask(taker, "take_over", order=order, routing=after):
        raise RuntimeError("the buckets were not taken over")
    for name in names:
        site.ask(name, "adopt", routing=after)
    span |= {"starting": (began, copying), "copying": (copying, due), "handing_over": (due, time.monotonic())}
    for name in names:
        site.ask(name, "drop_left")
    site.routing = after


def restart(site: Site, worker: Child, folder: str, steps: int) -> float:
    """Stop, record, new processes, restore; when it began."""
    began = time.monotonic()
    worker.ask(do="stop")
    uri = new_record_uri(f"{folder}/store", "benchmark", "benchmark-1", 1)
    parts = [msgspec.convert(site.ask(name, "save", uri=uri), PartManifest) for name in site.servers]
    commit_record(uri, parts, b"{}", job=job(), job_id="benchmark-1", kind="periodic", step=1, generation=1)
    for child in site.servers.values():
        child.close()
    site.servers = {}
    site.start(_AFTER)
    routing = site.table(list(site.servers))
    for name in site.servers:
        site.ask(name, "restore", routing=routing, uri=uri, generation=2)
    worker.ask(do="connect", routing=msgspec.to_builtins(routing), generation=2)
    worker.ask(do="go", steps=steps)
    site.routing = routing
    return began


def undisturbed(stack: ExitStack, rows: int, steps: int) -> tuple[list[float], float]:
    """Losses and AUC of as many steps with one server that nothing happens to."""
    site = Site(stack)
    site.start(1, "alone")
    site.routing = site.table(list(site.servers))
    site.ask("alone-0", "start", routing=site.routing)
    worker = site.process("worker", rows)
    worker.ask(do="connect", routing=msgspec.to_builtins(site.routing), generation=1)
    worker.ask(do="go", steps=steps)
    worker.ask(do="wait")
    return worker.ask(do="story")["losses"], worker.ask(do="auc")


def measure(arguments: argparse.Namespace) -> list[Figure]:
    rows = max(1000, int(arguments.bytes / _ROW_BYTES / FEATURES))
    span: dict[str, tuple[float, float]] = {}
    with OtherLoad() as load, ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="elastrec-benchmark-", dir=arguments.folder))
        site = Site(stack)
        site.start(_BEFORE)
        site.routing = site.table(list(site.servers))
        for name in site.servers:
            site.ask(name, "start", routing=site.routing)
        held_bytes = sum(site.ask(name, "fill", rows=rows) for name in site.servers)
        worker = site.process("worker", rows)
        worker.ask(do="connect", routing=msgspec.to_builtins(site.routing), generation=1)
        worker.ask(do="go", steps=_WARM_STEPS)
        worker.ask(do="wait")
        worker.ask(do="go", steps=2**31)
        before = time.monotonic()
        time.sleep(arguments.seconds)
        span["before"] = before, time.monotonic()
        migrate(site, span)
        time.sleep(arguments.seconds)
        stopped = restart(site, worker, folder, 2**31)
        time.sleep(arguments.seconds)
        steps = worker.ask(do="stop")
        story, auc = worker.ask(do="story"), worker.ask(do="auc")
        for child in [*site.servers.values(), worker]:
            child.close()
        losses, plain_auc = undisturbed(stack, rows, steps)
    ends = np.array(story["ends"])
    settings = {
        "bytes": held_bytes, "rows": rows * FEATURES, "servers": f"{_BEFORE} to {_AFTER}", "steps": steps,
        "others_cores": round(load.cores, 2), **arguments_of(span),
    }  # fmt: skip
    return [
        *figures(ends, span, stopped, settings),
        Figure(
            "migration.loss_difference", max(abs(a - b) for a, b in zip(story["losses"], losses, strict=True)),
            "largest of any step, to the same steps without it", at_most=0.0, settings=settings,
        ),
        Figure("migration.auc_difference", abs(auc - plain_auc), "AUC", at_most=0.001, settings={"auc": auc}),
    ]  # fmt: skip


def arguments_of(span: dict[str, tuple[float, float]]) -> dict[str, float]:
    return {f"{name}_seconds": round(end - begin, 3) for name, (begin, end) in span.items()}


def _steps(ends: np.ndarray, span: tuple[float, float]) -> np.ndarray:
    """Seconds of each step that ended in a span."""
    chosen = ends[(ends >= span[0]) & (ends <= span[1])]
    return np.diff(chosen)


def figures(
    ends: np.ndarray, span: dict[str, tuple[float, float]], stopped: float, settings: dict[str, Any]
) -> list[Figure]:
    """Of the ends of all steps, and when what began and ended."""
    before, copying = _steps(ends, span["before"]), _steps(ends, span["copying"])
    usual = statistics.median(before.tolist())
    begin, end = span["handing_over"]
    gaps = list(pairwise(ends.tolist()))
    pause = max(later - earlier for earlier, later in gaps if earlier < end and later > begin) - usual
    gap = max(later - earlier for earlier, later in gaps if later > stopped) - usual
    if not len(copying):
        raise RuntimeError("no step ended while buckets were copied: ask for more bytes")
    speed = float(len(copying) / copying.sum() * before.sum() / len(before))
    return [
        Figure("migration.pause", pause, "s without a step", at_most=1.0, settings=settings),
        Figure("migration.pause_to_restart", pause / gap, "of the pause of a restart", at_most=0.05,
               settings={"restart_seconds": round(gap, 2)}),
        Figure("migration.throughput_while_copying", speed, "of the throughput before", at_least=0.85,
               settings={"steps_per_second_before": round(len(before) / before.sum(), 1)}),
        Figure("migration.p99_while_copying", float(np.quantile(copying, 0.99) / np.quantile(before, 0.99)),
               "of the p99 step before", at_most=2.0,
               settings={"p99_before_seconds": round(float(np.quantile(before, 0.99)), 4),
                         "steps_while_copying": len(copying)}),
    ]  # fmt: skip


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bytes", type=float, default=2e9, help="of all rows (default 2e9)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of training before, between and after")
    parser.add_argument("--folder", type=Path, help="where on the disk to write (default: the temporary folder)")


if __name__ == "__main__":
    run_benchmark(__doc__, measure, add_options)
