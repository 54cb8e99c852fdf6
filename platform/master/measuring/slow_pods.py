"""Which worker or server is slow because of its node (AntDT: persistent stragglers): its successor starts elsewhere.

A worker is compared with the others of its job by what it computes alone: waiting for rows is the servers' doing, in
bsp the others'. A server is compared by what it takes to read and change rows, without what it waits for. One that is
alone cannot be compared, and is never found slow. Pure but for what `SlowPods` remembers: what slow pods have cost, and
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
MOVE_PRICE_POD_SECONDS = 45.0
"""What a move costs at least: seconds in which one pod could have worked. Chosen: a successor starts in ten to fifteen
seconds, and a needless move also uses one of `faults.slow_pod_moves` up. With it one of two workers at `SLOW_RATIO`,
which in `async` costs the job a quarter of its time, is moved after a minute.
"""
LEAST_SLOW_SECONDS = 20.0
"""For so long it has to be slow, however much that costs. Chosen: a pod that starts beside it takes less."""
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


def slow_ones(seconds_per_row: Mapping[str, float]) -> list[SlowPod]:
    """The pods that take so long for a row that they are slow, the slowest first."""
    found = []
    for pod, seconds in sorted(seconds_per_row.items(), key=lambda each: (-each[1], each[0])):
        others = statistics.median([each for name, each in seconds_per_row.items() if name != pod] or [0.0])
        if not 0 < SLOW_RATIO * others <= seconds:
            break  # nor are those that take less time
        found.append(SlowPod(pod, seconds / others, seconds, others))
    return found


def price_seconds(start_seconds: float, pods: int) -> float:
    """What a move costs in seconds of the job's time.

    Args:
        start_seconds: of a pod of the role in this job; 0: not measured.
        pods: of the job, which all work meanwhile.
    """
    return max(MOVE_PRICE_POD_SECONDS, start_seconds) / pods


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
        self._lasting = Lasting(LEAST_SLOW_SECONDS, COOL_DOWN_SECONDS)

    def look(
        self, seconds_per_row: Mapping[str, float], shares: Mapping[str, float], price_seconds: float, now: float
    ) -> SlowPod | None:
        """The slowest pod that was slow for long enough, until it is moved.

        Args:
            seconds_per_row: since the last call; fewer than two: not known.
            shares: of the job's time, 0 to 1, that passes while each of them does what was timed.
            price_seconds: of a move, in seconds of the job's time.
            now: on the job's clock.
        """
        slow = {each.pod: each for each in slow_ones(seconds_per_row)}
        losses = {pod: shares[pod] * (1 - 1 / each.ratio) for pod, each in slow.items()}
        since = self._lasting.look(losses if len(seconds_per_row) > 1 else None, price_seconds, now)
        worst = next((each for pod, each in slow.items() if pod in since), None)
        return None if worst is None else msgspec.structs.replace(worst, since=since[worst.pod])

    def moved(self, now: float) -> None:
        """One of them is moved."""
        self._lasting.done(now)

    def forget(self) -> None:
        """Nothing counts that was seen until now: the pods are others, or nothing is trained."""
        self._lasting.forget()
