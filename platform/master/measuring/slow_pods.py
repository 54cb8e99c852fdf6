"""Which worker or server is slow because of its node (AntDT: persistent stragglers): its successor starts elsewhere.

A worker is compared with the others of its job by what it computes alone: waiting for rows is the servers' doing, in
bsp the others'. A server is compared by what it takes to read and change rows, without what it waits for. One that is
alone cannot be compared, and is never found slow. Pure but for what `SlowPods` remembers: since when a pod is slow, and
when one was moved.
"""

from __future__ import annotations

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
SLOW_SECONDS = 60.0
"""For so long, without a break, it has to be slow: neighbours of a few seconds pass by themselves."""
COOL_DOWN_SECONDS = 300.0
"""Between two pods of a role that are moved: what the first move changed has to show before."""


class SlowPod(msgspec.Struct, frozen=True):
    """A finding.

    Attributes:
        ratio: of its time per row to the median of the others'.
        since: when it became the slow one, on the job's clock.
    """

    pod: str
    ratio: float
    seconds_per_row: float
    others_seconds_per_row: float
    since: float = 0.0


def slowest(seconds_per_row: Mapping[str, float]) -> SlowPod | None:
    """The pod that takes longest for a row if that makes it slow."""
    if len(seconds_per_row) < 2:
        return None
    pod = max(sorted(seconds_per_row), key=lambda name: seconds_per_row[name])
    others = statistics.median(seconds for name, seconds in seconds_per_row.items() if name != pod)
    if others <= 0 or seconds_per_row[pod] < SLOW_RATIO * others:
        return None
    return SlowPod(pod, seconds_per_row[pod] / others, seconds_per_row[pod], others)


def comparable(loads: Mapping[str, Load]) -> dict[str, float]:
    """Seconds per row of a job's servers; none where these say nothing of the nodes.

    Only servers with the same cores and about the same load are compared. One at the limit of its cores takes longer
    for a row, and one with few rows in a request, too, for every request costs something: while a server is hot, its
    buckets move, not the server.
    """
    alike = len({load.cores for load in loads.values()}) == 1 and not hot_server(loads)
    if not alike or any(load.rows_per_second < LEAST_ROWS_PER_SECOND for load in loads.values()):
        return {}
    return {name: load.seconds_per_row for name, load in loads.items()}


def has_room_elsewhere(nodes: Iterable[Node], node: str, size: PodSize) -> bool:
    """Whether another node has the room for a pod now; false where the cluster does not say."""
    return any(
        each.takes_pods
        and each.name != node
        and size.cores <= each.free.cores
        and size.memory_bytes <= each.free.memory_bytes
        for each in nodes
    )


class SlowPods:
    """What was seen until now of the pods of one role; asked once per window."""

    def __init__(self) -> None:
        self._lasting = Lasting(SLOW_SECONDS, COOL_DOWN_SECONDS)

    def look(self, seconds_per_row: Mapping[str, float], now: float) -> SlowPod | None:
        """A pod that was slow for long enough, until it is moved; `now` is on the job's clock."""
        slow = slowest(seconds_per_row)
        is_due = self._lasting.is_due("" if slow is None else slow.pod, now)
        if slow is None or not is_due:
            return None
        return msgspec.structs.replace(slow, since=self._lasting.since)

    def moved(self, now: float) -> None:
        """One of them is moved."""
        self._lasting.done(now)

    def forget(self) -> None:
        """Nothing counts that was seen until now: the pods are others, or nothing is trained."""
        self._lasting.forget()
