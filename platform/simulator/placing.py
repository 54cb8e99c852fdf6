"""Where the pods of one job are, and how they find room: all or none."""

from __future__ import annotations

import msgspec

from elastrec.platform.scaling.amounts import Allocation, Resources
from elastrec.platform.simulator.nodes import Nodes


class Placing(msgspec.Struct, frozen=True):
    """Node of every pod."""

    workers: tuple[int, ...] = ()
    servers: tuple[int, ...] = ()


def worker_size(allocation: Allocation) -> Resources:
    """Of one worker."""
    return Resources(allocation.worker_cores, allocation.worker_memory_bytes)


def server_size(allocation: Allocation) -> Resources:
    """Of one server."""
    return Resources(allocation.parameter_server_cores, allocation.parameter_server_memory_bytes)


def place(nodes: Nodes, wanted: Allocation) -> Placing | None:
    """Room for all pods; None, and nothing taken, where not all find some."""
    if not wanted.resources.fits(nodes.free):
        return None
    workers = nodes.place(wanted.workers, worker_size(wanted))
    if workers is None:
        return None
    servers = nodes.place(wanted.parameter_servers, server_size(wanted))
    if servers is None:
        nodes.give_back(workers, worker_size(wanted))
        return None
    return Placing(tuple(workers), tuple(servers))


def free(nodes: Nodes, placing: Placing, held: Allocation) -> None:
    """Gives all pods back."""
    nodes.give_back(placing.workers, worker_size(held))
    nodes.give_back(placing.servers, server_size(held))


def move(nodes: Nodes, placing: Placing, held: Allocation, wanted: Allocation) -> Placing | None:
    """Room of another allocation in place of its own; None, and nothing changed, where it does not fit.

    The old pods train on until the new ones are up; for that time their overlap is not counted. Pods whose size stays
    the same stay where they are.
    """
    trial = nodes.copy()
    found = _exchange(trial, placing, held, wanted)
    if found is not None:
        nodes.become(trial)
    return found


def _exchange(nodes: Nodes, placing: Placing, held: Allocation, wanted: Allocation) -> Placing | None:
    rest = []
    for pods, before, after, count in (
        (placing.workers, worker_size(held), worker_size(wanted), wanted.workers),
        (placing.servers, server_size(held), server_size(wanted), wanted.parameter_servers),
    ):
        kept = pods[:count] if before == after else ()
        nodes.give_back(pods[len(kept) :], before)
        rest.append((kept, count, after))
    places: list[tuple[int, ...]] = []
    for kept, count, after in rest:
        more = nodes.place(count - len(kept), after)
        if more is None:
            return None
        places.append((*kept, *more))
    return Placing(*places)
