"""Finds workers and servers that are slow because of their nodes (AntDT: persistent stragglers), to replace them
elsewhere.

Workers are compared by their computing time, without the time in which they wait for servers or, in bsp, for other
workers. Servers are compared by the time for reading and changing rows, without waiting. A single pod of a role cannot
be compared and is never slow. Pure, except for the state of `SlowPods`: the cost of slow pods, and the last move.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping

import msgspec

from elastrec.platform.clusters.nodes import Node
from elastrec.platform.master.measuring.hot_servers import LEAST_ROWS_PER_SECOND, Load, hot_server
from elastrec.platform.master.measuring.lasting import Lasting
from elastrec.platform.specs.shape import PodSize

SLOW_RATIO = 2.0
"""Time per row of a slow pod ÷ the median of the others'. Minibatches and lists of rows differ in length by some ten
per cent; a node that others use as well, or whose processor is throttled, takes twice the time and more.
"""
MOVE_PRICE_POD_SECONDS = 45.0
"""Minimum cost of a move, in seconds of one pod's work. Chosen: a successor starts in ten to fifteen
seconds, and a needless move also uses one of `faults.slow_pod_moves` up. With it one of two workers at `SLOW_RATIO`,
which in `async` costs the job a quarter of its time, is moved after a minute.
"""
LEAST_SLOW_SECONDS = 20.0
"""A pod must be slow for at least this time. Chosen: another pod that starts on the node slows it down for less
time."""
COOL_DOWN_SECONDS = 300.0
"""Time between two moves of a role, so that the effect of the first one is measured before."""


class SlowPod(msgspec.Struct, frozen=True):
    """A slow pod.

    Attributes:
        ratio: of its time per row to the median of the others'.
        since: when it became slow, on the job's clock.
    """

    pod: str
    ratio: float
    seconds_per_row: float
    others_seconds_per_row: float
    since: float = 0.0


def slow_ones(seconds_per_row: Mapping[str, float]) -> list[SlowPod]:
    """The slow pods by their time per row, the slowest first."""
    found = []
    for pod, seconds in sorted(seconds_per_row.items(), key=lambda each: (-each[1], each[0])):
        others = statistics.median([each for name, each in seconds_per_row.items() if name != pod] or [0.0])
        if not 0 < SLOW_RATIO * others <= seconds:
            break  # pods that take less time are not slow either
        found.append(SlowPod(pod, seconds / others, seconds, others))
    return found


def price_seconds(start_seconds: float, pods: int) -> float:
    """The cost of a move in seconds of the job's time.

    Args:
        start_seconds: of a pod of the role in this job; 0: not measured.
        pods: of the job, which all work meanwhile.
    """
    return max(MOVE_PRICE_POD_SECONDS, start_seconds) / pods


def comparable(loads: Mapping[str, Load]) -> dict[str, float]:
    """Seconds per row of a job's servers; empty if they do not allow conclusions about the nodes.

    Only servers with the same cores and about the same load are compared, because a server at the limit of its cores
    takes longer for a row, and so does a server with few rows per request. If a server is hot, its buckets are moved
    instead of the server.
    """
    alike = len({load.cores for load in loads.values()}) == 1 and not hot_server(loads)
    if not alike or any(load.rows_per_second < LEAST_ROWS_PER_SECOND for load in loads.values()):
        return {}
    return {name: load.seconds_per_row for name, load in loads.items()}


def has_room_elsewhere(nodes: Iterable[Node], node: str, size: PodSize) -> bool:
    """Whether another node has room for a pod now; False if the cluster does not report it."""
    return any(
        each.takes_pods
        and each.name != node
        and size.cores <= each.free.cores
        and size.memory_bytes <= each.free.memory_bytes
        for each in nodes
    )


class SlowPods:
    """Observes the pods of one role; called once per window."""

    def __init__(self) -> None:
        self._lasting = Lasting(LEAST_SLOW_SECONDS, COOL_DOWN_SECONDS)

    def look(
        self,
        seconds_per_row: Mapping[str, float],
        shares: Mapping[str, float],
        price_seconds: float,
        now: float,
        left_seconds: float = math.inf,
    ) -> SlowPod | None:
        """Returns the slowest pod that was slow for long enough, until it is moved.

        Args:
            seconds_per_row: since the last call; unknown if fewer than two.
            shares: share of the job's time, 0 to 1, that the timed work of each pod takes.
            price_seconds: of a move, in seconds of the job's time.
            now: on the job's clock.
            left_seconds: until the job ends at its present speed; inf: not known.
        """
        slow = {each.pod: each for each in slow_ones(seconds_per_row)}
        losses = {pod: shares[pod] * (1 - 1 / each.ratio) for pod, each in slow.items()}
        since = self._lasting.look(losses if len(seconds_per_row) > 1 else None, price_seconds, now, left_seconds)
        worst = next((each for pod, each in slow.items() if pod in since), None)
        return None if worst is None else msgspec.structs.replace(worst, since=since[worst.pod])

    def moved(self, now: float) -> None:
        """One of them is moved."""
        self._lasting.done(now)

    def forget(self) -> None:
        """Discards earlier observations, because the pods have changed, or nothing is trained."""
        self._lasting.forget()
