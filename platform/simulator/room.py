"""Preemption: which jobs make room for a waiting job of higher priority, and how much."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from elastrec.platform.scaling.amounts import Allocation, Change
from elastrec.platform.simulator.nodes import Nodes
from elastrec.platform.simulator.placing import Placing, free, move, place, server_size, worker_size
from elastrec.platform.simulator.running import Running


class Yielding(msgspec.Struct, frozen=True):
    """A preempted job: reduced to fewer workers or, without an allocation, evicted."""

    running: Running
    allocation: Allocation | None = None
    placing: Placing | None = None


def make_room(wanted: Running, running: Iterable[Running], nodes: Nodes) -> Sequence[Yielding]:
    """Changes after which the waiting job fits; none if it cannot fit.

    Only jobs of lower priority are changed, by rising priority, the youngest first. All of them shrink to their minimum
    of workers before the first one is evicted. In the end, those that are not needed stay as they are, those of the
    highest priority and the oldest first.
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
                return _needed(wanted, list(yielding.values()), trial)
    for each in victims:
        before = yielding.pop(each.job.job_id, None)
        if before is not None and before.placing is not None and before.allocation is not None:
            free(trial, before.placing, before.allocation)
        else:
            free(trial, each.placing, each.held)
        evicted[each.job.job_id] = Yielding(each)
        if _fits(wanted, trial):
            return _needed(wanted, [*evicted.values(), *yielding.values()], trial)
    return []


def _needed(wanted: Running, changed: Sequence[Yielding], trial: Nodes) -> Sequence[Yielding]:
    """The changes without those that the waiting job can do without.

    Args:
        trial: the nodes after all of these changes; it is modified.
    """
    needed = []
    # Evictions, which cost most, are undone first.
    evicted = [each for each in changed if each.allocation is None]
    shrunk = [each for each in changed if each.allocation is not None]
    for each in (*evicted[::-1], *shrunk[::-1]):
        held, placing = each.running.held, each.running.placing
        kept_workers = 0 if each.allocation is None else each.allocation.workers
        servers = placing.servers if each.allocation is None else ()
        trial.take_back(placing.workers[kept_workers:], worker_size(held))
        trial.take_back(servers, server_size(held))
        if not _fits(wanted, trial):
            trial.give_back(placing.workers[kept_workers:], worker_size(held))
            trial.give_back(servers, server_size(held))
            needed.append(each)
    return needed


def _fits(wanted: Running, nodes: Nodes) -> bool:
    return wanted.held.resources.fits(nodes.free) and place(nodes.copy(), wanted.held) is not None
