"""Preemption: which jobs make room for a waiting job of higher priority, and how much."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from elastrec.platform.scaling.amounts import Allocation, Change
from elastrec.platform.simulator.nodes import Nodes
from elastrec.platform.simulator.placing import Placing, free, move, place
from elastrec.platform.simulator.running import Running


class Yielding(msgspec.Struct, frozen=True):
    """A preempted job: reduced to fewer workers or, without an allocation, evicted."""

    running: Running
    allocation: Allocation | None = None
    placing: Placing | None = None


def make_room(wanted: Running, running: Iterable[Running], nodes: Nodes) -> Sequence[Yielding]:
    """Changes after which the waiting job fits; none if it cannot fit.

    Only jobs of lower priority are changed, by rising priority, the youngest first. All of them shrink to their minimum
    of workers before the first one is evicted, and as few jobs as possible are changed.
    """
    victims = sorted(
        (each for each in running if each.is_training and each.job.priority < wanted.job.priority),
        key=lambda each: (each.job.priority, -each.job.arrival_seconds),
    )
    trial, yielding, evicted = nodes.copy(), dict[str, Yielding](), dict[str, Yielding]()
    for each in victims:
        fewest = each.job.limits.workers[0]
        if Change.WORKERS not in each.job.movable or not each.settled or each.held.workers <= fewest:
            continue
        smaller = msgspec.structs.replace(each.held, workers=fewest)
        moved = move(trial, each.placing, each.held, smaller)
        if moved is not None:
            yielding[each.job.job_id] = Yielding(each, smaller, moved.placing)
            if _fits(wanted, trial):
                return list(yielding.values())
    for each in victims:
        before = yielding.pop(each.job.job_id, None)
        if before is not None and before.placing is not None and before.allocation is not None:
            free(trial, before.placing, before.allocation)
        else:
            free(trial, each.placing, each.held)
        evicted[each.job.job_id] = Yielding(each)
        if _fits(wanted, trial):
            return [*evicted.values(), *yielding.values()]
    return []


def _fits(wanted: Running, nodes: Nodes) -> bool:
    return wanted.held.resources.fits(nodes.free) and place(nodes.copy(), wanted.held) is not None
