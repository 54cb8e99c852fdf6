"""Finds a hot server and the buckets that should move to other servers; this is tried before more pods are requested.

The requests of a step go to all servers, and the step waits for the slowest, so a server with twice the rows of the
others delays all workers. Pure, except for the state of `HotServers`: the cost of hot servers, and the last relief.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

import msgspec

from elastrec.platform.master.measuring.lasting import Lasting
from elastrec.platform.transport.messages.job import BucketLoad

HOT_RATIO = 1.4
"""Load of a hot server ÷ the mean of the others'. Buckets are spread by hash, so that 256 of them on a few servers
differ by some per cent; 1.4 is far from that, and from what a relief leaves (`RELIEVED_RATIO`): none follows from one.
"""
RELIEVED_RATIO = 1.15
"""Buckets move until the server's ratio is at most this."""
RELIEF_SECONDS = 2.0
"""Part of a relief's price that does not depend on its bytes, in seconds of the job's time: the hand-over, and the cool
down of a needless relief, which keeps the next one waiting.
"""
COPIED_BYTES_PER_CORE_SECOND = 200e6
"""Bytes of moved buckets for which a server's core-second is lost to requests, all rounds of copying included. Chosen:
servers of 0.04 cores moved 31 MB in 10 s, during which the job was slower by 28 % (280 MB), and 73 MB in 67 s, because
most of their rows changed in each of three rounds (110 MB if the job was slower by as much; `python -m benchmarks
hot_server`, the second with batches of 4,096 and ten times the ids).
"""
LEAST_HOT_SECONDS = 10.0
"""A server must be hot for at least this time. Chosen: two windows, and most of the mean of a `LoadMeter`."""
COOL_DOWN_SECONDS = 120.0
"""Time between two reliefs, so that the effect of the last one is measured first."""
LEAST_ROWS_PER_SECOND = 1000.0
"""Minimum load of a hot server; a smaller load does not use a core fully."""
MOST_MOVES = 8
"""Maximum number of buckets of one relief, because buckets that were copied first change while others are copied."""


class Load(msgspec.Struct, frozen=True):
    """The load of one server.

    Attributes:
        rows_per_core_second: requested rows ÷ cores.
        cores: of its pod.
        hottest: some of its buckets, from the highest load on.
        seconds_per_row: time for reading and changing a row; 0: not measured yet.
    """

    rows_per_second: float
    cores: float
    hottest: Sequence[BucketLoad]
    seconds_per_row: float = 0.0

    @property
    def rows_per_core_second(self) -> float:
        return self.rows_per_second / self.cores


class Relief(msgspec.Struct, frozen=True):
    """A decision to move buckets.

    Attributes:
        server: the hot server; ratio: of its load to the mean of the others; ratio_after: the expected ratio
            afterwards.
        moves: new owner by bucket.
        size_bytes: of these buckets.
        price_seconds: cost of the relief in seconds of the job's time.
    """

    server: str
    ratio: float
    ratio_after: float
    moves: dict[int, str]
    size_bytes: int
    price_seconds: float


def ratio_of(loads: Mapping[str, Load], server: str) -> float:
    """Load per core of a server ÷ the mean of the others; 0 where there are none, or they have none."""
    others = [load.rows_per_core_second for name, load in loads.items() if name != server]
    mean = statistics.fmean(others) if others else 0.0
    return loads[server].rows_per_core_second / mean if mean else 0.0


def hot_server(loads: Mapping[str, Load]) -> str:
    """The server with the highest load per core, if it is hot; otherwise empty."""
    if len(loads) < 2:
        return ""
    server = max(sorted(loads), key=lambda name: loads[name].rows_per_core_second)
    is_hot = loads[server].rows_per_second >= LEAST_ROWS_PER_SECOND and ratio_of(loads, server) >= HOT_RATIO
    return server if is_hot else ""


def relief_of(loads: Mapping[str, Load], server: str) -> Relief | None:
    """Moves the hottest buckets of a server, each to the server with the least load, as long as the highest load
    decreases.

    None if no move helps, because the load is in a single bucket, or spread over more buckets than the server reports.
    """
    rates = {name: load.rows_per_second for name, load in loads.items()}
    moves: dict[int, str] = {}
    copied_bytes = dict.fromkeys(loads, 0)

    def per_core(name: str) -> float:
        return rates[name] / loads[name].cores

    def ratio() -> float:
        return per_core(server) / statistics.fmean(per_core(name) for name in rates if name != server)

    before = ratio()
    for hot in loads[server].hottest:
        if len(moves) == MOST_MOVES or ratio() <= RELIEVED_RATIO:
            break
        target = min((name for name in sorted(rates) if name != server), key=per_core)
        if (rates[target] + hot.rows_per_second) / loads[target].cores < per_core(server):
            moves[hot.bucket] = target
            rates[target] += hot.rows_per_second
            rates[server] -= hot.rows_per_second
            for name in (server, target):
                copied_bytes[name] += hot.size_bytes
    if not moves:
        return None
    copying = (copied / (COPIED_BYTES_PER_CORE_SECOND * loads[name].cores) for name, copied in copied_bytes.items())
    return Relief(server, before, ratio(), moves, copied_bytes[server], RELIEF_SECONDS + max(copying))


def loss_of(loads: Mapping[str, Load], server: str, waiting_share: float) -> float:
    """Share of a job's time, 0 to 1, that would be saved if all servers had the same load per core.

    Args:
        waiting_share: share of their steps in which workers wait for servers.
    """
    even = sum(load.rows_per_second for load in loads.values()) / sum(load.cores for load in loads.values())
    return waiting_share * (1 - even / loads[server].rows_per_core_second)


class HotServers:
    """Observes the loads of servers; called once per window."""

    def __init__(self) -> None:
        self._lasting = Lasting(LEAST_HOT_SECONDS, COOL_DOWN_SECONDS)

    def look(
        self, loads: Mapping[str, Load], waiting_share: float, now: float, left_seconds: float = math.inf
    ) -> Relief | None:
        """Returns a relief if one is due.

        Args:
            loads: of all servers since the last call; empty: not known.
            waiting_share: see `loss_of`.
            now: on the job's clock.
            left_seconds: until the job ends at its present speed; inf: not known.
        """
        server = hot_server(loads)
        relief = relief_of(loads, server) if server else None
        losses = {relief.server: loss_of(loads, relief.server, waiting_share)} if relief else {}
        price_seconds = relief.price_seconds if relief else 0.0
        if not self._lasting.look(losses if loads else None, price_seconds, now, left_seconds):
            return None
        self.moved(now)
        return relief

    def moved(self, now: float) -> None:
        """Buckets of one of them were moved."""
        self._lasting.done(now)

    def forget(self) -> None:
        """Discards earlier observations, because the servers or their buckets have changed."""
        self._lasting.forget()
