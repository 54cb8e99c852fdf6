"""Which server is hot, and which of its buckets others should have: a move of buckets, before a pod more is asked for.

Requests of a step go to all servers and the step waits for the slowest, so a server with twice the rows of the others
holds all workers up. Pure but for what `HotServers` remembers: what a hot server has cost, and when one was relieved.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import msgspec

from elastrec.platform.master.measuring.lasting import Lasting

HOT_RATIO = 1.4
"""Load of a hot server ÷ the mean of the others'. Buckets are spread by hash, so that 256 of them on a few servers
differ by some per cent; 1.4 is far from that, and from what a relief leaves (`RELIEVED_RATIO`): none follows from one.
"""
RELIEVED_RATIO = 1.15
"""Buckets move until the server has no more than this."""
RELIEF_PRICE_SECONDS = 5.0
"""Of the job's time, what a relief costs. Chosen: copying takes a tenth of some seconds and the hand-over about one
(`python -m benchmarks migration`), and a needless relief keeps the next one waiting. With it a server at `HOT_RATIO`,
one of three in a job that does nothing but wait for them, is relieved after half a minute.
"""
LEAST_HOT_SECONDS = 10.0
"""For so long it has to be hot, however much that costs. Chosen: two windows, and most of a mean of `LoadMeter`."""
COOL_DOWN_SECONDS = 120.0
"""Between two reliefs: what the last one changed has to show first."""
LEAST_ROWS_PER_SECOND = 1000.0
"""Of a hot server: less than this keeps no core busy."""
MOST_MOVES = 8
"""Buckets of one relief: those that are copied first change anew while the others are."""


class Load(msgspec.Struct, frozen=True):
    """Of one server.

    Attributes:
        rows_per_core_second: that requests name ÷ cores.
        cores: of its pod.
        hottest: some of its buckets and their rows per second, from the highest on.
        seconds_per_row: that reading and changing rows took; 0: it was not measured yet.
    """

    rows_per_second: float
    cores: float
    hottest: Sequence[tuple[int, float]]
    seconds_per_row: float = 0.0

    @property
    def rows_per_core_second(self) -> float:
        return self.rows_per_second / self.cores


class Relief(msgspec.Struct, frozen=True):
    """A decision.

    Attributes:
        server: that is hot; ratio: of its load to the mean of the others, ratio_after: what it is to become.
        moves: new owner by bucket.
    """

    server: str
    ratio: float
    ratio_after: float
    moves: dict[int, str]


def ratio_of(loads: Mapping[str, Load], server: str) -> float:
    """Load per core of a server ÷ the mean of the others; 0 where there are none, or they have none."""
    others = [load.rows_per_core_second for name, load in loads.items() if name != server]
    mean = statistics.fmean(others) if others else 0.0
    return loads[server].rows_per_core_second / mean if mean else 0.0


def hot_server(loads: Mapping[str, Load]) -> str:
    """The server with the highest load per core if that is hot; empty: none is."""
    if len(loads) < 2:
        return ""
    server = max(sorted(loads), key=lambda name: loads[name].rows_per_core_second)
    is_hot = loads[server].rows_per_second >= LEAST_ROWS_PER_SECOND and ratio_of(loads, server) >= HOT_RATIO
    return server if is_hot else ""


def relief_of(loads: Mapping[str, Load], server: str) -> Relief | None:
    """Moves the hottest buckets of a server, each to the one with the least load, while that makes the worst less.

    None: no move does, for a single bucket is what makes it hot, or its load is spread over more than it names.
    """
    rates = {name: load.rows_per_second for name, load in loads.items()}
    moves: dict[int, str] = {}

    def per_core(name: str) -> float:
        return rates[name] / loads[name].cores

    def ratio() -> float:
        return per_core(server) / statistics.fmean(per_core(name) for name in rates if name != server)

    before = ratio()
    for bucket, rate in loads[server].hottest:
        if len(moves) == MOST_MOVES or ratio() <= RELIEVED_RATIO:
            break
        target = min((name for name in sorted(rates) if name != server), key=per_core)
        if (rates[target] + rate) / loads[target].cores < per_core(server):
            moves[bucket] = target
            rates[target] += rate
            rates[server] -= rate
    return Relief(server, before, ratio(), moves) if moves else None


def loss_of(loads: Mapping[str, Load], server: str, waiting_share: float) -> float:
    """Share of a job's time, 0 to 1, that a hot server costs: with the same load per core all would be done sooner.

    Args:
        waiting_share: of their steps, that workers wait for servers.
    """
    even = sum(load.rows_per_second for load in loads.values()) / sum(load.cores for load in loads.values())
    return waiting_share * (1 - even / loads[server].rows_per_core_second)


class HotServers:
    """What was seen until now; asked once per window."""

    def __init__(self) -> None:
        self._lasting = Lasting(LEAST_HOT_SECONDS, COOL_DOWN_SECONDS)

    def look(self, loads: Mapping[str, Load], waiting_share: float, now: float) -> Relief | None:
        """A relief that is due.

        Args:
            loads: of all servers since the last call; empty: not known.
            waiting_share: see `loss_of`.
            now: on the job's clock.
        """
        server = hot_server(loads)
        losses = {server: loss_of(loads, server, waiting_share)} if server else {}
        if server not in self._lasting.look(losses if loads else None, RELIEF_PRICE_SECONDS, now):
            return None
        relief = relief_of(loads, server)
        if relief is not None:
            self._lasting.done(now)
        return relief

    def forget(self) -> None:
        """Nothing counts that was seen until now: the servers, or what they own, are others."""
        self._lasting.forget()
