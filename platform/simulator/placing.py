"""The nodes of one job's pods, and their placement: all or none.

What a change waits for and whether it pauses the training follows from the placement, as in a real master
(`master/pods/shape.py`, `succession.py`, `master/machine/migration.py`):

* Pods are resized at once where their nodes have the room, which smaller sizes always find. Nothing starts.
* Workers that are too many leave at once.
* New workers, also those that replace others, train when they have started.
* If the number of servers changes or servers are replaced, rows are handed over in a pause, after the start of those
  that are new.

Workers and servers do not wait for each other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import msgspec

from elastrec.platform.scaling.amounts import Allocation, Change, Resources
from elastrec.platform.simulator.nodes import Nodes

_ROLES = (
    (Change.WORKERS, Change.WORKER_SIZE, "workers", ("worker_cores", "worker_memory_bytes"), False),
    (
        Change.SERVERS,
        Change.SERVER_SIZE,
        "parameter_servers",
        ("parameter_server_cores", "parameter_server_memory_bytes"),
        True,
    ),
)
"""Of each role: the change of its number and of its size, their fields, and whether its pods hold rows."""


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


class Part(msgspec.Struct, frozen=True):
    """A part of a change, which takes effect at one moment.

    Attributes:
        fields: of the allocation.
        starts: whether pods have to start before; if sizes are among the fields, some of them replace others.
        hands_over: whether rows move to other servers, in a pause.
    """

    fields: tuple[str, ...]
    starts: bool = False
    hands_over: bool = False


class Moved(msgspec.Struct, frozen=True):
    """The nodes of a job's pods after a change, and its parts."""

    placing: Placing
    parts: tuple[Part, ...] = ()


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
    replaced, staying = set(), {}
    # A role may use the capacity that the other one frees on the same node.
    for size, pods, before, after, count in sorted(roles, key=lambda role: not role[3].fits(role[2])):
        stays = pods[:count]
        if before != after:
            granted = nodes.resize(stays, before, after)
            nodes.give_back([node for node, is_granted in zip(stays, granted, strict=True) if not is_granted], before)
            stays = tuple(node for node, is_granted in zip(stays, granted, strict=True) if is_granted)
            replaced |= set() if all(granted) else {size}
        staying[size] = stays
    places: list[tuple[int, ...]] = []
    for size, _, _, after, count in roles:
        more = nodes.place(count - len(staying[size]), after)
        if more is None:
            return None
        places.append((*staying[size], *more))
    return Moved(Placing(*places), tuple(_parts(held, wanted, replaced)))


def _parts(held: Allocation, wanted: Allocation, replaced: Collection[Change]) -> Iterator[Part]:
    """The parts of a change.

    Args:
        replaced: sizes for which at least one pod has to be replaced.
    """
    changes = held.changes(wanted)
    for count, size, count_field, size_fields, hands_over in _ROLES:
        at_once, later = list[str](), list[str]()
        more = getattr(wanted, count_field) > getattr(held, count_field)
        if size in changes:
            (later if size in replaced else at_once).extend(size_fields)
        if count in changes:
            (later if more or hands_over else at_once).append(count_field)
        if at_once:
            yield Part(tuple(at_once))
        if later:
            yield Part(tuple(later), starts=more or size in replaced, hands_over=hands_over)
