"""The nodes of one job's pods, and their placement: all or none."""

from __future__ import annotations

import msgspec

from elastrec.platform.scaling.amounts import Allocation, Change, Resources
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
    """Places all pods; None, without any change, if not all fit."""
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
    """Frees all pods."""
    nodes.give_back(placing.workers, worker_size(held))
    nodes.give_back(placing.servers, server_size(held))


class Moved(msgspec.Struct, frozen=True):
    """The nodes of a job's pods after a change.

    Attributes:
        in_place: sizes that all pods of their role got on their present nodes, so that no pod starts.
    """

    placing: Placing
    in_place: frozenset[Change] = frozenset()


def move(nodes: Nodes, placing: Placing, held: Allocation, wanted: Allocation) -> Moved | None:
    """Places another allocation instead of the present one; None, without any change, if it does not fit.

    As with a real master, a pod is resized on its node if that has the capacity; otherwise a new pod replaces it on
    another node. The old one continues to train until then; the overlap of the two is not counted.
    """
    trial = nodes.copy()
    found = _exchange(trial, placing, held, wanted)
    if found is not None:
        nodes.become(trial)
    return found


def _exchange(nodes: Nodes, placing: Placing, held: Allocation, wanted: Allocation) -> Moved | None:
    roles = [
        (Change.WORKER_SIZE, placing.workers, worker_size(held), worker_size(wanted), wanted.workers),
        (Change.SERVER_SIZE, placing.servers, server_size(held), server_size(wanted), wanted.parameter_servers),
    ]
    for _, pods, before, _, count in roles:
        nodes.give_back(pods[count:], before)
    in_place, staying = set(), {}
    # A role may use the capacity that the other one frees on the same node.
    for size, pods, before, after, count in sorted(roles, key=lambda role: not role[3].fits(role[2])):
        stays = pods[:count]
        if before != after:
            granted = nodes.resize(stays, before, after)
            nodes.give_back([node for node, is_granted in zip(stays, granted, strict=True) if not is_granted], before)
            stays = tuple(node for node, is_granted in zip(stays, granted, strict=True) if is_granted)
            in_place |= {size} if all(granted) else set()
        staying[size] = stays
    places: list[tuple[int, ...]] = []
    for size, _, _, after, count in roles:
        more = nodes.place(count - len(staying[size]), after)
        if more is None:
            return None
        places.append((*staying[size], *more))
    return Moved(Placing(*places), frozenset(in_place))
