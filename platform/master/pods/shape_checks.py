"""Checks of requests for another shape of a running job, and previews of their effects. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from elastrec.platform.clusters.nodes import Node
from elastrec.platform.master.pods import shape
from elastrec.platform.master.pods.requests import names_size
from elastrec.platform.specs.metrics import Phase, Role
from elastrec.platform.specs.shape import PlacesChange, PodSize, ShapeChange, field_name
from elastrec.platform.specs.text import plain_words
from elastrec.platform.specs.text.quantities import SMALLEST_CORES, SMALLEST_MEMORY_BYTES, format_bytes
from elastrec.platform.transport.messages.observer import LONGEST_REQUEST_TIMEOUT_SECONDS, ChangeShape, PodMove

if TYPE_CHECKING:
    from elastrec.platform.master.machine.state import JobState

MOST_WORKERS = 10_000
_NAMES = {Role.WORKER: "worker", Role.PARAMETER_SERVER: "parameter server"}


def refusal(
    state: JobState,
    asked: ChangeShape,
    used_bytes: Mapping[str, int] | None = None,
    row_bytes: Mapping[str, int] | None = None,
) -> str:
    """Why the running job cannot have the requested shape; empty if it can.

    Args:
        used_bytes: memory of each pod that has reported it; row_bytes: that of a server's rows.
    """
    for role, places in asked.change.items():
        if words := _impossible_places(state, role, places):
            return words
    for number, move in enumerate(asked.moves):
        if words := _impossible_move(state, move, asked.moves[:number]):
            return words
    if not 0 < asked.timeout_seconds <= LONGEST_REQUEST_TIMEOUT_SECONDS:
        allowed = f"above 0, at most {LONGEST_REQUEST_TIMEOUT_SECONDS:g}"
        return f"timeout_seconds: {asked.timeout_seconds:g} is not allowed; allowed: {allowed}"
    too_small = _too_small(state, asked.change, used_bytes or {}) or _too_few(state, asked.change, row_bytes or {})
    return too_small or _too_late(state, asked)


def _impossible_places(state: JobState, role: Role, places: PlacesChange) -> str:
    most = {Role.WORKER: MOST_WORKERS, Role.PARAMETER_SERVER: state.plan.virtual_buckets}
    if role not in most:
        return f"change: role {str(role)!r} is not allowed; allowed: {', '.join(most)}"
    if places.count is not None and not 1 <= places.count <= most[role]:
        return f"{field_name(role, 'count')}: {places.count} is not allowed; allowed: 1 to {most[role]}"
    if places.cores is not None and not SMALLEST_CORES <= places.cores < math.inf:
        return (
            f"{field_name(role, 'cores')}: {places.cores} is not allowed; allowed: a finite number of at least "
            f"{SMALLEST_CORES:g}"
        )
    if places.memory_bytes is not None and places.memory_bytes < SMALLEST_MEMORY_BYTES:
        least = f"at least {format_bytes(SMALLEST_MEMORY_BYTES)}"
        return (
            f"{field_name(role, 'memory_bytes')}: {format_bytes(places.memory_bytes)} is not allowed; allowed: {least}"
        )
    return ""


def _impossible_move(state: JobState, move: PodMove, others: Sequence[PodMove]) -> str:
    members = state.membership.members
    member = members.get(move.pod)
    if member is None or member.retiring:
        there = ", ".join(sorted(name for name, one in members.items() if not one.retiring))
        return f"moves: {move.pod!r} is not allowed; allowed: the job's workers and servers, {there or 'none now'}"
    if any(other.pod == move.pod for other in others):
        return f"moves: {move.pod} stands there twice; name each pod once"
    if move.leaves_node and not member.node:
        return f"moves: the node of {move.pod} is not known yet; ask again once the pod has registered"
    return ""


def _too_small(state: JobState, change: ShapeChange, used_bytes: Mapping[str, int]) -> str:
    """Refuses a size below a pod's memory in use, because the pod would be killed; with more servers, each needs
    less."""
    for role, places in change.items():
        grows = places.count is not None and places.count > state.wanted_shape[role].count
        if places.memory_bytes is None or (grows and role is Role.PARAMETER_SERVER):
            continue
        members = (member for member in state.membership.members.values() if member.role is role and member.stays)
        fullest = max(members, key=lambda member: used_bytes.get(member.name, 0), default=None)
        if fullest is not None and (used := used_bytes.get(fullest.name, 0)) > places.memory_bytes:
            return (
                f"{field_name(role, 'memory_bytes')}: {format_bytes(places.memory_bytes)} is not allowed: "
                f"{fullest.name} uses {format_bytes(used)}; allowed: more than that"
            )
    return ""


def _too_few(state: JobState, change: ShapeChange, row_bytes: Mapping[str, int]) -> str:
    """Refuses so few servers that the rows alone do not fit, because they would be killed while they copy them."""
    places, owners = change.get(Role.PARAMETER_SERVER, PlacesChange()), {server.name for server in state.owners()}
    if places.count is None or places.count >= len(owners) or not owners <= row_bytes.keys():
        return ""
    memory_bytes = state.wanted_shape[Role.PARAMETER_SERVER].changed(places).size.memory_bytes
    held_bytes = sum(row_bytes[name] for name in owners)
    if held_bytes <= places.count * memory_bytes:
        return ""
    return (
        f"{field_name(Role.PARAMETER_SERVER, 'count')}: {places.count} is not allowed: all rows together have "
        f"{format_bytes(held_bytes)}, and a server has {format_bytes(memory_bytes)}; allowed: at least "
        f"{-(-held_bytes // memory_bytes)}, or more memory per server"
    )


def _too_late(state: JobState, asked: ChangeShape) -> str:
    """Why servers cannot be changed any more; empty if they can."""
    if state.phase not in (Phase.SAVING, Phase.EVALUATING):
        return ""
    servers = asked.change.get(Role.PARAMETER_SERVER, PlacesChange())
    members = state.membership.members
    if servers.count not in (None, state.wanted_shape[Role.PARAMETER_SERVER].count):
        what = f"{field_name(Role.PARAMETER_SERVER, 'count')}: {servers.count}"
    elif moved := [move.pod for move in asked.moves if members[move.pod].role is Role.PARAMETER_SERVER]:
        what = f"moves: {moved[0]}"
    elif _are_replaced(state, servers):
        what = (
            f"{field_name(Role.PARAMETER_SERVER, 'cores')}: {servers.cores:g}"
            if servers.cores is not None
            else f"{field_name(Role.PARAMETER_SERVER, 'memory_bytes')}: {format_bytes(servers.memory_bytes or 0)}"
        )
    else:
        return ""
    return f"{what} is not allowed while the job {plain_words.phase(state.phase)}; allowed: until its training is over"


def _are_replaced(state: JobState, servers: PlacesChange) -> bool:
    """Whether a server cannot have this size without being replaced; also with another memory alone, if more cores are
    wanted already and no server has started for them yet."""
    if not names_size(servers):
        return False
    size = state.wanted_shape[Role.PARAMETER_SERVER].changed(servers).size
    return any(shape.needs_other_locks(state, member, size) for member in state.membership.servers())


def prospects(state: JobState, asked: ChangeShape, nodes: Iterable[Node], node_of: Mapping[str, str]) -> list[str]:
    """What would happen, one line for each kind of change.

    Args:
        nodes: of the cluster, with their free resources; empty if unknown.
        node_of: the node of each pod.
    """
    known, lines = {node.name: node for node in nodes}, []
    for role, places in asked.change.items():
        lines += _of_count(state, role, places)
        if names_size(places):
            lines += _of_size(state, role, places, known, node_of)
    for move in asked.moves:
        if (member := state.membership.members.get(move.pod)) is None:
            # It was there when the request was checked, before the nodes were asked for.
            lines.append(f"{move.pod}: not moved: it has just ended")
            continue
        role, node = member.role, node_of.get(move.pod, "")
        size = state.wanted_shape[role].changed(asked.change.get(role, PlacesChange())).size
        excluded = {node} if move.leaves_node else set()
        where = f" on another node than {node}" if move.leaves_node else ""
        room = _room(size, known, excluded)
        lines.append(f"{move.pod}: moved: another {_NAMES[role]} starts{where}, then this one leaves{room}")
    return lines or ["nothing changes"]


def _of_count(state: JobState, role: Role, places: PlacesChange) -> list[str]:
    before = state.wanted_shape[role].count
    if places.count in (None, before):
        return []
    assert places.count is not None
    name = field_name(role, "count").replace("_", " ")
    if role is Role.WORKER:
        how = "others start" if places.count > before else "some finish their step and leave"
    else:
        how = "buckets are migrated while the job trains"
    return [f"{name} {before} → {places.count}: {how}"]


def _of_size(
    state: JobState, role: Role, places: PlacesChange, nodes: Mapping[str, Node], node_of: Mapping[str, str]
) -> list[str]:
    size = state.wanted_shape[role].changed(places).size
    members = [m for m in state.membership.members.values() if m.role is role and m.stays and m.asked != size]
    in_place, migrated, unknown, free = 0, 0, 0, {name: node.free for name, node in nodes.items()}
    resized = [member for member in members if not shape.needs_other_locks(state, member, size)]
    for member in resized:
        name = node_of.get(member.name, "")
        if name not in free:
            unknown += 1
            continue
        left = PodSize(
            free[name].cores - size.cores + member.cores,
            free[name].memory_bytes - size.memory_bytes + member.memory_bytes,
        )
        if left.cores < 0 or left.memory_bytes < 0:
            migrated += 1
        else:
            in_place, free[name] = in_place + 1, left
    title = f"{_NAMES[role]}s of {size.cores:g} cores and {format_bytes(size.memory_bytes)}"
    lines = [f"{title}: {in_place} resized in place"] if in_place else []
    if replaced := len(members) - len(resized):
        lines.append(
            f"{title}: {replaced} migrated: a server uses at most the cores with which it started, or "
            f"scaling.maximum_parameter_server_cores if that is more{_room(size, nodes, set())}"
        )
    if migrated:
        lines.append(f"{title}: {migrated} migrated: their nodes have not got the room{_room(size, nodes, set())}")
    if unknown:
        lines.append(f"{title}: {unknown} resized in place if their nodes have the room, else migrated")
    return lines


def _room(size: PodSize, nodes: Mapping[str, Node], excluded: set[str]) -> str:
    """A remark if no node has room for a new pod."""
    if not nodes or any(
        node.takes_pods
        and name not in excluded
        and size.cores <= node.free.cores
        and size.memory_bytes <= node.free.memory_bytes
        for name, node in nodes.items()
    ):
        return ""
    return "; no node has the room now: it waits until it is given up"
