"""Assignment of buckets to servers. Pure functions.

A job's embedding rows belong to virtual buckets, by the hash of their ids; its dense parameters belong to dense
buckets, by their position in the flat vector. The number of buckets does not depend on the number of servers, so when a
server is added or removed, some buckets move and the others stay where they are.
"""

from __future__ import annotations

from collections.abc import Sequence

_MOST_DENSE_BUCKETS = 256
"""With this number, 20 servers differ by 2 %; with 64 dense buckets, by 25 %. Each bucket may cost a worker a copy per
step."""


def dense_buckets_for(virtual_buckets: int) -> int:
    """The number of buckets into which the dense parameters of a job are divided."""
    return min(_MOST_DENSE_BUCKETS, virtual_buckets)


def balanced_owners(buckets: int, servers: int, before: Sequence[int | None] = ()) -> list[int]:
    """A server for each bucket; none without servers.

    No two servers differ by more than one bucket; as few buckets as possible move.

    Args:
        servers: their number; they are numbered from 0.
        before: for each bucket the server that owns it, or None if that server leaves. Empty: no bucket has an owner,
            and each server gets consecutive buckets.
    """
    if not buckets or not servers:
        return []
    owners: list[int | None] = list(before) or [None] * buckets
    least, larger = divmod(buckets, servers)
    room = [least] * servers
    # The place that has most keeps one more: it moves less.
    for server in sorted(range(servers), key=owners.count, reverse=True)[:larger]:
        room[server] += 1
    kept: list[int | None] = []
    for owner in owners:
        stays = owner is not None and room[owner] > 0
        kept.append(owner if stays else None)
        if owner is not None and stays:
            room[owner] -= 1
    free = iter([server for server, number in enumerate(room) for _ in range(number)])
    return [next(free) if owner is None else owner for owner in kept]
