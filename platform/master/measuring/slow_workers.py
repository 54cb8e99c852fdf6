"""Which worker is slow because of its node (AntDT: persistent stragglers), so that its successor starts elsewhere.

A worker is compared with the others of its job by what it computes alone: waiting for rows is the servers' doing, in
bsp the others'. Pure but for what `SlowWorkers` remembers: since when a worker is slow, and when one was found.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping

import msgspec

from elastrec.platform.clusters.nodes import Node
from elastrec.platform.master.measuring.lasting import Lasting
from elastrec.platform.specs.shape import PodSize

SLOW_RATIO = 2.0
"""Computing time per row of a slow worker ÷ the median of the others'. Minibatches and lists of rows differ in length
by some ten per cent; a node that others use as well, or whose processor is throttled, takes twice the time and more.
"""
SLOW_SECONDS = 60.0
"""For so long, without a break, it has to be slow: neighbours of a few seconds pass by themselves."""
COOL_DOWN_SECONDS = 300.0
"""Between two workers that are found slow: what the first move changed has to show before."""


class SlowWorker(msgspec.Struct, frozen=True):
    """A finding.

    Attributes:
        ratio: of its computing time per row to the median of the others'.
    """

    pod: str
    ratio: float
    seconds_per_row: float
    others_seconds_per_row: float


def slowest(seconds_per_row: Mapping[str, float]) -> SlowWorker | None:
    """The worker that computes longest for a row if that makes it slow."""
    if len(seconds_per_row) < 2:
        return None
    pod = max(sorted(seconds_per_row), key=lambda name: seconds_per_row[name])
    others = statistics.median(seconds for name, seconds in seconds_per_row.items() if name != pod)
    if others <= 0 or seconds_per_row[pod] < SLOW_RATIO * others:
        return None
    return SlowWorker(pod, seconds_per_row[pod] / others, seconds_per_row[pod], others)


def has_room_elsewhere(nodes: Iterable[Node], node: str, size: PodSize) -> bool:
    """Whether another node has the room for a pod now; false where the cluster does not say."""
    return any(
        each.takes_pods
        and each.name != node
        and size.cores <= each.free.cores
        and size.memory_bytes <= each.free.memory_bytes
        for each in nodes
    )


class SlowWorkers:
    """What was seen until now; asked once per window."""

    def __init__(self) -> None:
        self._lasting = Lasting(SLOW_SECONDS, COOL_DOWN_SECONDS)

    def look(self, seconds_per_row: Mapping[str, float], now: float) -> SlowWorker | None:
        """A worker that was slow for long enough; `now` is on the job's clock."""
        slow = slowest(seconds_per_row)
        if not self._lasting.is_due("" if slow is None else slow.pod, now):
            return None
        self._lasting.done(now)
        return slow

    def forget(self) -> None:
        """Nothing counts that was seen until now: the workers are others, or none trains."""
        self._lasting.forget()
